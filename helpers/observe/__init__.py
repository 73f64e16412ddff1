"""Instruments that observe training steps from outside, so that the strategies contain no measuring code.

comms.py       every operation of torch.distributed that a rank issues
timeline.py    spans of compute and communication; a recorded step with the names of its prediction
memory.py      bytes by kind, over time and at the peak (memory_storages.py and memory_positions.py find them)
magnitudes.py  tensor values by their power of two
traces.py      torch.profiler on live ranks, one file per rank
equality.py    whether ranks hold what one process holds
training.py    one small training under any strategy, compared with one process
stopwatch.py   how long calls and steps take
emulate.py     a simulated step that real ranks run in slow motion, on paced.py
torchrun.py    scripts and modules under torchrun
restarts.py    a job under torchrun that loses a rank or a node (restart_job.py is what its ranks run)
watchdog.py    what goes wrong in a training loop without an error
"""
