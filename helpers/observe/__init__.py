"""Observe a step from outside, so that the strategies stay free of instruments.

comms.py     every operation of torch.distributed, from the wire
timeline.py  spans of compute (module and optimizer hooks) and of communication (the wire)
memory.py    bytes by kind over a step, the peak, the curve, and the module that holds them
alike.py     a recorded DDP step in the words of its prediction
emulate.py   a simulated DDP step, played by real ranks
traces.py    torch.profiler on live ranks, a file each, for helpers.commands.traces to read
magnitudes.py  how large the numbers of a step are, by power of two
pipeline_runs.py  what chapter 06 runs on live ranks
composed_by_torch.py  two axes at once by torch's own parts, as compose.Trainer trains
profiling_runs.py, tuning_runs.py  what chapter 10 runs on live ranks
scaling_runs.py  what chapter 11 runs on live ranks, emulated cards and links
checkpoint_runs.py  checkpoints beside torch's own, and damaged in every way
restarts.py  a job under torchrun that loses a rank or a node; restart_job.py is what its ranks do
watchdog.py  a page for a training loop of anybody: what goes wrong without an error
equality.py  is this run equal to one process on the same data?
"""
