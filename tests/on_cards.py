"""`pytest --device card tests/parallel`: the tests that there are, on practice cards. `make test-slow` runs them so.

The fixture `ranks` is then made of cards, and what a test file makes on a rank is on the rank's card: tensors from
nothing, layers and models, what travels with the call. `helpers` itself gets no such help, so a tensor that it makes on
the CPU by mistake meets the card's. Tests without `ranks` stay out; `@pytest.mark.cpu("why")` leaves out one more.
"""

from __future__ import annotations

import io
import os
import pickle
import sys
from collections import Counter, defaultdict
from pathlib import Path

import cloudpickle
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

from benchmarks.paired import RESULTS, machine
from helpers.ranks import Ranks
from helpers.ranks.processes.messages import Pickler

cloudpickle.register_pickle_by_value(sys.modules[__name__])

TABLE, HERE = RESULTS / "on_cards.md", str(Path(__file__).parent) + os.sep
SIZES, ENDS = (1, 2, 3, 4, 6, 8), ("passed", "skipped", "failed")
HEAD = (
    "# on_cards",
    "",
    "Passed tests of each package by the worlds that they used (a test may use several), then all of them by outcome.",
    "",
    f"| package | {' | '.join(f'{size} ranks' for size in SIZES)} | {' | '.join(ENDS)} | seconds |",
    f"| --- |{' --- |' * (len(SIZES) + len(ENDS) + 1)}",
)
MADE = "Made by `python -m pytest --device card` on the last lines of `make test-slow`, {}."
NEEDS, OF_GPUS = {"ranks", "eight"}, Path(__file__).parent / "gpu"
FOR_LEARNERS = ("/torch/nn/modules/", "/torch/nn/init.py", "/torch/functional.py", "/helpers/workloads/")
BETWEEN = ("/helpers/devices/cards/", "/torch/utils/_device.py", "/torch/overrides.py")


# -- on a rank -----------------------------------------------------------------------------------------------------
class OnTheCard(TorchFunctionMode):
    """What a test file makes from nothing, itself or by a layer or model, is made on the card."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func not in _device_constructors() or kwargs.get("device") is not None or not of_a_test(sys._getframe(1)):
            return func(*args, **kwargs)
        if kwargs.get("generator") is None:
            return func(*args, **kwargs | {"device": "card"})
        wants_gradient = kwargs.pop("requires_grad", False)  # drawn by the CPU's generator, then moved
        return func(*args, **kwargs).to("card").requires_grad_(wants_gradient)


def of_a_test(frame) -> bool:
    while frame is not None and any(part in frame.f_code.co_filename for part in (*FOR_LEARNERS, *BETWEEN)):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.startswith(HERE)


class Carrying(Pickler):
    """A tensor that travels with a call arrives on the card."""

    def reducer_override(self, value):
        if type(value) is torch.Tensor:
            rebuild, parts = value.__reduce_ex__(2)[:2]
            return move, (rebuild, parts)
        return super().reducer_override(value)


def move(rebuild, parts):
    made = rebuild(*parts)
    return made.detach().to("card").requires_grad_(made.requires_grad)


def call(blob: bytes):
    with OnTheCard():
        fn, args, kwargs = pickle.loads(blob)
        return fn(*args, **kwargs)


# -- in the process of the tests -----------------------------------------------------------------------------------
class OnCards(Ranks):
    """Ranks with practice cards, for tests that were written for the CPU; they note on how many ranks they ran."""

    worlds: set[int] = set()  # of the test that runs

    def run(self, fn, *args, **kwargs):
        OnCards.worlds.add(self.num_ranks)
        with io.BytesIO() as file:
            Carrying(file).dump((fn, args, kwargs))
            return Ranks.run(self, call, file.getvalue())

    def _task(self, *how):
        outcome = super()._task(*how)
        assert not outcome.warnings, f"NCCL's rules say: {outcome.warnings}"  # a hang raises by itself
        return outcome

    def _smaller(self, size: int) -> Ranks:
        smaller = super()._smaller(size)
        smaller.__class__ = OnCards
        return smaller


class Table:
    """Which packages passed on how many ranks, in benchmarks/results/on_cards.md.

    A run of a package's tests renews the row of this package.
    """

    def __init__(self, path: Path = TABLE) -> None:
        self.path, self.sizes, self.ends, self.seconds = path, defaultdict(Counter), defaultdict(Counter), Counter()

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        kept = [item for item in items if OF_GPUS in item.path.parents or is_on_ranks(set(item.fixturenames))]
        config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
        items[:] = kept
        for item in items:
            for name, about in (("cpu", "about the CPU"), ("cuda", "needs CUDA itself")):
                for mark in item.iter_markers(name):
                    item.add_marker(pytest.mark.skip(reason=f"{about}: {mark.args[0]}"))

    def pytest_runtest_setup(self) -> None:
        OnCards.worlds.clear()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        package = str(Path(report.nodeid.partition("::")[0]).parent)
        self.seconds[package] += report.duration
        if report.when == "call" or not report.passed:
            self.ends[package][report.outcome] += 1
        if report.when == "call" and report.passed:
            self.sizes[package].update(list(OnCards.worlds))

    def pytest_sessionfinish(self) -> None:
        rows = read(self.path)
        for package, ends in self.ends.items():
            numbers = [*(self.sizes[package][size] for size in SIZES), *(ends[end] for end in ENDS)]
            rows[package] = " | ".join([*map(str, numbers), f"{self.seconds[package]:.0f}"])
        if self.ends:
            lines = [f"| {package} | {row} |" for package, row in sorted(rows.items())]
            self.path.write_text("\n".join([*HEAD, *lines, "", MADE.format(machine()), ""]), encoding="utf-8")


def is_on_ranks(fixtures: set[str]) -> bool:
    return bool(NEEDS & fixtures) and "cards" not in fixtures


def read(path: Path) -> dict[str, str]:
    lines = path.read_text(encoding="utf-8").splitlines()[len(HEAD) :] if path.exists() else []
    return dict(line[2:-2].split(" | ", 1) for line in lines if line.startswith("| "))
