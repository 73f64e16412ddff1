"""Judges 02.parallel_apply: one thread per replica, with the caller's modes, the outputs in order, and exceptions.

The devices are simulated in one process. The learner's `parallel_apply(replicas, inputs)` calls each replica of a model
on its piece of the input, all at the same time. The replicas that it gets are stand-ins which wait for each other: each
waits until all others have started, and ends after the one with the next higher number. So replicas that run one after
the other are found without a clock, and the last replica always ends first. Each notes the grad mode and the autocast
dtype of its thread, and in some calls one of them raises.

The grader calls three functions:
  make_inputs     draws the inputs, one dict for the one process
  run_submission  calls the learner's function, `submitted`; what it returns is the output
  judge           makes Judgements from inputs[0] and outputs[0] of a JudgedWorld; their `rank` is a device's number

A mistake, such as "autocast_lost", is named here where a first attempt, which knows nothing of modes or exceptions of
threads, makes several of them at once. The others are named by running them. `words["…"]` is a sentence of
messages.yaml, or what a sentence calls a value.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from helpers.grading.data_parallel import LAB
from helpers.grading.kit.comparisons import expect, expect_equal
from helpers.grading.kit.tensor_comparisons import expect_tensor
from helpers.grading.task import JudgedWorld, Judgement, RankContext, Task, recognise_errors
from helpers.grading.tensor_cases import CaseGenerator
from helpers.ranks.processes.limits import load_per_core

words = LAB.messages

# The longest time for which a replica waits for the others, on an idle machine. It is ample, because threads start in
# under a millisecond.
BARRIER_SECONDS = 0.5
HEAD_START_SECONDS = 0.005  # between the end of one replica and that of the one before it
MODES = {  # what the caller sets: whether gradients are recorded, and the dtype of autocast or "off"
    "no_grad": (False, "off"),
    "autocast": (True, "torch.float16"),
    "no_grad and autocast": (False, "torch.bfloat16"),
    "as usual": (True, "off"),
}


class StayedAway(KeyError):
    """What a failing replica raises. Its name is used for no other exception, and the judge looks for it in what comes
    out of parallel_apply.

    It takes two arguments, so that code which makes a new exception of the same class from one text fails.
    """

    def __init__(self, of: str, reason: str):
        super().__init__(f"a replica of {of} refuses its input: {reason}")


class ReplicaBarrier:
    """Makes replicas that wait for each other: all of them start, then the last one returns first.

    waits: False if an earlier call has shown that they do not run at the same time, so that none waits in vain again.
    calls: for each device what its replica noted: "grad", "dtype" (see modes_here) and "met", whether all ran at once.
    """

    def __init__(self, num_devices: int, *, waits: bool):
        self.seconds = BARRIER_SECONDS * load_per_core() if waits else 0.0  # longer on a busy machine
        self.start = threading.Barrier(num_devices)
        # done[device] is set when the replica on this device ends. The last one waits for nobody.
        self.done = [threading.Event() for _ in range(num_devices + 1)]
        self.done[-1].set()
        self.calls: list[dict[str, Any]] = [{} for _ in range(num_devices)]

    def replica(self, device: int, weight: Tensor, fails: bool = False) -> Callable[[Any], Tensor]:
        """A stand-in for the model on one device. It takes x of shape (rows, in), alone, first in a tuple or in a dict.

        fails: it raises StayedAway in place of computing.
        """

        def forward(piece: Any) -> Tensor:
            x = piece[0] if isinstance(piece, tuple) else piece["x"] if isinstance(piece, dict) else piece
            self.calls[device] = modes_here() | {"met": self.has_met_all()}
            if fails:
                self.done[device].set()
                raise StayedAway("the check", reason="on purpose")
            if self.calls[device]["met"]:
                self.done[device + 1].wait(self.seconds)
                time.sleep(HEAD_START_SECONDS)
            try:
                return x @ weight
            finally:
                self.done[device].set()

        return forward

    def has_met_all(self) -> bool:
        """Waits for all replicas to start. Returns whether they all run at the same time."""
        try:
            self.start.wait(self.seconds)
        except threading.BrokenBarrierError:  # a broken barrier stays broken, so the later replicas do not wait
            return False
        return True


DTYPES = {str(dtype): dtype for dtype in (torch.float16, torch.bfloat16)}


def modes_here() -> dict[str, Any]:
    """The grad mode and the autocast dtype of this thread."""
    cast = torch.is_autocast_enabled("cpu")
    return {"grad": torch.is_grad_enabled(), "dtype": str(torch.get_autocast_dtype("cpu")) if cast else "off"}


def make_inputs(rng: CaseGenerator, num_devices: int) -> list[dict[str, Any]]:
    """Different weights for each device, so that outputs differ, and the devices that fail in each of several calls."""
    width, columns = rng.integer(2, 4), rng.integer(2, 4)
    weights = [rng.tensor(width, columns) for _ in range(num_devices)]
    inputs = [rng.tensor(rng.integer(1, 5), width) for _ in range(num_devices)]
    last = num_devices - 1
    failing = [[device] for device in sorted({0, last, rng.integer(0, last)})] + [[0, last]] * (last > 0)
    return [{"weights": weights, "inputs": inputs, "failing": failing}]


def run_submission(submitted, inputs: dict[str, Any], context: RankContext) -> dict[str, Any]:
    """Calls the learner's function in each of MODES, and once for each list of devices that are to fail.

    Returns `runs`, by mode the outputs, whether each is attached to a graph, and what the replicas noted; and
    `failures`, for each of the lists what call_with_failure returns.
    """
    weights = [weight.clone().requires_grad_() for weight in inputs["weights"]]
    # As scatter splits a batch that is a tuple, and one that is a dict. One mode tries each of the two.
    other_kinds = {
        "no_grad": [(x, 1.0) for x in inputs["inputs"]],
        "autocast": [{"x": x, "scale": 1.0} for x in inputs["inputs"]],
    }
    runs: dict[str, Any] = {}
    have_met = True
    for mode, (grad, dtype) in MODES.items():
        barrier = ReplicaBarrier(len(weights), waits=have_met)
        replicas = [barrier.replica(device, weight) for device, weight in enumerate(weights)]
        cast = torch.autocast("cpu", dtype=DTYPES.get(dtype), enabled=dtype in DTYPES)  # not enabled for "off"
        with torch.set_grad_enabled(grad), cast:
            outputs = submitted(replicas, other_kinds.get(mode) or list(inputs["inputs"]))
        output_list = outputs if isinstance(outputs, list | tuple) else []
        attached = [isinstance(output, Tensor) and output.requires_grad for output in output_list]
        runs[mode] = {"outputs": outputs, "attached": attached, "calls": barrier.calls}
        have_met = all(call.get("met") for call in barrier.calls)
    failures = []
    for failing in inputs["failing"]:
        barrier = ReplicaBarrier(len(weights), waits=have_met)
        failures.append(call_with_failure(submitted, barrier, weights, inputs["inputs"], failing))
    return {"runs": runs, "failures": failures}


def call_with_failure(
    submitted, barrier: ReplicaBarrier, weights: list[Tensor], pieces: list[Any], failing: list[int]
) -> dict[str, Any]:
    """What `parallel_apply` raises when the replicas on these devices do, and which devices the exception names.

    Its text and notes are returned only if they do not name one of them, since there are many ways to name one.
    """
    replicas = [barrier.replica(device, weight, device in failing) for device, weight in enumerate(weights)]
    try:
        submitted(replicas, list(pieces))
    except Exception as error:
        text = "\n".join([str(error), *getattr(error, "__notes__", [])])
        named = [device for device in range(len(weights)) if f"device {device}" in text]
        if len(named) == 1 and named[0] in failing:  # which of several failures comes out may be chance
            return {"raised": type(error).__name__, "named": failing, "text": ""}
        return {"raised": type(error).__name__, "named": named, "text": text}
    return {"raised": "nothing", "named": [], "text": ""}


def judge(world: JudgedWorld) -> Iterator[Judgement]:
    """Expects replicas that run at the same time, right outputs in order, the caller's modes, and the exceptions."""
    inputs, runs = world.inputs[0], world.outputs[0]["runs"]
    num_devices = len(inputs["weights"])
    for mode in MODES:
        is_right = all(call.get("met", False) for call in runs[mode]["calls"])
        yield expect(is_right, words["replicas_take_turns"], mistakes=["one_after_another"])
    outputs = runs["as usual"]["outputs"]
    outputs = outputs if isinstance(outputs, list) else []
    yield expect_equal(words["num_outputs"], num_devices, len(outputs))
    for device, (x, weight, output) in enumerate(zip(inputs["inputs"], inputs["weights"], outputs, strict=False)):
        yield expect_tensor(words["output"].format(device), x @ weight, output, rank=device)
    for device, is_attached in enumerate(runs["as usual"]["attached"]):
        yield expect(is_attached, words["output_is_detached"], rank=device)
    yield from judge_modes(runs)
    for failing, got in zip(inputs["failing"], world.outputs[0]["failures"], strict=True):
        yield from judge_failure(got, failing)


def judge_modes(runs: dict[str, Any]) -> Iterator[Judgement]:
    """Expects that each thread has the caller's grad mode and autocast dtype."""
    for mode, (grad, dtype) in MODES.items():
        for device, call in enumerate(runs[mode]["calls"]):
            # A new thread records gradients, whatever its caller does.
            mistakes = {"grad_mode_lost": True, "grad_mode_off": False}
            yield expect_equal(words["grad_mode"].format(mode), grad, call.get("grad"), rank=device, mistakes=mistakes)
            # A thread that enables autocast, but does not set its dtype, gets bfloat16 on a CPU.
            mistakes = {"autocast_lost": "off", "autocast_dtype_lost": "torch.bfloat16"}
            if dtype == "off":
                mistakes = dict.fromkeys(["autocast_always_on"], call.get("dtype"))
            what = words["autocast_dtype"].format(mode)
            yield expect_equal(what, dtype, call.get("dtype"), rank=device, mistakes=mistakes)


def judge_failure(got: dict[str, Any], failing: list[int]) -> Iterator[Judgement]:
    """Expects that the exception of a replica comes out, and that it names its device and no other."""
    is_its_own, message = got["raised"] == StayedAway.__name__, words["other_exception"]
    known = "exception_swallowed" if got["raised"] == "nothing" else "exception_rebuilt"
    yield expect(is_its_own, message.format(StayedAway.__name__, got["raised"]), rank=failing[0], mistakes=[known])
    known = "wrong_device_named" if got["named"] else "device_unnamed"
    is_right, message = not got["text"] or not is_its_own, words["device_not_named"]
    devices = " or ".join(map(str, failing))
    yield expect(is_right, message.format(devices, got["text"]), rank=failing[0], mistakes=[known])


# What Python's error says -> key of the hint: a tuple is unpacked with *, or a dict with **.
UNPACKED = dict.fromkeys(["takes 1 positional argument but", "unexpected keyword argument"], "input_unpacked")
PARALLEL_APPLY = Task(
    key="02.parallel_apply",
    signature="parallel_apply(replicas, inputs)",
    make_inputs=make_inputs,
    run_submission=run_submission,
    judge=judge,
    recognise_failure=recognise_errors(UNPACKED),
    runs_on="devices",
    must_not_change=("replicas", "inputs"),
)
