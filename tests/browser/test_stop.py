"""The buttons that end a run, pressed in a real JupyterLab: Stop, restart, run all, close and open again."""

from __future__ import annotations

import time

import psutil
import pytest

from tests.timing import assert_one_of_three_is_within

LIMIT = 1.0  # seconds from the press of Stop to a free prompt, on an idle machine
CELLS = {
    "setup": """
import os
os.environ["RANKS_HOME"] = os.getcwd()
from helpers.grading import check
from helpers.ranks import Ranks
ranks = Ranks(2, device="cpu", quiet=True)
began = os.path.abspath("began")

def endless(model):
    while True:
        pass

def right(model):
    import torch.distributed as dist
    for parameter in filter(lambda p: p.grad is not None, model.parameters()):
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()

check("03.average", right)
""",
    "check": "print('begun')\ncheck('03.average', endless)",
    "loop": "%%ranks\nopen('{began}', 'w').close()\nwhile True: pass",
    "right": "ranks.run(lambda: 7) and check('03.average', right).passed",
}
STATUS = "window.jupyterapp.shell.currentWidget?.sessionContext?.session?.kernel?.status"
IS_IDLE = f"() => {STATUS} === 'idle'"
# A kernel that is busy when the notebook finds it again has no status until it answers, so its status says nothing.
IS_CONNECTED = f"() => {STATUS.removesuffix('status')}connectionStatus === 'connected'"
SHUT = """async () => {
    const panel = window.jupyterapp.shell.currentWidget;
    await panel.context.save();
    panel.dispose();
}"""


@pytest.fixture(scope="module")
def notebook(lab, desk):
    from tests.browser.notebook import opened

    sources = CELLS | {"loop": CELLS["loop"].replace("{began}", str(lab.work / "began"))}
    with opened(desk, lab.write("stop.ipynb", **sources)) as notebook:
        notebook.run("setup")
        yield notebook


def press(notebook, item: str) -> None:
    """Click a button of the notebook's toolbar."""
    notebook.page.locator(f'.jp-NotebookPanel-toolbar [data-jp-item-name="{item}"] >> visible=true').first.click()


def seconds_to_stop(notebook, name: str) -> float:
    """Press Stop while the cell of this name runs; the seconds until it has ended."""
    start = time.monotonic()
    press(notebook, "interrupt")
    notebook.wait(name)
    return time.monotonic() - start


def shown(notebook, name: str) -> str:
    outputs = notebook.cell(name).locator(".jp-OutputArea-output")
    outputs.first.wait_for()
    return "\n".join(outputs.all_inner_texts())


def processes_of(notebook) -> list[psutil.Process]:
    """What the kernel has started: the zygotes, and the ranks below them."""
    return psutil.Process(notebook.ask("os.getpid()")).children(recursive=True)


def left_of(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that still run after thirty seconds."""
    _, alive = psutil.wait_procs(processes, timeout=30)
    return [one for one in alive if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]


def start_loop(notebook, lab) -> None:
    from tests.browser.notebook import START

    (lab.work / "began").unlink(missing_ok=True)
    notebook.page.evaluate(START, "loop")
    while not (lab.work / "began").exists():
        notebook.page.wait_for_timeout(20)


def test_stop_ends_a_check_and_a_cell_on_the_ranks(notebook, lab):
    def seconds_to_end_a_check(attempt: int) -> float:
        notebook.start("check")
        took = seconds_to_stop(notebook, "check")
        text = shown(notebook, "check")
        print(f"check: {took:.2f} s\n{text}")
        assert "the check was interrupted" in text and "No attempt was counted." in text and "Traceback" not in text
        return took

    def seconds_to_end_a_cell(attempt: int) -> float:
        start_loop(notebook, lab)
        took = seconds_to_stop(notebook, "loop")
        text = shown(notebook, "loop")
        print(f"%%ranks: {took:.2f} s\n{text}")
        assert "the run was interrupted" in text and "Your variables are kept" in text and "Traceback" not in text
        return took

    assert_one_of_three_is_within(LIMIT, seconds_to_end_a_check)
    assert_one_of_three_is_within(LIMIT, seconds_to_end_a_cell)
    notebook.run("right")
    assert notebook.result("right") == "True"


def test_restart_in_a_check_leaves_no_process(notebook):
    before = processes_of(notebook)
    notebook.start("check")
    press(notebook, "restart")
    notebook.page.locator(".jp-Dialog .jp-mod-accept").click()
    assert left_of(before) == []
    notebook.run("setup")
    notebook.run("right")
    assert notebook.result("right") == "True"
    after = processes_of(notebook)
    assert len(before) == len(after)


def test_stop_ends_a_check_and_the_run_all_that_waits_behind_it(notebook, lab):
    def seconds_to_end_both(attempt: int) -> float:
        (lab.work / "began").unlink(missing_ok=True)
        notebook.start("check")
        notebook.page.evaluate("() => void window.jupyterapp.commands.execute('notebook:run-all-cells')")
        start = time.monotonic()
        press(notebook, "interrupt")
        notebook.page.wait_for_function(IS_IDLE)
        print(f"run all behind a check: {time.monotonic() - start:.2f} s")
        return time.monotonic() - start

    assert_one_of_three_is_within(LIMIT, seconds_to_end_both)
    notebook.run("right")
    assert notebook.result("right") == "True" and not (lab.work / "began").exists()


def test_closed_and_opened_again_while_a_check_runs(notebook):
    from tests.browser.notebook import OPEN

    processes = processes_of(notebook)
    notebook.start("check")
    notebook.page.evaluate(SHUT)
    notebook.page.evaluate(OPEN, notebook.path)
    notebook.page.locator('.jp-NotebookPanel-toolbar [data-jp-item-name="interrupt"]').first.wait_for()
    notebook.page.wait_for_function(IS_CONNECTED)
    press(notebook, "interrupt")
    notebook.page.wait_for_function(IS_IDLE)  # else the kernel drops what waits behind the interrupted check
    notebook.run("right")
    assert notebook.result("right") == "True"
    assert notebook.close() == []
    assert left_of(processes) == []
