"""The two commands that answer at once import and read only what they need."""

import subprocess
import sys

import pytest

# Modules that take long to import or to use, and that neither command needs.
SLOW = ("torch", "numpy", "matplotlib", "ipywidgets", "IPython", "anywidget", "helpers.draw", "helpers.widgets")
REPORT = "import runpy, sys; sys.argv[0] = 'helpers'; runpy.run_module('helpers', run_name='__main__', alter_sys=False)"
IMPORTED = "import atexit; atexit.register(lambda: print(*sys.modules, file=sys.stderr))"


@pytest.mark.parametrize(
    "arguments, more",
    [
        (["plan", "--model", "llama3-70b", "--gpus", "32"], ("helpers.interview", "helpers.predict.advice.page")),
        (["quiz", "--list"], ("helpers.predict.advice", "helpers.grading")),
    ],
)
def test_a_command_imports_only_what_it_needs(arguments, more):
    program = f"import sys; {IMPORTED}; {REPORT}"
    ran = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True)
    assert ran.returncode == 0 and ran.stdout.count("\n") > 10, ran.stderr
    imported = set(ran.stderr.split())
    assert "helpers" in imported and not imported & {*SLOW, *more}
