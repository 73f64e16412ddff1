"""Judges 07.cross_entropy: a loss of which each rank holds the logits of a vocabulary shard.

A check draws logits and targets of four kinds, runs forward and backward on live ranks, and compares the loss, the
gradient and the messages with torch's cross_entropy in one process. From the other ranks a token needs three numbers:
the largest logit, the sum of exp, and the logit of its target.

From forward_backward.py: a `ForwardBackward` is one case as it ran on all ranks: inputs and outputs with one item per
rank, and the messages of each pass. The decorator `judges_both_passes` makes a task's judge of a function that judges a
ForwardBackward. `by_case_number(rng, a, b)` is a in the first case, b in the second, and so on in turn. `all_reduce(96,
"MAX")` describes an all-reduce of 96 bytes, and `expect_messages` compares the messages of a pass with lists of such
descriptions.

How to read it. Each task has three functions. `make_…` draws the inputs of every rank for one case, `run_…` calls the
learner's answer, `submitted`, on one rank, and `judge_…` runs in another process: it compares what the ranks returned
with the right values, and yields one Judgement per comparison. A case is one choice of sizes, dtypes and memory layouts
(`rng.case`), and `rng` draws the numbers. `words[…]` is a text of messages.yaml, in English and Chinese.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from helpers.grading.kit.comparisons import expect
from helpers.grading.kit.tensor_comparisons import expect_tensor, is_close
from helpers.grading.task import Judgement, RankContext, RunFailure, Task, Variations
from helpers.grading.tensor_cases import CaseGenerator, with_layout
from helpers.grading.tensor_parallel import LAB
from helpers.grading.tensor_parallel.forward_backward import (
    BACKWARD,
    FORWARD,
    ForwardBackward,
    all_reduce,
    by_case_number,
    expect_messages,
    judges_both_passes,
    recognise_hidden_collective,
    run_backward,
)

words = LAB.messages

PADDING = -100  # the target of a token that does not count; torch's ignore_index
# Logits so far from 0 that exp of them overflows, and exp of their negatives is 0 or nearly 0.
FAR = {"float64": 1000.0, "float32": 100.0}


def make_inputs(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Each rank's logits, the targets, and a factor for the loss, in four kinds that take turns.

    "near" and "far": targets at both ends of every shard, and padding. In "far" every other token's logits lie around
    FAR and the rest around -FAR, so exp works only after each token's own maximum is subtracted. "lonely": all targets
    on one rank. "narrow": one vocabulary entry per rank, or two with one rank.
    """
    kind = by_case_number(rng, "near", "far", "lonely", "narrow")
    narrow_width = 2 if world_size == 1 else 1
    width = narrow_width if kind == "narrow" else rng.integer(4, 6)
    targets = draw_targets(rng, kind, width, world_size)
    far = FAR[rng.case.dtypes] if kind == "far" else 0.0
    offsets = torch.where(torch.arange(len(targets)) % 2 == 0, far, -far)[:, None]
    # With few entries a large spread could leave one of them a probability that is too near to 0 or 1 for float32.
    spread = 0.5 if kind == "narrow" else 2.0
    ranks = [spread * rng.tensor(len(targets), width) + offsets for _ in range(world_size)]
    shards = [with_layout(one.to(getattr(torch, rng.case.dtypes)), rng.case.layouts) for one in ranks]
    factor = 1.5 + rng.integer(1, 9) / 10  # not 1, so that an answer must use the gradient that it gets
    return [{"logits": one, "targets": targets, "factor": factor} for one in shards]


def draw_targets(rng: CaseGenerator, kind: str, width: int, world_size: int) -> Tensor:
    """The target of each token, for shards of `width` entries. See `make_inputs` for the kinds."""
    if kind == "narrow":
        return draw_entries(rng, 0, width * world_size, rng.integer(1, 3))
    if kind == "lonely":
        return draw_entries(rng, width * rng.integer(0, world_size - 1), width, rng.integer(5, 8))
    firsts = torch.arange(world_size) * width  # the first entry of each shard
    others = draw_entries(rng, 0, width * world_size, rng.integer(9, 12) - world_size)
    targets = torch.cat([firsts, firsts + width - 1, others])
    targets[2 * world_size + rng.integer(0, 1) :: 2] = PADDING  # every other of `others`
    return targets[torch.randperm(len(targets), generator=rng)]


def draw_entries(rng: CaseGenerator, first: int, count: int, num_tokens: int) -> Tensor:
    """For each token one of the `count` vocabulary entries from `first` on."""
    return torch.randint(first, first + count, (num_tokens,), generator=rng)


def run_submission(submitted, inputs: dict[str, Any], context: RankContext) -> Iterator[None]:
    """Runs backward from the loss times a factor, as a gradient scaler does. At the `yield` another case may run."""
    logits = inputs["logits"].requires_grad_()
    loss = submitted(logits, inputs["targets"])
    context.mark(FORWARD)
    yield
    returned_instead = run_backward(context, [loss], [torch.tensor(inputs["factor"], dtype=logits.dtype)])
    return {"returned_instead": returned_instead, "loss": loss, "logits_gradient": logits.grad}


# -- the judge -------------------------------------------------------------------------------------------------------
class CrossEntropyReference:
    """Loss and gradients of one process.

    gradients: for each rank the right gradient of its logits. counted: for each token whether it counts, which padding
    does not. width: the number of vocabulary entries of a rank. factor: by which the loss is multiplied.
    """

    def __init__(self, run: ForwardBackward):
        self.targets, self.factor = run.inputs[0]["targets"], run.inputs[0]["factor"]
        self.width, self.counted = run.inputs[0]["logits"].shape[1], self.targets != PADDING
        self.logits = torch.cat([one["logits"] for one in run.inputs], dim=1).requires_grad_()
        loss = F.cross_entropy(self.logits, self.targets, ignore_index=PADDING)
        (self.factor * loss).backward()
        self.loss, self.gradients = loss.detach(), self.logits.grad.chunk(run.size, dim=1)

    @property
    def is_far(self) -> bool:
        """Whether the logits are so large that exp overflows."""
        return bool(self.logits.abs().max() > min(FAR.values()) / 2)


@judges_both_passes("the loss")
def judge(run: ForwardBackward) -> Iterator[Judgement]:
    """The forward sends a maximum and then two sums, which may be one message, and the backward no message."""
    reference = CrossEntropyReference(run)
    for rank, got in enumerate(run.outputs):
        yield judge_loss(reference, got["loss"], rank)
        if isinstance(got["loss"], Tensor) and bool(got["loss"].isfinite().all()):
            yield judge_gradient(reference, got["logits_gradient"], rank)
    allowed = []
    for num_tokens in (len(reference.targets), int(reference.counted.sum())):  # padding may be left out of the messages
        num_bytes = reference.loss.element_size() * num_tokens  # one number per token
        maximum, one_sum, both_sums = all_reduce(num_bytes, "MAX"), all_reduce(num_bytes), all_reduce(2 * num_bytes)
        allowed += [maximum, one_sum, one_sum], [maximum, both_sums]
    yield from expect_messages(run, "loss", FORWARD, *allowed, gather="gathers_the_logits")
    yield from expect_messages(run, "loss", BACKWARD, [])
    # The hint is named here, since with MIN outputs and bytes are right, and nothing but the operation is wrong.
    for rank, events in enumerate(run.events):
        for event in events[FORWARD]:
            is_known = event.reduce_op in (None, "MAX", "SUM")
            message = words["other_operation"].format(event.reduce_op)
            yield expect(is_known, message, rank=rank, mistakes=["other_than_max"])


def judge_loss(reference: CrossEntropyReference, got: Any, rank: int) -> Judgement:
    """Compares a rank's loss. With logits that are far from 0, NaN or infinity shows that exp has overflowed.

    The hint about that is named here, because whatever was subtracted from the logits leads to it.
    """
    what = words["loss"].format(int(reference.counted.sum()), len(reference.targets), reference.width)
    judgement = expect_tensor(what, reference.loss, got, rank=rank)
    has_overflowed = reference.is_far and isinstance(got, Tensor) and not got.isfinite().all()
    return dataclasses.replace(judgement, mistakes=("out_of_range",)) if has_overflowed else judgement


def judge_gradient(reference: CrossEntropyReference, got: Any, rank: int) -> Judgement:
    """Compares the gradient of a rank's logits, and says of which token the worst element is."""
    right = reference.gradients[rank]
    what = words["gradient_of_logits"].format(f"{reference.factor:.1f}", int(reference.counted.sum()))
    if isinstance(got, Tensor) and got.shape == right.shape and not is_close(right, got):
        token = int((got.double() - right.double()).abs().amax(dim=1).argmax())
        owner, column = divmod(int(reference.targets[token]), reference.width)
        kind = "target" if reference.counted[token] else "padding"
        what += words[f"token.{kind}"].format(token, column, owner)
    return expect_tensor(what, right, got, rank=rank)


def recognise_failure(failure: RunFailure) -> list[str]:
    """Recognises torch's errors about an index that is out of bounds, about shapes, and about a hidden collective."""
    known = ["target_not_shifted"] if "index" in failure.text and "out of bounds" in failure.text else []
    known += ["tokens_and_entries"] if "must match the size of tensor" in failure.text else []
    return recognise_hidden_collective(failure) + known


CROSS_ENTROPY = Task(
    key="07.cross_entropy",
    signature="vocab_parallel_cross_entropy(logits, targets)",
    make_inputs=make_inputs,
    variations=Variations(
        dtypes=("float64", "float32"), layouts=("contiguous", "transposed"), values=("normal", "zero"), min_cases=4
    ),
    must_not_change=("logits", "targets"),
    run_submission=run_submission,
    judge=judge,
    recognise_failure=recognise_failure,
)
