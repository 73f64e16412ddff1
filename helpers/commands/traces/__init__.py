"""Traces of torch.profiler, of one rank or of all: read, put on one clock, and explained. No torch.

    run = read("traces")                   # a file, a folder with one per rank, an archive; ours, torch's, of a GPU
    run.timeline                           # lanes: compute, communication, waiting, host, data
    told = explain(run)                    # the step as a waterfall, the straggler, gaps, operators, critical path
    print(*say(told), sep="\\n")

files.py       JSON, packed, cut off            waterfall.py   where a step's time went
lanes.py       what one rank did                stragglers.py  whom the others wait for, and why
messages.py    who waited for whom              explain.py     all of it; two traces compared
clocks.py      one clock for all ranks          screen.py      in words            cli.py  on the command line
run.py         `read`                           perfetto.py    a Timeline for Perfetto
example.py     a made-up run, to be looked at
"""

from helpers.commands.traces.explain import Explanation, compare, explain
from helpers.commands.traces.run import Run, read
from helpers.commands.traces.screen import say

__all__ = ["Explanation", "Run", "compare", "explain", "read", "say"]
