"""Instruments that observe training steps from outside, so that the strategies contain no measuring code.

A strategy is a way to train on several ranks, such as DDP. Each line says what a file measures or runs.

comms.py       every operation of torch.distributed that a rank issues
timeline.py    spans of compute and communication; gives recorded spans the names of the spans in a simulated step
memory.py      bytes by kind, such as weights or activations, over time and at the peak. memory_storages.py finds each
               storage and its kind; memory_positions.py says in which module and part of the step it was allocated
magnitudes.py  tensor values by their power of two
equality.py    whether ranks hold what one process holds
training.py    one small training under any strategy, compared with one process
stopwatch.py   how long calls and steps take
paced.py       small operations that take as long as a model predicts, because they sleep for the rest of that time
emulate.py     a simulated step that real ranks run in slow motion, with layers from paced.py
torchrun.py    scripts and modules under torchrun, also a job that loses a node (restart_job.py is what its ranks run);
               run_and_leave.py runs a module and ends its process safely
watchdog.py    what goes wrong in a training loop without an error

Begin with comms.py, and then read timeline.py.
"""
