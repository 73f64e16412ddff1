"""02.parallel_apply: one thread a replica. Order, exceptions and modes are what a thread forgets.

The replicas of the check meet: each waits for all others to have started, and then for the next one to be done. So
replicas that run one after the other are found without a clock, and the last one always ends first.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from helpers.grading.cases import CaseGenerator
from helpers.grading.data_parallel import LAB
from helpers.grading.kit.comparisons import expect, expect_equal, expect_tensor, is_close
from helpers.grading.task import JudgedWorld, Judgement, RankContext, Task
from helpers.learner.words import Words
from helpers.ranks.limits import crowd

MEETING_SECONDS = 0.5  # that a replica waits for the others on an idle machine; threads start in under a millisecond
HEAD_START = 0.005  # seconds between one replica's return and the next one's
MODES = {  # of the caller: whether gradients are recorded, and the dtype of autocast; none may outlive its call
    "no_grad": (False, "off"),
    "autocast": (True, "torch.float16"),
    "no_grad and autocast": (False, "torch.bfloat16"),
    "as usual": (True, "off"),
}


class StayedAway(KeyError):
    """What a replica of the check raises. Its name and its words are ours, so they can be found again."""

    def __init__(self, of: str, reason: str):
        super().__init__(f"a replica of {of} refuses its input: {reason}")


class Meeting:
    """Replicas that wait for each other: all start, then the last returns first."""

    def __init__(self, num_devices: int, *, is_patient: bool):
        self.seconds = MEETING_SECONDS * crowd() if is_patient else 0.0
        self.start = threading.Barrier(num_devices)
        self.done = [threading.Event() for _ in range(num_devices + 1)]
        self.done[-1].set()
        self.notes: list[dict[str, Any]] = [{} for _ in range(num_devices)]

    def replica(self, device: int, weight: Tensor, fails: bool = False) -> Callable[[Any], Tensor]:
        """A stand-in for the model on one device: x, or the first of a tuple: (rows, in) to (rows, out)."""

        def forward(piece: Any) -> Tensor:
            x = piece[0] if isinstance(piece, tuple) else piece
            self.notes[device] = modes_here() | {"met": self.met()}
            if fails:
                self.done[device].set()
                raise StayedAway("the check", reason="on purpose")
            if self.notes[device]["met"]:
                self.done[device + 1].wait(self.seconds)
                time.sleep(HEAD_START)
            try:
                return x @ weight
            finally:
                self.done[device].set()

        return forward

    def met(self) -> bool:
        """Whether all replicas are at work at the same time, as this one finds."""
        try:
            self.start.wait(self.seconds)
        except threading.BrokenBarrierError:  # for all that come later, too: nobody waits twice
            return False
        return True


DTYPES = {str(dtype): dtype for dtype in (torch.float16, torch.bfloat16)}


def modes_here() -> dict[str, Any]:
    cast = torch.is_autocast_enabled("cpu")
    return {"grad": torch.is_grad_enabled(), "dtype": str(torch.get_autocast_dtype("cpu")) if cast else "off"}


def make_inputs(rng: CaseGenerator, num_devices: int) -> list[dict[str, Any]]:
    """Weights that differ, so that each output tells whose it is, and the replicas that fail, one a call."""
    width, columns = rng.integer(2, 4), rng.integer(2, 4)
    weights = [rng.tensor(width, columns) for _ in range(num_devices)]
    inputs = [rng.tensor(rng.integer(1, 5), width) for _ in range(num_devices)]
    failing = sorted({0, num_devices - 1, rng.integer(0, num_devices - 1)})
    return [{"weights": weights, "inputs": inputs, "failing": failing}]


def run_submission(submitted, inputs: dict[str, Any], context: RankContext) -> dict[str, Any]:
    weights = [weight.clone().requires_grad_() for weight in inputs["weights"]]
    tuples = [(x, 1.0) for x in inputs["inputs"]]  # pieces of a batch that scatter cut
    runs: dict[str, Any] = {}
    have_met = True
    for mode, (grad, dtype) in MODES.items():
        meeting = Meeting(len(weights), is_patient=have_met)
        replicas = [meeting.replica(device, weight) for device, weight in enumerate(weights)]
        cast = torch.autocast("cpu", dtype=DTYPES.get(dtype), enabled=dtype in DTYPES)
        with torch.set_grad_enabled(grad), cast:
            outputs = submitted(replicas, tuples if mode == "no_grad" else list(inputs["inputs"]))
        several = outputs if isinstance(outputs, list | tuple) else []
        attached = [isinstance(output, Tensor) and output.requires_grad for output in several]
        runs[mode] = {"outputs": outputs, "attached": attached, "notes": meeting.notes}
        have_met = all(note.get("met") for note in meeting.notes)  # where they have not, nobody waits for them again
    failures = []
    for failing in inputs["failing"]:
        meeting = Meeting(len(weights), is_patient=have_met)
        failures.append(failure(submitted, meeting, weights, inputs["inputs"], failing))
    return {"runs": runs, "failures": failures}


def failure(submitted, meeting: Meeting, weights: list[Tensor], pieces: list[Any], failing: int) -> dict[str, Any]:
    """What comes out when one of the replicas raises."""
    replicas = [meeting.replica(device, weight, device == failing) for device, weight in enumerate(weights)]
    try:
        submitted(replicas, list(pieces))
    except Exception as error:
        return {"raised": type(error).__name__, "says": "\n".join([str(error), *getattr(error, "__notes__", [])])}
    return {"raised": "nothing", "says": ""}


def judge(world: JudgedWorld) -> Iterator[Judgement]:
    inputs, runs = world.inputs[0], world.outputs[0]["runs"]
    num_devices = len(inputs["weights"])
    for mode in MODES:
        met = [note.get("met", False) for note in runs[mode]["notes"]]
        yield expect(
            all(met),
            "the replicas do not run at the same time",
            "各副本没有同时运行",
            mistakes=["one_after_another"],
        )
    right = [x @ weight for x, weight in zip(inputs["inputs"], inputs["weights"], strict=True)]
    given = runs["as usual"]["outputs"]
    yield expect_equal(NUM_OUTPUTS, num_devices, len(given) if isinstance(given, list) else 0)
    several = given if isinstance(given, list) else []
    owners = [device for output in several for device, one in enumerate(right) if is_close(one, output)]
    is_turned = sorted(owners) == list(range(num_devices))  # all of them are there, each once
    for device, (expected, output) in enumerate(zip(right, several, strict=False)):
        others = {"order_of_completion": right if is_turned else []}
        yield expect_tensor(OUTPUT, expected, output, rank=device, mistakes=others)
    for device, is_attached in enumerate(runs["as usual"]["attached"]):
        yield expect(is_attached, "backward cannot start from the output", "无法从输出开始反向", rank=device)
    yield from judge_modes(runs)
    failures = world.outputs[0]["failures"]
    known = ["exception_swallowed"] if all(got["raised"] == "nothing" for got in failures) else []
    for failing, got in zip(inputs["failing"], failures, strict=True):
        yield from judge_failure(got, failing, num_devices, known)


def judge_modes(runs: dict[str, Any]) -> Iterator[Judgement]:
    """What each replica found in its thread; a mistake of the grad mode also shows under autocast, and not there."""
    for mode, (grad, dtype) in MODES.items():
        for device, note in enumerate(runs[mode]["notes"]):
            yield expect_equal(
                GRAD_MODE.format(mode), grad, note.get("grad"), rank=device, mistakes={"grad_mode_lost": True}
            )
            lost = {"autocast_lost": "off", "autocast_dtype_lost": "torch.bfloat16"} if dtype != "off" else {}
            yield expect_equal(CAST.format(mode), dtype, note.get("dtype"), rank=device, mistakes=lost)


def judge_failure(got: dict[str, Any], failing: int, num_devices: int, known: list[str]) -> Iterator[Judgement]:
    """The replica's own exception comes out and names its device, and no other."""
    en = f"its replica raised {StayedAway.__name__}, and out of parallel_apply came {got['raised']}"
    zh = f"副本抛出了 {StayedAway.__name__}，而 parallel_apply 抛出的是 {got['raised']}"
    yield expect(got["raised"] == StayedAway.__name__, en, zh, rank=failing, mistakes=known)
    named = [device for device in range(num_devices) if f"device {device}" in got["says"]]
    yield expect(
        named == [failing] or got["raised"] != StayedAway.__name__,
        f"an exception is raised that does not say 'device {failing}': {got['says']!r}",
        f"抛出的异常没有说明是 'device {failing}'：{got['says']!r}",
        rank=failing,
        mistakes=["device_unnamed"] if not named else [],
    )


NUM_OUTPUTS = Words(en="the number of outputs", zh="输出的个数")
OUTPUT = Words(en="the output", zh="输出")
GRAD_MODE = Words(en="torch.is_grad_enabled() in the thread ({})", zh="线程中的 torch.is_grad_enabled()（{}）")
CAST = Words(en="the dtype of autocast in the thread ({})", zh="线程中 autocast 的 dtype（{}）")
PARALLEL_APPLY = Task(
    key="02.parallel_apply",
    signature="parallel_apply(replicas, inputs)",
    make_inputs=make_inputs,
    run_submission=run_submission,
    judge=judge,
    hints=LAB.hints(
        "one_after_another",
        "exception_swallowed",
        "order_of_completion",
        "grad_mode_lost",
        "autocast_dtype_lost",
        "autocast_lost",
        "device_unnamed",
    ),
    runs_on="devices",
    must_not_change=("replicas", "inputs"),
)
