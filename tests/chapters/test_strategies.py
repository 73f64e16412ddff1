"""The core files of the page of strategies: short, plain torch, equal to one process, and each runs copied alone."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.chapters import strategies
from helpers.chapters.strategies import compare_with_one_process
from helpers.grading import grade
from helpers.ranks import Ranks
from tests.chapters.core_file_scripts import ANSWERS, ON_RANK, ROOT, RUN_ALL, answer, script
from tests.notebooks.chapter import load
from tools.build_strategies_page import NOTEBOOK, SHOWN

MAX_LINES = 120


def core_files() -> list[str]:
    """The files that the saved page shows, in its order."""
    outputs = [output for cell in load(ROOT / NOTEBOOK) for output in cell.get("outputs", [])]
    return [path for one in outputs for path in SHOWN.findall("".join(one.get("data", {}).get("text/plain", "")))]


def test_the_page_shows_nine_core_files():
    assert core_files() == list(ON_RANK) and len(ON_RANK) == 9


@pytest.mark.parametrize("path", ON_RANK)
def test_a_core_file_is_short_and_plain_torch(path):
    text = (ROOT / path).read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MAX_LINES
    imports = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {(getattr(node, "module", None) or node.names[0].name).split(".")[0] for node in imports}
    assert names <= {"torch", *sys.stdlib_module_names}


@pytest.fixture(scope="module")
def printed(tmp_path_factory) -> dict[str, str]:
    """What each core file prints, copied alone into a folder where `helpers` is a file that refuses to be imported."""
    folder = tmp_path_factory.mktemp("copied")
    (folder / "helpers.py").write_text("raise ImportError('the copied file needs the course')\n", encoding="utf-8")
    (folder / "run_all.py").write_text(RUN_ALL, encoding="utf-8")
    for path in ON_RANK:
        (folder / Path(path).name).write_text(script(path), encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-W", "ignore", "run_all.py", *(Path(path).name for path in ON_RANK)]
    done = subprocess.run(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300
    )
    return dict(zip(ON_RANK, done.stdout.split("== next ==\n"), strict=False))


@pytest.mark.parametrize("path", ON_RANK)
def test_copied_alone_it_runs_and_equals_one_process(path, printed):
    lines = sorted(printed[path].splitlines())
    assert lines == ["exit code 0", *(f"rank {rank} equals one process" for rank in range(2))], printed[path]


@pytest.fixture(scope="module")
def five():
    """As many ranks as the checks of some tasks need."""
    with Ranks(5, quiet=True) as pool:
        yield pool


@pytest.mark.parametrize(("path", "task"), ANSWERS)
def test_copied_alone_it_passes_the_lab(five, path, task):
    verdict = grade(task, answer(path, task), seed=1, ranks=five)
    assert verdict.passed, verdict


@pytest.mark.parametrize("num_ranks", [2, 4])
@pytest.mark.parametrize(
    "name",
    ["DDP", "LossScaling", "Recomputation", "Pipeline", "TensorParallel", "ZeRO3", "SplitSequences", "ExpertsOnRanks"],
)
def test_every_rank_equals_one_process(ranks, name, num_ranks):
    line = compare_with_one_process(ranks[:num_ranks], getattr(strategies, name)).splitlines()[0]
    assert line == f"all {num_ranks} ranks equal one process after 3 steps: 79 tensors, within 1e-10 of the norm"


def test_a_rank_that_trains_otherwise_is_noticed(ranks):
    with pytest.raises(AssertionError, match="differs, most at"):
        compare_with_one_process(ranks[:2], Unaveraged)


class Unaveraged(strategies.DDP):
    """Ranks that never send their gradients."""

    def after_backward(self) -> None:
        self.forward.ready, self.forward.in_flight = set(), []


def test_the_lines_below_the_files(ranks):
    assert strategies.compare_autocast_with_torch().endswith("equal to the last bit")
    assert strategies.most_in_flight(ranks, "gpipe").endswith("ranks 0 to 3: 4, 4, 4, 4")
    assert strategies.most_in_flight(ranks, "one_f_one_b").endswith("ranks 0 to 3: 4, 3, 2, 1")
    plain, recomputed = (strategies.activation_bytes(one) for one in (False, True))
    assert recomputed < plain / 5


def test_zero_3_sends_one_and_a_half_times_as_much_as_ddp(ranks):
    sent = [max(log.sent_bytes() for _, log, _ in ranks.run(strategies.trained, strategies.TRAINING.under(way)))
            for way in (strategies.DDP, strategies.ZeRO3)]  # fmt: skip
    assert sent[1] == pytest.approx(1.5 * sent[0])


def test_context_parallelism_passes_keys_and_values_on_and_adds_up_gradients_once(ranks):
    _, log, _ = ranks.run(strategies.trained, strategies.TRAINING.under(strategies.SplitSequences))[0]
    messages = strategies.NUM_BLOCKS * 3 * (len(ranks) - 1)  # of each block: once in forward, and twice in backward
    assert [log.count(op) for op in ("send", "recv", "all_reduce")] == [messages, messages, 1]


def test_expert_parallelism_sends_counts_and_tokens_and_divides_the_experts(ranks):
    training = strategies.ExpertsOnRanks.default_training
    _, log, stored = ranks.run(strategies.trained, training.under(strategies.ExpertsOnRanks))[0]
    assert log.count("all_to_all") == strategies.NUM_BLOCKS * (3 + 2)  # the counts are not sent in backward
    assert log.count("all_reduce") == 1
    model = training.model()
    of_experts = sum(block.up.numel() + block.down.numel() for block in strategies.blocks_of(model))
    assert strategies.num_parameters(model) - stored == of_experts * (1 - 1 / len(ranks))


def test_gradients_of_experts_that_are_too_large_are_noticed(ranks):
    with pytest.raises(AssertionError, match="differs, most at"):
        compare_with_one_process(ranks[:2], ExpertsNotDivided)


class ExpertsNotDivided(strategies.ExpertsOnRanks):
    """The gradients of experts stay a sum over both ranks."""

    def after_backward(self) -> None:
        super().after_backward()
        for name, parameter in self.model.named_parameters():
            if name.endswith(strategies.OF_EXPERTS):
                parameter.grad *= 2


def test_the_links_of_each_file_lead_to_its_chapter():
    page = (ROOT / "docs" / "strategies.md").read_text(encoding="utf-8")
    assert re.findall(r"\.\./notebooks/(\d\d)_", page) == ["03", "04", "05", "06", "07", "08", "13", "14", "09"]
