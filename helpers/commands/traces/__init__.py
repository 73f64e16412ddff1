"""Reads traces of torch.profiler, of one rank or of all, puts them on one clock, and explains where the time went.

    run = read("traces")                           # a file, a folder with one file per rank, or a zip archive
    run.timeline                                   # lanes: compute, communication, waiting, host, data
    explanation = explain(run)                     # the step's parts, the straggler, gaps, operators, critical path
    print(*report_lines(explanation), sep="\\n")

Nothing here imports torch. The traces may be from gloo, NCCL or this course's wire, on CPUs or GPUs.

files.py         reads trace files: JSON, packed, archived, cut off
events.py        decodes the events of a file, which are many, by msgspec
several_runs.py  tells apart the runs whose traces lie in one folder
lanes.py         turns one rank's file into spans of compute, data loading, host time, and messages
messages.py      matches the messages of all ranks and finds the last rank to arrive
clocks.py        estimates the offset and drift of each rank's clock
run.py           `read`: all of the above, for all ranks
waterfall.py     divides each step into parts, and finds the straggler and the critical path
explain.py       `explain` and `compare`: the results as numbers
cli.py           `python -m helpers explain`, and the results as lines of text
perfetto.py      writes a Timeline in Chrome's trace format
example.py       a made-up run, for the explorer of chapter 10
simple.py        waiting, moving and launch delays in plain Python, which chapter 10 shows and anybody can copy

It exists because a profiler's trace shows one rank, and a slow step is mostly another rank's fault. Begin with
simple.py, and then read run.py.
"""

from helpers.commands.traces.cli import report_lines
from helpers.commands.traces.explain import Explanation, compare, explain
from helpers.commands.traces.run import TraceRun, read

__all__ = ["Explanation", "TraceRun", "compare", "explain", "read", "report_lines"]
