"""07.cross_entropy: the vocabulary is cut, and the loss needs three numbers a token from the other ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from helpers.grading.kit import making
from helpers.grading.kit.judging import expect, expect_equal, expect_tensor
from helpers.grading.kit.messages import each_call
from helpers.grading.task import Finding, Task, Trial, Trouble, World
from helpers.grading.tensor_parallel import hints, phases
from helpers.grading.tensor_parallel.phases import (
    BACKWARD,
    FLOAT,
    FORWARD,
    PHASES,
    Call,
    all_reduce,
    autograd_sees_all,
    expect_follows,
    expect_messages,
    message,
    there_and_back,
)
from helpers.words import Words

PADDING = -100
FAR = 1000.0  # exp(1000) is infinite, exp(-1000) is 0, in float64 too
LOSS = Words(en="the loss", zh="损失")
OF_LOGITS = Words(en="the gradient of logits", zh="logits 的梯度")


def make(rng: torch.Generator, world_size: int) -> list[dict[str, Any]]:
    """Targets on every rank and padding; then tokens whose logits lie 2000 apart."""
    ranks: list[list[dict[str, Any]]] = [[] for _ in range(world_size)]
    for far in (False, True):
        part, num_tokens = making.integer(rng, 4, 6), making.integer(rng, 9, 12)
        logits = 2 * making.normal(rng, num_tokens, world_size * part)
        if far:
            logits += torch.where(torch.arange(num_tokens) % 2 == 0, FAR, -FAR)[:, None].double()
        targets = torch.randint(world_size * part, (num_tokens,), generator=rng)
        targets[:world_size] = torch.arange(world_size) * part + torch.randint(part, (world_size,), generator=rng)
        targets[making.integer(rng, world_size + 1, num_tokens - 2) :: 3] = PADDING
        factor = 1.5 + making.integer(rng, 1, 9) / 10
        for rank, own in enumerate(logits.chunk(world_size, dim=1)):
            ranks[rank].append({"logits": own.contiguous(), "targets": targets, "factor": factor, "far": far})
    return [{"calls": one} for one in ranks]


@autograd_sees_all()
def act_call(submitted, inputs: dict[str, Any], trial: Trial) -> dict[str, Any]:
    """The loss is multiplied before backward, as a scaler does."""
    logits = inputs["logits"].clone().requires_grad_()
    loss = submitted(logits, inputs["targets"].clone())
    factor = torch.tensor(inputs["factor"], dtype=torch.float64)
    return {"returned": there_and_back(trial, loss, factor), "loss": loss, "logits": logits.grad}


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
        scale = self.factor / int(self.counted.sum())
        spread = self.sums(rank, self.largest) / sum(self.sums(r, self.largest) for r in range(self.size))
        through_max, everywhere = right.clone(), right.clone()
        rows = torch.arange(len(right))
        through_max[rows, self.shards[rank].argmax(dim=1)] += scale * (mine.double() - spread) * self.counted
        everywhere[rows, place] -= scale * (~mine & self.counted).double()
        return {
            "backward_reduced": right * self.size,
            "incoming_gradient_forgotten": right / self.factor,
            "max_follows_gradient": through_max,
            "target_not_masked": everywhere,
        }


def judge(world: World) -> Iterator[Finding]:
    for call in phases.calls(world):
        yield from expect_follows(call, "the loss")
        if call.returned:
            return
        whole = Whole(call)
        for rank, got in enumerate(call.outputs):
            yield judge_loss(whole, got["loss"], rank)
            wrong = whole.wrong_gradients(rank) if not call.inputs[0]["far"] else {}
            finite = isinstance(got["loss"], Tensor) and bool(got["loss"].isfinite().all())
            if finite:
                yield expect_tensor(OF_LOGITS, whole.gradients[rank], got["logits"], rank=rank, mistakes=wrong)
        yield from judge_forward(call, whole)
        yield from expect_messages(call, BACKWARD, [], mistakes=back_again(call, whole))


def judge_loss(whole: Whole, got: Any, rank: int) -> Finding:
    if isinstance(got, Tensor) and got.numel() == 1 and not got.isfinite():
        en, zh = f"the loss is {got.item()}", f"损失是 {got.item()}"
        return expect(False, en, zh, rank=rank, mistakes=["out_of_range"])
    return expect_tensor(LOSS, whole.loss, got, rank=rank, mistakes=whole.wrong_losses(rank))


def judge_forward(call: Call, whole: Whole) -> Iterator[Finding]:
    """The maximum first, then two sums, in one message or in two."""
    n = len(whole.targets)
    apart, together = [all_reduce(n, "MAX"), *[all_reduce(n)] * 2], [all_reduce(n, "MAX"), all_reduce(2 * n)]
    for rank, events in enumerate(call.events):
        got = [message(event) for event in events[FORWARD]]
        known = {}
        if any(event.payload_bytes >= FLOAT * n * whole.part for event in events[FORWARD]):
            known["gathers_the_logits"] = got
        expected = together if got == together else [] if call.size == 1 and not got else apart
        yield expect_equal(PHASES[FORWARD], expected, got, rank=rank, mistakes=known)


def back_again(call: Call, whole: Whole) -> dict[str, list[str]]:
    n = len(whole.targets)
    return {"backward_reduced": [all_reduce(n)] * 2}


def recognise(trouble: Trouble) -> list[str]:
    known = ["target_not_shifted"] if "index" in trouble.text and "out of bounds" in trouble.text else []
    return phases.recognise(trouble) + known


CROSS_ENTROPY = Task(
    key="07.cross_entropy",
    signature="vocab_parallel_cross_entropy(logits, targets)",
    make=make,
    act=each_call(act_call),
    judge=judge,
    recognise=recognise,
    hints=hints.of(
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
