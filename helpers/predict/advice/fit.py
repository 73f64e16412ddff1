"""Does a plan fit a GPU, what fills its memory, and the smallest change that makes it fit.

A search over `moves.py`: first one or two changes that cost next to nothing, then any single change, then any pair,
each time the cheapest by its dearer half; then as few as a greedy search finds. World size and global batch stay. Only
where nothing fits are GPUs added, dp doubled until it does. What a change costs, and who says so, stands in `moves.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations
from math import ceil, log2

from helpers.learner.words import book
from helpers.predict.advice.moves import GPUS_PER_NODE, NEXT_TO_FREE, Move, apply, moves, say
from helpers.predict.memory import memory, model_states, params_per_rank
from helpers.quantities.units import format_bytes
from helpers.records import MEMORY_KINDS, MemoryBreakdown
from helpers.specs import GPU, ModelSpec, Plan

# Our rule of thumb: a CUDA context takes 0.3 to 0.6 GB, NCCL's buffers up to a few GB at many peers, and the caching
# allocator loses a few percent to fragmentation. None of them is in the formulas.
USABLE_SHARE = 0.94
KINDS = book("draw")
_MOST_GPUS = 2**20


@dataclass(frozen=True, kw_only=True)
class Fit:
    """What `fit` found. Bytes; `held` is the fullest rank, of pipeline stage `stage`.

    changes: the smallest change, one entry a field, empty where the plan fits or nothing helps. suggested, after: the
    plan with these changes and its fullest rank; None where nothing helps. num_gpus: that plan's world size.
    """

    plan: Plan
    gpu: GPU
    stage: int
    held: MemoryBreakdown
    changes: tuple[Move, ...] = ()
    suggested: Plan | None = None
    after: MemoryBreakdown | None = None

    @property
    def usable(self) -> float:
        """Bytes of the GPU that the plan may take."""
        return USABLE_SHARE * self.gpu.memory

    @property
    def fits(self) -> bool:
        return self.held.total <= self.usable

    @property
    def num_gpus(self) -> int | None:
        return self.suggested and self.suggested.world_size

    @property
    def dominant(self) -> str:
        """The kind that takes most."""
        return max(MEMORY_KINDS, key=lambda kind: getattr(self.held, kind))

    @property
    def verdict(self) -> str:
        """Whether it fits, in a sentence."""
        share = say("share", share=100 * USABLE_SHARE, size=format_bytes(self.gpu.memory))
        where = say("fullest", stage=self.stage, comma=2 if self.fits else 1) if self.plan.pp > 1 else ""
        sizes = {"size": format_bytes(self.held.total), "usable": format_bytes(self.usable)}
        return say("fits" if self.fits else "fits_not", **sizes, share=share, where=where)

    @property
    def most(self) -> str:
        """What dominates, in a sentence."""
        kind, size = self.dominant, getattr(self.held, self.dominant)
        word = say("kind_optimizer") if kind == "optimizer" else KINDS(f"kind.{kind}")
        return say("most", kind=word, size=format_bytes(size), share=100 * size / self.held.total)

    @property
    def remedy(self) -> str:
        """The smallest change that makes it fit, in a sentence; empty where it fits."""
        if self.fits:
            return ""
        if self.suggested is None or self.after is None:
            return say("hopeless")
        sizes = say("sizes", before=format_bytes(self.held.total), after=format_bytes(self.after.total))
        told = [(move.words(self.plan), move.cost(self.suggested)) for move in self.changes]
        words = [say("change", words=change, cost=cost) for change, cost in told]
        if self.suggested.world_size > self.plan.world_size:
            gpus = {"here": self.plan.world_size, "gpus": self.suggested.world_size}
            return say("more", **gpus, **{"with": say("with", words=words) if words else ""}, sizes=sizes)
        if len(told) == 1:
            return say("smallest", words=told[0][0], sizes=sizes, cost=told[0][1])
        return say("smallest_of", words=words, sizes=sizes)

    @property
    def words(self) -> str:
        """Everything in a few sentences."""
        return say("between").join(filter(None, (self.verdict, self.most, self.remedy)))


def fullest(model: ModelSpec, plan: Plan) -> tuple[int, MemoryBreakdown]:
    """The pipeline stage whose ranks hold most, and what they hold.

    Only the first two and the last stage are asked: from the second on a stage holds fewer micro-batches than the one
    before it, and the first and the last have their own tables, norms and logits.
    """
    stages = sorted({0, min(1, plan.pp - 1), plan.pp - 1})
    return max(((stage, memory(model, plan, stage)) for stage in stages), key=lambda pair: pair[1].total)


@lru_cache(maxsize=512)
def fit(model: ModelSpec, plan: Plan, gpu: GPU, *, gpus_per_node: int = GPUS_PER_NODE) -> Fit:
    """What `plan` needs on `gpu`, and the smallest change that makes it fit. ValueError where it does not fit `model`.

    gpus_per_node: how far tensor parallelism may go. The order of the search stands at the top of this file.
    """
    stage, held = fullest(model, plan)
    advice = Fit(plan=plan, gpu=gpu, stage=stage, held=held)
    if advice.fits:
        return replace(advice, suggested=plan, after=held)
    search = _Search(model, plan, advice.usable, moves(model, plan, gpus_per_node=gpus_per_node))
    found = search.one_or_two() or search.greedy() or _with_more_gpus(model, plan, advice.usable, gpus_per_node)
    if found is None:
        return advice
    changes, suggested = found
    return replace(advice, changes=changes, suggested=suggested, after=fullest(model, suggested)[1])


def _price(chosen: tuple[Move, ...]) -> tuple:
    """Smaller is cheaper: next to free, then fewer changes, then the dearer one, then the other."""
    orders = sorted((move.order for move in chosen), reverse=True)
    return orders[0] > NEXT_TO_FREE, len(orders), orders


_Found = tuple[tuple[Move, ...], Plan]


class _Search:
    """Which of `known` moves make `plan` fit into `usable` bytes."""

    def __init__(self, model: ModelSpec, plan: Plan, usable: float, known: tuple[Move, ...]) -> None:
        self._model, self._plan, self._usable, self._known = model, plan, usable, known

    def _bytes(self, chosen: Iterable[Move]) -> float:
        new = apply(self._model, self._plan, chosen)
        return float("inf") if new is None else fullest(self._model, new)[1].total

    def _found(self, chosen: tuple[Move, ...]) -> _Found:
        plan = apply(self._model, self._plan, chosen)
        assert plan is not None, "a choice that fits can be applied"
        return chosen, plan

    def one_or_two(self) -> _Found | None:
        singles = [(move,) for move in self._known]
        pairs = [(a, b) for a, b in combinations(self._known, 2) if a.field != b.field]
        for chosen in sorted([*singles, *pairs], key=_price):
            if self._bytes(chosen) <= self._usable:
                return self._found(chosen)
        return None

    def greedy(self) -> _Found | None:
        """Take every move that helps, cheapest first, until it fits; then give back what is not needed."""
        chosen: dict[str, Move] = {}
        reached = self._bytes(())
        for move in self._known:
            tried = chosen | {move.field: move}
            if reached > self._usable and (size := self._bytes(tried.values())) < reached:
                chosen, reached = tried, size
        if reached > self._usable:
            return None
        for move in sorted(chosen.values(), key=lambda move: -move.order):
            chosen = next(self._lighter(chosen, move), chosen)
        return self._found(tuple(sorted(chosen.values(), key=lambda move: move.order)))

    def _lighter(self, chosen: dict[str, Move], move: Move) -> Iterator[dict[str, Move]]:
        """The same choice without the move, or with a smaller step of its kind, where that still fits."""
        others = {field: other for field, other in chosen.items() if field != move.field}
        smaller = [known for known in self._known if known.field == move.field and known.order <= move.order]
        for tried in (others, *(others | {move.field: known} for known in smaller)):
            if self._bytes(tried.values()) <= self._usable:
                yield tried


def _with_more_gpus(model: ModelSpec, plan: Plan, usable: float, gpus_per_node: int) -> _Found | None:
    """Double dp until it fits, with what the greedy search finds; the global batch stays while it can."""
    least = model_states(params_per_rank(model, plan), replace(plan, optimizer="adamw_8bit")).total / usable
    doublings = max(1, ceil(log2(max(least / (plan.dp * plan.cp * GPUS_PER_NODE), 1))))
    while plan.world_size * 2**doublings <= _MOST_GPUS:
        factor = 2**doublings
        wider = replace(plan, dp=plan.dp * factor, num_microbatches=max(1, plan.num_microbatches // factor))
        found = _Search(model, wider, usable, moves(model, wider, gpus_per_node=gpus_per_node)).greedy()
        if found:
            return found
        doublings += 1
    return None
