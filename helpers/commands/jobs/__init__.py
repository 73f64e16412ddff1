"""Training scripts that never import us: started as torchrun would, with a thread of ours in every process.

inside.py     that thread: where every thread is, what was issued; standard library alone, loaded before the script
recorder.py   the same for torch.profiler: a window of steps, counted by the optimizer
launch.py     starting a job's ranks, or somebody's own command, and ending all of it
board.py      what the threads wrote down, and when a job stands still
calls.py      the collectives of all ranks beside each other, and the first at which they part
blame.py      who left the line: rank, kind, operation, line
analyzer.py   torch's own analyzer of flight recorders on the same records
hang.py       `python -m helpers hang -- train.py`
profiled.py   `python -m helpers profile -- train.py`
"""
