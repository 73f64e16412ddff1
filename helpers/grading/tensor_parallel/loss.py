"""07.cross_entropy: the vocabulary is cut, and the loss needs three numbers a token from the other ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from helpers.grading.drawing import Axes, Draw, laid_out
from helpers.grading.kit.judging import expect, expect_tensor, same
from helpers.grading.task import Finding, Task, Trial, Trouble, World
from helpers.grading.tensor_parallel import LAB, phases
from helpers.grading.tensor_parallel.phases import (
    BACKWARD,
    FORWARD,
    Call,
    all_reduce,
    backward,
    expect_follows,
    expect_messages,
    gathers,
    in_turn,
)
from helpers.learner.words import Words
from helpers.records import CommEvent

PADDING = -100
FAR = {"float64": 1000.0, "float32": 100.0}  # exp of it is infinite, and of its negative 0 or nearly
LOSS = Words(en="the loss", zh="损失")
OF_LOGITS = Words(en="the gradient of logits", zh="logits 的梯度")


def make(rng: Draw, world_size: int) -> list[dict[str, Any]]:
    """Four kinds in turn: see `targets_of`. Far: tokens whose logits lie 2000 apart. Narrow: hardly a word a rank."""
    kind = in_turn(rng, "near", "far", "lonely", "narrow")
    part = 1 + (world_size == 1) if kind == "narrow" else rng.integer(4, 6)
    targets = targets_of(rng, kind, part, world_size)
    far = FAR[rng.case.dtypes] * (kind == "far")
    apart = torch.where(torch.arange(len(targets)) % 2 == 0, far, -far)[:, None]
    spread = 0.5 if kind == "narrow" else 2.0  # few words must leave each other a share that float32 can tell from 0
    ranks = [spread * rng.tensor(len(targets), part) + apart for _ in range(world_size)]
    shards = [laid_out(one.to(getattr(torch, rng.case.dtypes)), rng.case.layouts) for one in ranks]
    factor = 1.5 + rng.integer(1, 9) / 10
    return [{"logits": one, "targets": targets, "factor": factor} for one in shards]


def targets_of(rng: Draw, kind: str, part: int, world_size: int) -> Tensor:
    """The first and the last word of each rank, others, and padding. Lonely: all on one rank. Narrow: up to 3, any."""
    if kind == "narrow":
        return words(rng, 0, part * world_size, rng.integer(1, 3))
    if kind == "lonely":
        return words(rng, part * rng.integer(0, world_size - 1), part, rng.integer(5, 8))
    firsts = torch.arange(world_size) * part
    targets = torch.cat([firsts, firsts + part - 1, words(rng, 0, part * world_size, rng.integer(9, 12) - world_size)])
    targets[2 * world_size + rng.integer(0, 1) :: 2] = PADDING
    return targets[torch.randperm(len(targets), generator=rng)]


def words(rng: Draw, first: int, count: int, num_tokens: int) -> Tensor:
    return torch.randint(first, first + count, (num_tokens,), generator=rng)


def act(submitted, inputs: dict[str, Any], trial: Trial) -> Iterator[None]:
    """The loss is multiplied before backward, as a scaler does."""
    logits = inputs["logits"].requires_grad_()
    loss = submitted(logits, inputs["targets"])
    trial.mark(FORWARD)
    yield
    returned = backward(trial, [loss], [torch.tensor(inputs["factor"], dtype=logits.dtype)])
    return {"returned": returned, "loss": loss, "logits": logits.grad}


# -- one process, and what known mistakes give -----------------------------------------------------------------------
class Whole:
    """Loss and gradient of one process, and the pieces that the mistakes mix up."""

    def __init__(self, call: Call):
        self.shards = [one["logits"] for one in call.inputs]
        self.targets, self.factor, self.size = call.inputs[0]["targets"], call.inputs[0]["factor"], call.size
        self.part, self.counted = self.shards[0].shape[1], self.targets != PADDING
        logits = torch.cat(self.shards, dim=1).requires_grad_()
        loss = F.cross_entropy(logits, self.targets, ignore_index=PADDING)
        (self.factor * loss).backward()
        self.loss, self.gradients = loss.detach(), logits.grad.chunk(call.size, dim=1)
        self.maxima = [shard.amax(dim=1) for shard in self.shards]
        self.largest = torch.stack(self.maxima).amax(dim=0)

    def owned(self, rank: int) -> tuple[Tensor, Tensor]:
        """For each token: whether this rank has its target, and where; where it has not, the nearest place."""
        place = self.targets - rank * self.part
        return (place >= 0) & (place < self.part), place.clamp(0, self.part - 1)

    def target(self, rank: int, top: Tensor, place: Tensor) -> Tensor:
        """The logit at `place`, below `top`."""
        return self.shards[rank].gather(1, place[:, None])[:, 0] - top

    def sums(self, rank: int, top: Tensor) -> Tensor:
        return (self.shards[rank] - top[:, None]).exp().sum(dim=1)

    def mean(self, losses: Tensor) -> Tensor:
        return losses[self.counted].mean()

    def pieces(self, tops: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Of each rank, below its own top: the sums of exp, and the targets' logits, 0 where it has none."""
        sums = [self.sums(rank, top) for rank, top in enumerate(tops)]
        targets = [self.target(rank, top, self.owned(rank)[1]) for rank, top in enumerate(tops)]
        masked = [torch.where(self.owned(rank)[0], value, 0.0) for rank, value in enumerate(targets)]
        return sums, masked

    def wrong_losses(self, rank: int) -> dict[str, Any]:
        sums, targets = self.pieces([self.largest] * self.size)
        own_sums, own_targets = self.pieces(self.maxima)
        total, target = sum(sums), sum(targets)
        nearest = sum(self.target(r, self.largest, self.owned(r)[1]) for r in range(self.size))
        modulo = sum(self.target(r, self.largest, self.targets % self.part) for r in range(self.size))
        all_tokens = total.log() - target
        return {
            "max_not_reduced": [
                self.mean(sum(own_sums).log() - sum(own_targets)),
                self.mean(sum(own_sums).log() + self.maxima[rank] - (target + self.largest)),
            ],
            "sum_not_reduced": [
                self.mean(sums[rank].log() - target),
                self.mean(own_sums[rank].log() + self.maxima[rank] - (target + self.largest)),
            ],
            "target_not_reduced": [self.mean(total.log() - targets[rank])],
            "target_not_masked": [self.mean(total.log() - nearest), self.mean(total.log() - modulo)],
            "padding_counted": [
                self.loss * self.counted.double().mean(),
                all_tokens.mean(),
                all_tokens.sum() / self.counted.sum(),
            ],
            "not_divided": all_tokens[self.counted].sum(),
            "loss_reduced": self.loss * self.size,
        }

    def wrong_gradients(self, rank: int) -> dict[str, Any]:
        right, (mine, place) = self.gradients[rank], self.owned(rank)
        scale, share = self.factor / int(self.counted.sum()), float(self.counted.double().mean())
        total = sum(self.sums(r, self.largest) for r in range(self.size))
        softmax = (self.shards[rank] - self.largest[:, None]).exp() / total[:, None]
        padding = right + scale * softmax * ~self.counted[:, None]
        through_max, nearest, modulo = right.clone(), right.clone(), right.clone()
        rows, elsewhere = torch.arange(len(right)), scale * (~mine & self.counted).to(right.dtype)
        from_max = scale * (mine.to(right.dtype) - softmax.sum(dim=1)) * self.counted
        through_max[rows, self.shards[rank].max(dim=1).indices] += from_max
        nearest[rows, place] -= elsewhere
        modulo[rows, self.targets % self.part] -= elsewhere
        return {
            "backward_reduced": right * self.size,
            "incoming_gradient_forgotten": right / self.factor,
            "max_follows_gradient": [through_max] + [torch.zeros_like(right)] * (self.part == 1),  # all of it cancels
            "target_not_masked": [nearest, modulo],
            "padding_counted": [right * share, padding * share, padding],
        }


def judge(world: World) -> Iterator[Finding]:
    call = Call(world)
    yield from expect_follows(call, "the loss")
    if call.returned:
        return
    whole = Whole(call)
    losses = [judge_loss(whole, got["loss"], rank) for rank, got in enumerate(call.outputs)]
    yield from losses
    for rank, got in enumerate(call.outputs):
        if isinstance(got["loss"], Tensor) and bool(got["loss"].isfinite().all()):
            right = whole.gradients[rank]
            wrong = {} if same(right, got["logits"]) else whole.wrong_gradients(rank)
            yield expect_tensor(OF_LOGITS, right, got["logits"], rank=rank, mistakes=wrong)
    one = whole.loss.element_size() * len(whole.targets)  # bytes
    largest, both = all_reduce(one, "MAX"), all_reduce(2 * one)
    told = {key for loss in losses for key in loss.mistakes}
    known = partial(known_by_messages, num_bytes=one) if all(loss.ok for loss in losses) else lambda events: told
    yield from expect_messages(call, FORWARD, [largest, *[all_reduce(one)] * 2], [largest, both], known=known)
    yield from expect_messages(call, BACKWARD, [], known=lambda events: ["backward_reduced"])


def judge_loss(whole: Whole, got: Any, rank: int) -> Finding:
    if isinstance(got, Tensor) and got.numel() == 1 and not got.isfinite():
        en, zh = f"the loss is {got.item()}", f"损失是 {got.item()}"
        return expect(False, en, zh, rank=rank, mistakes=["out_of_range"])
    wrong = {} if same(whole.loss, got) else whole.wrong_losses(rank)
    return expect_tensor(LOSS, whole.loss, got, rank=rank, mistakes=wrong)


def known_by_messages(events: Sequence[CommEvent], num_bytes: int) -> list[str]:
    """Mistakes that such messages in forward tell. num_bytes: of a number for each token."""
    summed = sum(event.payload_bytes for event in events if event.reduce_op == "SUM")
    if gathers(events) or summed >= 3 * num_bytes and not any(event.payload_bytes <= num_bytes for event in events):
        return ["gathers_the_logits"]
    if not any(event.reduce_op == "MAX" for event in events):
        return ["max_not_reduced", "out_of_range"]
    if summed == num_bytes:
        return ["sum_not_reduced", "target_not_reduced"]
    return ["loss_reduced"] if summed > 2 * num_bytes else []


def recognise(trouble: Trouble) -> list[str]:
    known = ["target_not_shifted"] if "index" in trouble.text and "out of bounds" in trouble.text else []
    return phases.recognise(trouble) + known


AXES = Axes(dtypes=("float64", "float32"), layouts=("contiguous", "transposed"), values=("normal", "zero"), calls=4)
CROSS_ENTROPY = Task(
    key="07.cross_entropy",
    signature="vocab_parallel_cross_entropy(logits, targets)",
    make=make,
    axes=AXES,
    keeps=("logits", "targets"),
    act=act,
    judge=judge,
    recognise=recognise,
    hints=LAB.hints(
        "unknown_to_autograd",
        "no_gradient",
        "target_not_shifted",
        "gathers_the_logits",
        "max_not_reduced",
        "sum_not_reduced",
        "target_not_reduced",
        "target_not_masked",
        "padding_counted",
        "not_divided",
        "loss_reduced",
        "backward_reduced",
        "incoming_gradient_forgotten",
        "max_follows_gradient",
        "out_of_range",
    ),
)
