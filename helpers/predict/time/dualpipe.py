"""Predicts the step of DualPipe, a pipeline that overlaps the forward of one micro-batch with the backward of another.

Micro-batches enter at both ends of a pipeline of p stages. Rank r has the stages r and p - 1 - r, so weights exist
twice. In the steady state a rank computes the forward of a micro-batch of one direction together with the backward of
one of the other direction, and the all-to-alls of each hide behind the compute of both. While the pipeline fills and
drains, passes run alone and their all-to-alls are exposed.

Sources: DeepSeek-AI 2024 (DeepSeek-V3), section 3.2.1; github.com/deepseek-ai/DualPipe, whose order of actions gives
the numbers of passes below, and whose README gives the bubble. Zhao et al. 2025 (Insights into DeepSeek-V3), table 4,
has the measured parts of a step, which are the fields of `DualPipeParts`. The paper does not say of which rank they
are; here they are means over the ranks. Memory is not predicted here: DualPipe holds the weights of two stages, and
activations of p + 1 micro-batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from helpers.predict.time.stacks import Stack
from helpers.specs import Plan


class StageSeconds(NamedTuple):
    """Seconds of one micro-batch on one pipeline stage.

    forward, backward_input, backward_weight: each alone, with exposed all-to-alls and sends. overlapped: a forward and
    both parts of a backward together. compute, exchange: of the two, without and with the all-to-alls alone; the longer
    one is `overlapped`.
    """

    forward: float
    backward_input: float
    backward_weight: float
    compute: float
    exchange: float

    @property
    def overlapped(self) -> float:
        """Seconds of an overlapped pair: compute, or the all-to-alls if they take longer."""
        return max(self.compute, self.exchange)


class DualPipeParts(NamedTuple):
    """The parts of a step in seconds, as means over the ranks: passes alone, overlapped pairs, waiting, the rest.

    Zhao et al. 2025 call them 1F, bubble, 1B, 1W, 1F1B and opt. optimizer: with the traffic between replicas.
    """

    forward: float
    bubble: float
    backward_input: float
    backward_weight: float
    overlapped: float
    optimizer: float

    @property
    def seconds(self) -> float:
        """Seconds of the step."""
        return sum(self)


def runs_dualpipe(stack: Stack, plan: Plan) -> bool:
    """Whether the plan runs as DualPipe: one chunk, p and the micro-batches are even, and these are 2 p or more."""
    is_even = plan.pp % 2 == plan.num_microbatches % 2 == 0
    is_pipeline = plan.pp > 1 == plan.num_chunks
    return stack.dualpipe and is_pipeline and is_even and plan.num_microbatches >= 2 * plan.pp


def passes_alone(stages: int, rank: int) -> int:
    """How many forwards of a rank run alone; as many backwards do, and all other micro-batches are overlapped pairs.

    With h = p / 2, a rank r of the first half fills with 2 (h - r - 1) forwards and r + 1 pairs of them, then has
    h - r - 1 more between backwards; r + p - 1 stands for the other half.
    """
    nearest = min(rank, stages - 1 - rank)  # ranks between this one and the nearer end
    return stages + stages // 2 - nearest - 1


def dualpipe_bubble(stages: int, *, overlapped: float, backward: float, backward_weight: float) -> float:
    """Seconds of waiting of equal stages: (p/2 - 1) (F&B + B - 3 W), from DualPipe's README.

    overlapped: F&B. backward: B, both parts. backward_weight: W.
    """
    return (stages // 2 - 1) * (overlapped + backward - 3 * backward_weight)


def dualpipe_parts(stages: Sequence[StageSeconds], microbatches: int, *, optimizer: float) -> DualPipeParts:
    """The parts of a step with `microbatches` micro-batches over both directions.

    optimizer: seconds of what follows the last backward. All ranks finish with the slowest one, so what a faster rank
    waits for it is part of the bubble, too.
    """
    ranks = [_mean(stages[rank], stages[-1 - rank]) for rank in range(len(stages) // 2)]
    alone = [passes_alone(len(stages), rank) for rank in range(len(ranks))]
    passes = list(zip(ranks, alone, strict=True))
    forward = fmean(number * one.forward for one, number in passes)
    backward_input = fmean(number * one.backward_input for one, number in passes)
    backward_weight = fmean(number * one.backward_weight for one, number in passes)
    overlapped = fmean((microbatches - number) * one.overlapped for one, number in passes)
    work = forward + backward_input + backward_weight + overlapped
    slowest = max(ranks, key=lambda one: one.overlapped)
    bubble = max(0.0, _pipeline_seconds(slowest, len(stages), microbatches) - work)
    return DualPipeParts(forward, bubble, backward_input, backward_weight, overlapped, optimizer)


def _mean(*stages: StageSeconds) -> StageSeconds:
    """The mean of the two stages of a rank, which has half of the micro-batches on each."""
    return StageSeconds(*map(fmean, zip(*stages, strict=True)))


def _pipeline_seconds(each: StageSeconds, stages: int, microbatches: int) -> float:
    """Seconds of all passes if all stages are like `each`, by the rank in the middle, whose waiting the README gives.

    Of its passes p + 1 run alone: those of `passes_alone`, and one that has no partner yet.
    """
    backward = each.backward_input + each.backward_weight
    alone = stages + 1
    work = alone * (each.forward + backward) + (microbatches - alone) * each.overlapped
    waiting = dualpipe_bubble(
        stages, overlapped=each.overlapped, backward=backward, backward_weight=each.backward_weight
    )
    return work + waiting
