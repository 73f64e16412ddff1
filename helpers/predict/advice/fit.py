"""Decides whether a training plan fits a GPU's memory, and finds the smallest change that makes it fit.

`fit` answers for the fullest rank, which is the rank that needs the most bytes. Where the plan does not fit, `fit`
searches the changes that `moves` lists, in this order:
1. one or two changes that both cost next to nothing,
2. any single change, and then any pair; of pairs, the one whose more expensive change is the cheapest,
3. the few changes that a greedy search needs.
World size and global batch stay the same in these three. Only where nothing fits are GPUs added: dp is doubled until
the plan fits. The memory explorer, the planner and the interview cards use it.

The changes, from what is free to what slows a step most, with what each costs and the source:
 1 flash attention    the same result, and faster                       Dao et al. 2022
 2 ZeRO-1             the traffic of an all-reduce                      Rajbhandari et al. 2020, section 7.2.1
 3 sequence parallel  backward gathers inputs, too: 1.25 x traffic      Korthikanti et al. 2022, section 4.2.2
 4 selective          recomputes attention maps: 2.7 % for GPT-3        Korthikanti et al. 2022, section 5
 5 micro-batch        more passes through the model, smaller matrices   Narayanan et al. 2021, section 3.4
 6 ZeRO-2             like ZeRO-1, but gradients travel per micro-batch  Rajbhandari et al. 2020, section 7.2.1
 7 8-bit optimizer    moments in 8 bits, no traffic                     Dettmers et al. 2022
 8 ZeRO-3             1.5 times the traffic, in every micro-batch       Rajbhandari et al. 2020, section 7.2.2
 9 full recomputation one more forward: 4/3 of the operations           Narayanan et al. 2021, section 3.5
10 tensor parallel    4 all-reduces per layer, so inside a node         Shoeybi et al. 2019, section 3
11 context parallel   keys and values travel around a ring              Liu et al. 2023 (Ring Attention)
12 pipeline           a bubble of (p - 1) / m                           Narayanan et al. 2021, section 2.2.1

Under sequence parallelism a rank keeps the input of each part of a layer (attention, feed-forward) as a shard of the
tokens only, to save memory. Forward gathers that input, and backward must gather it a second time, because the gradient
of the weight needs all tokens. This second gather is half an all-reduce for each of the two parts, beside the four
all-reduces of tensor parallelism. The change stands third because backward can compute the gradient of the input
meanwhile, which does not need the gathered tensor. What a change really costs depends on the cluster, so the order is a
rule of thumb; no source ranks all twelve.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations
from math import ceil, log2

from helpers.learner.words import book
from helpers.predict.memory import memory, model_states, params_per_rank
from helpers.predict.memory.rank_memory import representative_stages
from helpers.quantities.units import format_bytes
from helpers.records import MemoryBreakdown
from helpers.specs import GPU, ModelSpec, Plan

words = book("memory")  # words("fits", size=…) returns the sentence of that key in the reader's language
GPUS_PER_NODE = 8
# Changes 1 to 4 of the list slow a step by a few percent at most, if backward hides the gather of the third.
NEXT_TO_FREE = 4
_AXES = ("tp", "pp", "cp")  # the axes that a change may enlarge, which shrinks dp
_LARGEST_CP = 64  # ranks of a context-parallel group


@dataclass(frozen=True, kw_only=True)
class Move:
    """A change of one field of a Plan to a value that saves memory. order: its number in the list above."""

    field: str
    value: object
    order: int

    def text(self, before: Plan) -> str:
        """The change in a few words, such as "ZeRO-1 instead of 0"."""
        return words(f"move.{self.field}", value=self.value, old=getattr(before, self.field))

    def cost(self, after: Plan) -> str:
        """What the change costs, in a few words. after: the plan with the change."""
        is_zero_2, is_zero_3 = self.order == 6, self.order == 8
        order = 2 if is_zero_2 and after.num_microbatches == 1 else self.order  # then ZeRO-2 costs what ZeRO-1 does
        if is_zero_3 and after.num_microbatches > 1:
            return words("cost.each", microbatches=after.num_microbatches)
        # stages: p - 1, which over m micro-batches is the bubble of a pipeline.
        return words(f"cost.{order}", stages=after.pp - 1, microbatches=after.num_microbatches)


def moves(model: ModelSpec, plan: Plan, *, gpus_per_node: int = GPUS_PER_NODE) -> tuple[Move, ...]:
    """All changes that may save memory, cheapest first; within one kind the smallest change first."""
    return tuple(sorted(_moves(model, plan, gpus_per_node), key=lambda move: move.order))


def _moves(model: ModelSpec, plan: Plan, gpus_per_node: int) -> Iterator[Move]:
    """The changes of `moves`, field by field."""
    if plan.attention == "materialized":
        yield Move(field="attention", value="flash", order=1)
        if plan.recompute == "none":  # only here, because with flash attention there are no maps to recompute
            yield Move(field="recompute", value="selective", order=4)
    # ZeRO's stages, and their numbers in the list. A pipeline gets stage 1 only, because it has many micro-batches, and
    # for each of them stage 2 would reduce-scatter the gradients, and stage 3 would gather the parameters as well.
    for stage, order in ((1, 2), (2, 6), (3, 8)):
        if plan.zero < stage and (stage == 1 or plan.pp == 1):
            yield Move(field="zero", value=stage, order=order)
    if not plan.sequence_parallel:
        yield Move(field="sequence_parallel", value=True, order=3)
    yield from (Move(field="micro_batch", value=size, order=5) for size in _halves(plan.micro_batch))
    if plan.optimizer == "adamw":
        yield Move(field="optimizer", value="adamw_8bit", order=7)
    if plan.recompute != "full":
        yield Move(field="recompute", value="full", order=9)
    yield from (Move(field="tp", value=size, order=10) for size in _doubles(plan.tp, gpus_per_node))
    yield from (Move(field="cp", value=size, order=11) for size in _doubles(plan.cp, _LARGEST_CP))
    yield from (Move(field="pp", value=size, order=12) for size in _doubles(plan.pp, model.num_layers))


def _doubles(size: int, most: int) -> Iterator[int]:
    """Twice `size`, four times `size`, and so on up to `most`."""
    while (size := size * 2) <= most:
        yield size


def _halves(size: int) -> Iterator[int]:
    """Half of `size`, a quarter of it, and so on while it is even."""
    while size % 2 == 0:
        size //= 2
        yield size


def apply_moves(model: ModelSpec, plan: Plan, chosen: Iterable[Move]) -> Plan | None:
    """The plan after these changes, with the same world size and global batch, or None where they are impossible.

    Where tp, pp or cp grow, dp shrinks and a rank takes more micro-batches; where the micro-batch shrinks, there are
    more of them. The changes are impossible where dp has too few ranks, the model does not divide, ZeRO has only one
    rank to shard over, or sequence parallelism has no tensor-parallel group.
    """
    settings = {move.field: move.value for move in chosen}
    factor = 1  # by which dp shrinks
    for axis in _AXES:
        factor *= settings.get(axis, getattr(plan, axis)) // getattr(plan, axis)
    if plan.dp % factor:
        return None
    pieces = plan.micro_batch // settings.get("micro_batch", plan.micro_batch)  # into which a micro-batch is cut
    count = plan.num_microbatches * factor * pieces
    try:
        new = replace(plan, **settings, dp=plan.dp // factor, num_microbatches=count)
        new.check(model)
    except ValueError:
        return None
    has_nothing_to_shard = "zero" in settings and new.dp * new.cp == 1
    has_no_tensor_group = "sequence_parallel" in settings and new.tp == 1
    return None if has_nothing_to_shard or has_no_tensor_group else new


# A rule of thumb of this course: a CUDA context takes 0.3 to 0.6 GB, NCCL's buffers up to a few GB with many peers, and
# the caching allocator loses a few percent to fragmentation. None of them is in the formulas.
USABLE_SHARE = 0.94
KINDS = book("draw")  # the texts of pictures, which have the names of the kinds of memory
_MOST_GPUS = 2**20  # up to which `_with_more_gpus` doubles


@dataclass(frozen=True, kw_only=True)
class Fit:
    """The result of `fit`. memory: bytes of the fullest rank, which is of pipeline stage `stage`.

    changes: the smallest change, one entry per field; empty where the plan fits or nothing helps. suggested,
    suggested_memory: the plan with these changes (the plan itself where it fits), and the bytes of its fullest rank;
    None where nothing helps.
    """

    plan: Plan
    gpu: GPU
    stage: int
    memory: MemoryBreakdown
    changes: tuple[Move, ...] = ()
    suggested: Plan | None = None
    suggested_memory: MemoryBreakdown | None = None

    @property
    def usable(self) -> float:
        """Bytes of the GPU that the plan may take."""
        return USABLE_SHARE * self.gpu.memory

    @property
    def fits(self) -> bool:
        """Whether the plan fits as it is."""
        return self.memory.total <= self.usable

    @property
    def verdict(self) -> str:
        """A sentence that says whether the plan fits."""
        share = words("share", share=100 * USABLE_SHARE, size=format_bytes(self.gpu.memory))
        # The texts choose words by a count, singular for 1 and plural else, and the comma after "the fullest" is chosen
        # like a plural: 2 adds it, 1 does not. Only "It fits" needs it; "It does not fit" has a comma there already.
        where = words("fullest", stage=self.stage, comma=2 if self.fits else 1) if self.plan.pp > 1 else ""
        sizes = {"size": format_bytes(self.memory.total), "usable": format_bytes(self.usable)}
        return words("fits" if self.fits else "fits_not", **sizes, share=share, where=where)

    @property
    def largest_kind(self) -> str:
        """A sentence about the kind of memory with most bytes."""
        kind = self.memory.dominant
        size = getattr(self.memory, kind)
        # In the texts of pictures, "optimizer" is the step that the optimizer makes; its state is meant here.
        word = words("kind_optimizer") if kind == "optimizer" else KINDS(f"kind.{kind}")
        return words("most", kind=word, size=format_bytes(size), share=100 * size / self.memory.total)

    @property
    def remedy(self) -> str:
        """A sentence about the smallest change that makes the plan fit; empty where it fits."""
        if self.fits:
            return ""
        if self.suggested is None or self.suggested_memory is None:
            return words("hopeless")
        sizes = words("sizes", before=format_bytes(self.memory.total), after=format_bytes(self.suggested_memory.total))
        described = [(move.text(self.plan), move.cost(self.suggested)) for move in self.changes]
        texts = [words("change", words=change, cost=cost) for change, cost in described]
        if self.suggested.world_size > self.plan.world_size:
            gpus = {"here": self.plan.world_size, "gpus": self.suggested.world_size}
            return words("more", **gpus, **{"with": words("with", words=texts) if texts else ""}, sizes=sizes)
        if len(described) == 1:
            change, cost = described[0]
            return words("smallest", words=change, sizes=sizes, cost=cost)
        return words("smallest_of", words=texts, sizes=sizes)

    @property
    def text(self) -> str:
        """Verdict, largest kind and remedy, as a few sentences."""
        # "between" stands between two sentences: a space, in Chinese nothing.
        return words("between").join(filter(None, (self.verdict, self.largest_kind, self.remedy)))


def fullest_stage(model: ModelSpec, plan: Plan) -> tuple[int, MemoryBreakdown]:
    """The pipeline stage whose ranks hold most bytes, and their bytes by kind."""
    return max(
        ((stage, memory(model, plan, stage)) for stage in representative_stages(model, plan)),
        key=lambda pair: pair[1].total,
    )


@lru_cache(maxsize=512)
def fit(model: ModelSpec, plan: Plan, gpu: GPU, *, gpus_per_node: int = GPUS_PER_NODE) -> Fit:
    """Compute what `plan` needs on `gpu`, and find the smallest change that makes it fit.

    gpus_per_node: the largest tensor-parallel size. The docstring of this file describes the search. Raises ValueError
    for a plan that does not suit the model.
    """
    stage, breakdown = fullest_stage(model, plan)
    advice = Fit(plan=plan, gpu=gpu, stage=stage, memory=breakdown)
    if advice.fits:
        return replace(advice, suggested=plan, suggested_memory=breakdown)
    search = _Search(model, plan, advice.usable, moves(model, plan, gpus_per_node=gpus_per_node))
    choice = search.one_or_two() or search.greedy() or _with_more_gpus(model, plan, advice.usable, gpus_per_node)
    if choice is None:
        return advice
    changes, suggested = choice
    return replace(advice, changes=changes, suggested=suggested, suggested_memory=fullest_stage(model, suggested)[1])


def _price(chosen: tuple[Move, ...]) -> tuple:
    """A key that sorts choices: next to free first, then fewer changes, then the more expensive one's order."""
    orders = sorted((move.order for move in chosen), reverse=True)
    is_expensive = orders[0] > NEXT_TO_FREE  # False sorts before True
    return is_expensive, len(orders), orders


_Choice = tuple[tuple[Move, ...], Plan]  # moves, and the plan with them


class _Search:
    """Searches the moves that make `plan` fit into `usable` bytes. known: the moves to choose from, cheapest first."""

    def __init__(self, model: ModelSpec, plan: Plan, usable: float, known: tuple[Move, ...]) -> None:
        self._model, self._plan, self._usable, self._known = model, plan, usable, known

    def _bytes(self, chosen: Iterable[Move]) -> float:
        """Bytes of the fullest rank after these moves; infinite where they are impossible."""
        new = apply_moves(self._model, self._plan, chosen)
        return float("inf") if new is None else fullest_stage(self._model, new)[1].total

    def _choice(self, chosen: tuple[Move, ...]) -> _Choice:
        """The moves with the plan that they give."""
        plan = apply_moves(self._model, self._plan, chosen)
        assert plan is not None, "a choice that fits can be applied"
        return chosen, plan

    def one_or_two(self) -> _Choice | None:
        """The cheapest one or two moves with which the plan fits."""
        singles = [(move,) for move in self._known]
        pairs = [(a, b) for a, b in combinations(self._known, 2) if a.field != b.field]
        for chosen in sorted([*singles, *pairs], key=_price):
            if self._bytes(chosen) <= self._usable:
                return self._choice(chosen)
        return None

    def greedy(self) -> _Choice | None:
        """Add every move that helps, cheapest first, until the plan fits; then drop the moves that are not needed."""
        chosen: dict[str, Move] = {}
        current = self._bytes(())
        for move in self._known:
            extended = chosen | {move.field: move}  # replaces an earlier move of the same field
            if current > self._usable and (size := self._bytes(extended.values())) < current:
                chosen, current = extended, size
        if current > self._usable:
            return None
        # Drop or reduce each move, the most expensive one first; `next` takes the first reduction that fits, if any.
        for move in sorted(chosen.values(), key=lambda move: -move.order):
            chosen = next(self._reductions(chosen, move), chosen)
        return self._choice(tuple(sorted(chosen.values(), key=lambda move: move.order)))

    def _reductions(self, chosen: dict[str, Move], move: Move) -> Iterator[dict[str, Move]]:
        """The choice without the move, or with a smaller change of its field, where that still fits; smallest first.

        `<=` lets the move itself through, and larger changes of the same order (tp=8 for tp=4). They do no harm,
        because the known moves are sorted, the smallest change of a field first, and the caller takes the first choice
        that fits, which is the move itself at the latest.
        """
        others = {field: other for field, other in chosen.items() if field != move.field}
        smaller = [known for known in self._known if known.field == move.field and known.order <= move.order]
        for reduced in (others, *(others | {move.field: known} for known in smaller)):
            if self._bytes(reduced.values()) <= self._usable:
                yield reduced


def _with_more_gpus(model: ModelSpec, plan: Plan, usable: float, gpus_per_node: int) -> _Choice | None:
    """Double dp until the plan fits with the greedy search's moves; the global batch stays as long as possible.

    To save time, the search starts with a lower bound of the doublings. It comes from the model states with an 8-bit
    optimizer, as if all replicas and all GPUs of a node shared them. A bound that is too low costs only a few more
    rounds, so it is kept simple: states that ZeRO shards already are divided by the replicas twice, and a node counts
    as 8 GPUs, whatever gpus_per_node is.
    """
    # How many times the usable memory of a GPU the model states of one rank take, at the plan's ZeRO stage.
    gpus = model_states(params_per_rank(model, plan), replace(plan, optimizer="adamw_8bit")).total / usable
    least_factor = max(gpus / (plan.dp * plan.cp * GPUS_PER_NODE), 1)
    doublings = max(1, ceil(log2(least_factor)))
    while plan.world_size * 2**doublings <= _MOST_GPUS:
        factor = 2**doublings
        wider = replace(plan, dp=plan.dp * factor, num_microbatches=max(1, plan.num_microbatches // factor))
        choice = _Search(model, wider, usable, moves(model, wider, gpus_per_node=gpus_per_node)).greedy()
        if choice:
            return choice
        doublings += 1
    return None
