"""Runs a module as a script, and then ends the process without destroying the interpreter.

python -m helpers.observe.run_and_leave helpers.workloads.train_ddp checkpoint.pt 2

Threads of gloo may abort a process while Python shuts down (pytorch issue 190489). A script that is shown to learners
stays free of this detail, because it is run through here.
"""

import runpy
import sys

from helpers.ranks.inplace import leave

if __name__ == "__main__":
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__")
    leave(0)
