"""Starts training scripts that never import this package and finds out why they hang or where their time goes.

A probe, which is a thread that this package starts, runs in every process of such a job.

launch.py           starts a job's ranks as torchrun would, or the user's own command, and ends all its processes
probe.py            the thread in each process: writes down where the process is and how many collectives it has issued
profiler_probe.py   with `profile` each process loads this file besides probe.py; it profiles a window of steps
monitor.py          reads what the probes wrote and decides when a job hangs
flight_recorder.py  compares torch's flight-recorder dumps of all ranks
hang_cause.py       decides which rank made the job hang, in which operation, at which line
hang.py             `python -m helpers hang -- train.py`
profile.py          `python -m helpers profile -- train.py`

It exists because these scripts must run unchanged, so they are observed from outside. Begin with hang.py.
"""
