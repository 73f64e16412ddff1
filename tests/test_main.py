"""`python -m helpers`: whatever a command meets, a terminal shows no traceback of ours."""

import subprocess
import sys

STOPPED = """
import runpy, sys
from helpers.interview import napkin

def main(arguments):
    raise KeyboardInterrupt

napkin.main = main
sys.argv[1:] = ["napkin"]
runpy.run_module("helpers", run_name="__main__", alter_sys=True)
"""


def test_ctrl_c_while_a_command_ends_shows_no_traceback():
    done = subprocess.run([sys.executable, "-c", STOPPED], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
