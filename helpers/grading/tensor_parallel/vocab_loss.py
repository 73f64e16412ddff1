"""Judges 07.cross_entropy: a loss of which each rank holds the logits of a vocabulary shard.

A check draws logits and targets of four kinds, runs forward and backward on live ranks, and compares the loss, the
gradient and the messages with torch's cross_entropy in one process. From the other ranks a token needs three numbers:
the largest logit, the sum of exp, and the logit of its target. To *mask* a target means to use 0 in place of its logit
on the ranks that do not have it.

From forward_backward.py: a `ForwardBackward` is one case as it ran on all ranks: inputs and outputs with one item per
rank, and the messages of each pass. The decorator `judges_both_passes` makes a task's judge of a function that judges a
ForwardBackward. `by_case_number(rng, a, b)` is a in the first case, b in the second, and so on in turn. `all_reduce(96,
"MAX")` describes an all-reduce of 96 bytes, and `expect_messages` compares the messages of a pass with lists of such
descriptions.

How to read it. Each task has three functions. `make_…` draws the inputs of every rank for one case, `run_…` calls the
learner's answer, `submitted`, on one rank, and `judge_…` runs in another process: it compares what the ranks returned
with the right values, and yields one Judgement per comparison. A case is one choice of sizes, dtypes and memory layouts
(`rng.case`), and `rng` draws the numbers. A mistake is a wrong solution that learners often write. Its name, such as
"padding_counted", is the key of its hint in hints.yaml. The `expect…` functions compare one value; their `mistakes`
maps such keys to the value that the mistake gives. `words[…]` is a text of messages.yaml, in English and Chinese.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from helpers.grading.cases import CaseGenerator, Variations, with_layout
from helpers.grading.kit.comparisons import expect, expect_tensor, is_close
from helpers.grading.task import Judgement, RankContext, RunFailure, Task
from helpers.grading.tensor_parallel import LAB
from helpers.grading.tensor_parallel.forward_backward import (
    BACKWARD,
    FORWARD,
    ForwardBackward,
    all_reduce,
    by_case_number,
    describe,
    expect_messages,
    has_all_gather,
    judges_both_passes,
    recognise_hidden_collective,
    run_backward,
)
from helpers.records import CommEvent

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


# -- one process, and what known mistakes give -----------------------------------------------------------------------
class CrossEntropyReference:
    """Loss and gradients of one process, and what each known mistake gives instead.

    shards, gradients, maxima: for each rank its logits (tokens, entries), their right gradient, and the largest logit
    of each token among them. largest: the largest logit of each token on any rank. counted: for each token whether it
    counts, which padding does not. factor: by which the loss is multiplied. size: the number of ranks.
    """

    def __init__(self, run: ForwardBackward):
        self.shards = [one["logits"] for one in run.inputs]
        self.targets, self.factor, self.size = run.inputs[0]["targets"], run.inputs[0]["factor"], run.size
        self.width, self.counted = self.shards[0].shape[1], self.targets != PADDING
        logits = torch.cat(self.shards, dim=1).requires_grad_()
        loss = F.cross_entropy(logits, self.targets, ignore_index=PADDING)
        (self.factor * loss).backward()
        self.loss, self.gradients = loss.detach(), logits.grad.chunk(run.size, dim=1)
        self.maxima = [shard.amax(dim=1) for shard in self.shards]
        self.largest = torch.stack(self.maxima).amax(dim=0)

    def local_targets(self, rank: int) -> tuple[Tensor, Tensor]:
        """For each token whether this rank has its target, and in which column; if not, the column nearest to it."""
        column = self.targets - rank * self.width
        return (column >= 0) & (column < self.width), column.clamp(0, self.width - 1)

    def logits_at(self, rank: int, maximum: Tensor, column: Tensor) -> Tensor:
        """The rank's logit in this column of each token, less `maximum`."""
        return self.shards[rank].gather(1, column[:, None])[:, 0] - maximum

    def sums(self, rank: int, maximum: Tensor) -> Tensor:
        """For each token the sum of exp(logit - maximum) over the rank's logits."""
        return (self.shards[rank] - maximum[:, None]).exp().sum(dim=1)

    def mean(self, losses: Tensor) -> Tensor:
        """The mean over the tokens that count."""
        return losses[self.counted].mean()

    def sums_and_targets(self, maxima: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """For each rank the sum of exp of each token, and the logit of its target, or 0 if another rank has that.

        From its logits each rank subtracts its entry of the argument `maxima`, which has a maximum for each token.
        """
        sums = [self.sums(rank, maximum) for rank, maximum in enumerate(maxima)]
        targets = []
        for rank, maximum in enumerate(maxima):
            is_local, column = self.local_targets(rank)
            targets.append(torch.where(is_local, self.logits_at(rank, maximum, column), 0.0))
        return sums, targets

    def wrong_borders(self, rank: int) -> list[Tensor]:
        """For each token whether a rank has it that takes one entry too many, or too few, at an end of its shard."""
        column = self.targets - rank * self.width
        ends = (0, self.width + 1), (-1, self.width), (1, self.width), (0, self.width - 1)
        return [(column >= first) & (column < end) for first, end in ends]

    def wrong_losses(self, rank: int) -> dict[str, Any]:
        """The loss that each mistake gives on this rank; a mistake that is made in several ways has a list."""
        sums, targets = self.sums_and_targets([self.largest] * self.size)
        local_sums, local_targets = self.sums_and_targets(self.maxima)  # each rank subtracts its own maximum
        total, target = sum(sums), sum(targets)  # what the all-reduces of a right answer give
        # Without a mask every rank adds some logit: of the column nearest to the target, or of the target modulo width.
        nearest = [self.logits_at(r, self.largest, self.local_targets(r)[1]) for r in range(self.size)]
        modulo = [self.logits_at(r, self.largest, self.targets % self.width) for r in range(self.size)]
        # With a wrong border a rank takes one target too many or too few.
        masks = [torch.stack(one) for one in zip(*map(self.wrong_borders, range(self.size)), strict=True)]
        all_tokens = total.log() - target  # the loss of each token, with those of padding
        is_local = self.local_targets(rank)[0]
        return {
            "max_not_reduced": [  # each rank subtracts its own maximum, also from the target's logit or from exp alone
                self.mean(sum(local_sums).log() - sum(local_targets)),
                self.mean(sum(local_sums).log() + self.maxima[rank] - (target + self.largest)),
            ],
            "sum_not_reduced": [  # with the largest logit of all ranks subtracted, or with the rank's own
                self.mean(sums[rank].log() - target),
                self.mean(local_sums[rank].log() + self.maxima[rank] - (target + self.largest)),
            ],
            "target_not_reduced": [self.mean(total.log() - targets[rank])],
            "max_on_one_side": [self.mean(all_tokens - self.largest), self.mean(all_tokens + self.largest)],
            # In both sum and divisor, or in the sum.
            "own_targets_only": [(all_tokens * is_local).sum() / mask.sum() for mask in (is_local, self.counted)],
            "border_of_shards": [
                self.mean(total.log() - torch.where(mask, torch.stack(nearest), 0.0).sum(dim=0)) for mask in masks
            ],
            "target_not_masked": [self.mean(total.log() - sum(logits)) for logits in (nearest, modulo)],
            "padding_counted": [  # in the divisor, in both sum and divisor, in the sum
                self.loss * self.counted.double().mean(),
                all_tokens.mean(),
                all_tokens.sum() / self.counted.sum(),
            ],
            "not_divided": all_tokens[self.counted].sum(),
            "loss_reduced": self.loss * self.size,
            "averaged": self.loss / self.size,
        }

    def wrong_gradients(self, rank: int) -> dict[str, Any]:
        """The gradient of this rank's logits that each mistake gives.

        The right one is scale * (softmax - 1 at the target), and 0 for padding.
        """
        right, (is_local, column) = self.gradients[rank], self.local_targets(rank)
        # scale: the gradient that each token's loss gets. counted_share: of all tokens, those that count.
        scale, counted_share = self.factor / int(self.counted.sum()), float(self.counted.double().mean())
        own_share = int(self.counted.sum()) / max(1, int(is_local.sum()))  # tokens that count, per target on this rank
        total = sum(self.sums(r, self.largest) for r in range(self.size))
        softmax = (self.shards[rank] - self.largest[:, None]).exp() / total[:, None]
        of_softmax, rows = scale * softmax * self.counted[:, None], torch.arange(len(right))

        def subtracted(mask: Tensor, at: Tensor) -> Tensor:
            """The gradient if 1 is subtracted, for the tokens in `mask`, in the columns `at`."""
            gradient = of_softmax.clone()
            gradient[rows, at] -= scale * mask.to(right.dtype)
            return gradient

        padding = right + scale * softmax * ~self.counted[:, None]  # tokens of padding get a gradient as well
        # "max_follows_gradient": the subtracted maximum is not detached, so a gradient flows through it. It cancels
        # only in the sum over all ranks. With one entry per shard it cancels all of that entry's gradient.
        through_max = right.clone()
        from_max = scale * (is_local.to(right.dtype) - softmax.sum(dim=1)) * self.counted
        through_max[rows, self.shards[rank].max(dim=1).indices] += from_max
        zeros = [torch.zeros_like(right)] if self.width == 1 else []
        return {
            "backward_reduced": right * self.size,
            "incoming_gradient_forgotten": right / self.factor,
            "max_follows_gradient": [through_max, *zeros],
            "border_of_shards": [subtracted(mask, column) for mask in self.wrong_borders(rank)],
            "half_of_gradient": [of_softmax, right - of_softmax],
            # Also for targets on other ranks, at the nearest of the rank's columns, or at the target modulo width.
            "target_not_masked": [subtracted(self.counted, at) for at in (column, self.targets % self.width)],
            "averaged": right / self.size,
            "own_targets_only": [right * is_local[:, None] * share for share in (own_share, 1)],
            # In the divisor, in both sum and divisor, in the sum.
            "padding_counted": [right * counted_share, padding * counted_share, padding],
        }


# -- the judge -------------------------------------------------------------------------------------------------------
@judges_both_passes("the loss")
def judge(run: ForwardBackward) -> Iterator[Judgement]:
    """In forward a maximum and then two sums, which may be one message; no message in backward.

    Where losses are wrong, the hints that explain them also count as explanations of wrong messages.
    """
    reference = CrossEntropyReference(run)
    num_bytes = reference.loss.element_size() * len(reference.targets)  # one number per token
    maximum, one_sum, both_sums = all_reduce(num_bytes, "MAX"), all_reduce(num_bytes), all_reduce(2 * num_bytes)
    allowed = [maximum, one_sum, one_sum], [maximum, both_sums]
    forward = [list(map(describe, events[FORWARD])) for events in run.events]
    pairs = enumerate(zip(run.outputs, forward, strict=True))
    losses = [judge_loss(reference, got["loss"], rank, messages in allowed) for rank, (got, messages) in pairs]
    yield from losses
    for rank, got in enumerate(run.outputs):
        if isinstance(got["loss"], Tensor) and bool(got["loss"].isfinite().all()):
            yield judge_gradient(reference, got["logits_gradient"], rank)
    keys = {key for loss in losses for key in loss.mistakes}  # hints that explain the losses
    is_right = all(loss.ok for loss in losses)
    in_backward = "backward_reduced"
    if forward[0][1:] in ([one_sum] * 2, [both_sums]) and "(MAX)" not in forward[0][0]:
        keys.add("other_than_max")
    if forward[0] == [maximum] and run.events[0][BACKWARD]:
        keys.add(in_backward := "operators_swapped")

    def known_in_forward(events: Sequence[CommEvent]) -> set[str]:
        return keys or set(mistakes_of_forward(events, num_bytes) if is_right else [])

    yield from expect_messages(run, "loss", FORWARD, *allowed, mistakes_of=known_in_forward)
    yield from expect_messages(run, "loss", BACKWARD, [], mistakes_of=lambda events: [in_backward])


UNREDUCED = ("max_not_reduced", "sum_not_reduced", "target_not_reduced")  # something is this rank's own


def judge_loss(reference: CrossEntropyReference, got: Any, rank: int, has_right_messages: bool) -> Judgement:
    """Compares a rank's loss. With logits that are far from 0, NaN or infinity shows that exp has overflowed.

    has_right_messages: then what looks as if it had not been reduced was reduced, and the sum was not used.
    """
    what = words["loss"].format(int(reference.counted.sum()), len(reference.targets), reference.width)
    if isinstance(got, Tensor) and got.numel() == 1 and not got.isfinite():
        is_far = reference.largest.abs().max() > min(FAR.values()) / 2
        known = ["out_of_range"] if is_far else []
        if not reference.local_targets(rank)[0].any():  # then the mean over them is NaN
            known.append("own_targets_only")
        return expect(
            False, words["loss_is"].format(what, got.item(), reference.loss.item()), rank=rank, mistakes=known
        )
    wrong = {} if is_close(reference.loss, got) else reference.wrong_losses(rank)
    if wrong and has_right_messages:
        wrong["sum_not_used"] = [wrong.pop(key) for key in UNREDUCED]
    return expect_tensor(what, reference.loss, got, rank=rank, mistakes=wrong)


def judge_gradient(reference: CrossEntropyReference, got: Any, rank: int) -> Judgement:
    """Compares the gradient of a rank's logits, and says of which token the worst element is."""
    right, tokens = reference.gradients[rank], ""
    if is_close(right, got):
        return expect_tensor(words["gradient_of_logits"], right, got, rank=rank)
    what = words["gradient_of_logits"].format(f"{reference.factor:.1f}", int(reference.counted.sum()))
    if isinstance(got, Tensor) and got.shape == right.shape:
        token = int((got.double() - right.double()).abs().amax(dim=1).argmax())
        owner, column = divmod(int(reference.targets[token]), reference.width)
        is_padding = not reference.counted[token]
        tokens = words["token.padding" if is_padding else "token.target"].format(token, column, owner)
    return expect_tensor(what + tokens, right, got, rank=rank, mistakes=reference.wrong_gradients(rank))


def mistakes_of_forward(events: Sequence[CommEvent], num_bytes: int) -> list[str]:
    """The hints that explain wrong messages in forward. num_bytes: of a message with one number per token.

    Right are a maximum and two sums, each with one number per token. Sums with three numbers per token or more, without
    any message as small as that, must hold logits.
    """
    summed = sum(event.payload_bytes for event in events if event.reduce_op == "SUM")
    has_small = any(event.payload_bytes <= num_bytes for event in events)
    if has_all_gather(events) or (summed >= 3 * num_bytes and not has_small):
        return ["gathers_the_logits"]
    if not any(event.reduce_op == "MAX" for event in events):
        return ["max_not_reduced", "out_of_range"]
    if summed == num_bytes and len(events) < 3:
        return ["sum_not_reduced", "target_not_reduced"]
    return ["loss_reduced"] if summed > 2 * num_bytes else []


def recognise_failure(failure: RunFailure) -> list[str]:
    """By torch's errors about an index that is out of bounds, about shapes, and about a hidden collective."""
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
