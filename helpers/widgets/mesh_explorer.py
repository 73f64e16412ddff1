"""Provides MeshExplorer, which draws a plan of DP, PP and TP on nodes of GPUs.

It shows the groups of a chosen rank, the bytes and the link on each axis of the mesh, and the memory of every rank.
Chapter 09 uses it.

Explorer, the base class, shows `sentence`, `scene` (a picture as plain data) and `rows` (a table), and computes them
anew whenever a dial changes. A ValueError in one of them becomes a message instead of the picture. A saved notebook
keeps TEXT and a picture. Picks makes the ranks of the picture clickable.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache

from helpers.draw.chapters.composing import MOST_RANKS, AxisUse, mesh_plan_scene
from helpers.draw.scene import Scene
from helpers.learner.words import book
from helpers.predict.advice.fit import USABLE_SHARE
from helpers.predict.memory import memory
from helpers.predict.traffic.axes import axis_bytes, axis_link
from helpers.quantities.units import format_bytes, format_seconds
from helpers.records import MemoryBreakdown
from helpers.specs import GPUS, LINKS, PRESETS, Cluster, Link, ModelSpec, Plan
from helpers.specs.hardware import INTRA
from helpers.specs.mesh import Mesh
from helpers.widgets.controls import Control, Picks, choice, dial
from helpers.widgets.explorer import Explorer, Rows
from helpers.widgets.memory_explorer import MODEL_NAMES
from helpers.widgets.strategy_explorer import cluster_of

words = book("mesh")  # what a reader sees, by name, in the learner's language: learner/words/mesh.yaml
AXES = ("pp", "dp", "tp")  # of the mesh: pipeline stages, replicas, ranks that share each layer; tp counts fastest
MODELS = ("gpt2-medium", "llama3-8b", "llama2-13b", "llama3-70b", "gpt3-175b")
GPU, NETWORK = "H100", LINKS["400 Gb/s"]
_LIMIT = USABLE_SHARE * GPUS[GPU].memory  # bytes of a GPU's memory that a plan may use
_POWERS = [2**n for n in range(11)]  # values of the dials: 1 to 1,024; the first 7 end at 64, the first 5 at 16


class MeshExplorer(Explorer):
    """A plan on H100s with a 400 Gb/s network card each. Without a front end: `.tp.value, .rank.value = 4, 5`, `.text`.

    Dials: model (one of MODELS), sequences (of a step; one per micro-batch), dp, pp, tp, zero, gpus_per_node, rank. A
    click on a GPU in the picture chooses its rank, too.
    """

    TEXT = "[widget] MeshExplorer: pp, dp, tp and ZeRO on nodes of GPUs, the groups of a rank, bytes by axis, memory"
    STRETCHES_DIALS = True

    def __init__(
        self, model: str = "llama3-8b", *, dp: int = 2, pp: int = 2, tp: int = 2, zero: int = 0, sequences: int = 64,
        gpus_per_node: int = 4, rank: int = 0,
    ) -> None:  # fmt: skip
        # The texts named as tooltips say in a few words what each dial means.
        self.model = choice(MODELS, model, words("dial.model"), label=MODEL_NAMES.get, tooltip=words("dial.context"))
        self.sequences = dial(_POWERS, sequences, words("dial.sequences"), tooltip=words("dial.of_step"))
        self.dp = dial(_POWERS[:7], dp, "dp", tooltip=words("dial.dp"))
        self.pp = dial(_POWERS[:5], pp, "pp", tooltip=words("dial.pp"))
        self.tp = dial(_POWERS[:5], tp, "tp", tooltip=words("dial.tp"))
        self.zero = dial((0, 1, 2, 3), zero, words("dial.zero"), tooltip=words("dial.shards"))
        self.gpus_per_node = dial((2, 4, 8), gpus_per_node, words("dial.gpus_per_node"), tooltip=words("dial.machine"))
        # This dial also offers a rank beyond the mesh, which `_draw` then moves into it.
        self.rank = dial(range(max(rank + 1, MOST_RANKS)), rank, words("dial.rank"), tooltip=words("dial.which"))
        self._last_axis = "dp"  # the axis whose dial was turned last; advice on too many ranks is about it
        dials = (self.model, self.sequences, self.dp, self.pp, self.tp, self.zero, self.gpus_per_node, self.rank)
        super().__init__(dials, controls=(Picks(self._choose_rank),))  # Picks makes the picture's ranks clickable

    @property
    def plan(self) -> Plan:
        """The plan of the dials. Raises ValueError for one that cannot be drawn, split into stages or trained."""
        sizes = {axis: getattr(self, axis).value for axis in AXES}
        dp, zero, sequences = self.dp.value, self.zero.value, self.sequences.value
        ranks = Mesh(**sizes).world_size
        # `largest` is the largest size of the axis turned last with which the mesh fits; 0 if even size 1 is too much.
        if ranks > MOST_RANKS:
            largest = MOST_RANKS * sizes[self._last_axis] // ranks
            advice = words("at_most", axis=self._last_axis, size=largest) if largest else words("turn_down")
            raise ValueError(words("too_many", **sizes, ranks=ranks, most=MOST_RANKS) + advice)
        if sequences < dp:
            raise ValueError(words("too_few", sequences=sequences, dp=dp))
        if zero > 1 and self.pp.value > 1:  # ZeRO-2 and 3 would communicate again in every micro-batch of a pipeline
            # number: of micro-batches
            raise ValueError(words("zero_pp", zero=zero, pp=self.pp.value, number=sequences // dp))
        plan = Plan(**sizes, zero=zero, num_microbatches=sequences // dp)
        model = PRESETS[self.model.value]
        if not _can_be_split(model, plan):  # then the message names the nearest smaller number of stages that works
            nearest = max(pp for pp in _POWERS if pp < plan.pp and _can_be_split(model, replace(plan, pp=pp)))
            raise ValueError(words("stages", layers=model.num_layers, pp=plan.pp, near=nearest))
        plan.check(model)
        return plan

    @property
    def cluster(self) -> Cluster:
        """As many nodes as the plan needs."""
        each = self.gpus_per_node.value
        return cluster_of(GPU, "8 x 400 Gb/s", each, math.ceil(self.plan.world_size / each))  # a card for each GPU

    def sent_bytes(self, rank: int) -> dict[str, float]:
        """Bytes that a rank sends in a step, by axis."""
        return _axis_bytes(PRESETS[self.model.value], self.plan, self.plan.mesh.coordinates(rank)["pp"])

    def link(self, axis: str, rank: int) -> Link | None:
        """The slowest link that the rank's messages on this axis cross; None where the axis has one rank."""
        return axis_link(self.cluster, self.plan.mesh, axis, rank)

    @property
    def memories(self) -> list[MemoryBreakdown]:
        """The memory of each rank. All ranks of a stage have the same."""
        model, plan = PRESETS[self.model.value], self.plan
        stages = [memory(model, plan, stage) for stage in range(plan.pp)]
        return [stages[plan.mesh.coordinates(rank)["pp"]] for rank in range(plan.world_size)]

    @property
    def scene(self) -> Scene:
        """The plan on its nodes, with the groups of the chosen rank."""
        plan, rank, each = self.plan, self.rank.value, self.gpus_per_node.value
        sizes = {axis: getattr(plan, axis) for axis in AXES} | {"ranks": plan.world_size}
        title = words("title", model=MODEL_NAMES[self.model.value], **sizes, nodes=self.cluster.num_nodes, each=each)
        uses = {axis: self._use(axis, plan.mesh.ranks_along(axis, rank)) for axis in AXES}
        limit = {"limit": _LIMIT, "limit_name": words("limit", size=format_bytes(_LIMIT), gpu=GPU)}
        return mesh_plan_scene(plan.mesh, uses, self.memories, gpus_per_node=each, rank=rank, title=title, **limit)

    def _use(self, axis: str, group: list[int]) -> AxisUse:
        """What the picture says about an axis: the chosen rank's group, its bytes, the link, and two texts."""
        rank = self.rank.value
        link, sent = self.link(axis, rank), self.sent_bytes(rank)[axis]
        if link is None:  # the axis has one rank, which sends nothing
            return AxisUse(group=group, sent=0, link="", words="")
        # The name of the link, without what stands in parentheses behind it.
        where = {"link": link.name.split(" (")[0], "node": rank // self.gpus_per_node.value}
        cards = int(link.bandwidth / NETWORK.bandwidth)  # network cards that the messages of this axis use together
        if link != INTRA[GPU] and cards > 1:  # INTRA[GPU] is the link between the GPUs of one node
            crossed = words("cards", cards=cards, rate=format_bytes(NETWORK.bandwidth))
        else:
            crossed = words("inside" if link == INTRA[GPU] else "network", rate=format_bytes(link.bandwidth), **where)
        cost = words("use", size=format_bytes(sent), time=format_seconds(link.seconds(sent)))
        return AxisUse(group=group, sent=sent, link=crossed, words=cost)

    @property
    def sentence(self) -> str:
        """The coordinates of the rank, the axis on which it sends most, and whether the fullest rank fits."""
        rank, coordinates = self.rank.value, self.plan.mesh.coordinates(self.rank.value)
        sent, totals = self.sent_bytes(rank), [memory.total for memory in self.memories]
        axis, fullest = max(sent, key=sent.get), totals.index(max(totals))
        most = words("most", axis=axis, size=format_bytes(sent[axis])) if sent[axis] else words("nothing")
        # A remark for tensor parallelism that leaves its node, where it is slow.
        slow = words("slow") if self.link("tp", rank) not in (None, INTRA[GPU]) else ""
        sizes = {"held": format_bytes(totals[fullest]), "limit": format_bytes(_LIMIT)}
        fits = words("fits" if totals[fullest] <= _LIMIT else "fits_not", rank=fullest, **sizes)
        return words("where", rank=rank, **coordinates) + most + slow + fits

    @property
    def rows(self) -> Rows:
        """One row per stage: its ranks and nodes, and what one rank sends on each axis and stores."""
        return [self._row(stage) for stage in range(self.plan.pp)]

    def _row(self, stage: int) -> dict[str, str]:
        """A stage: its ranks and nodes, and what its first rank sends and stores."""
        mesh, each = self.plan.mesh, self.gpus_per_node.value
        ranks = [rank for rank in range(mesh.world_size) if mesh.coordinates(rank)["pp"] == stage]
        nodes = [rank // each for rank in ranks]
        cells = {"stage": str(stage), "ranks": _range_text(ranks), "nodes": _range_text(nodes)}
        first = {words(f"column.{name}"): cell for name, cell in cells.items()}
        sent = self.sent_bytes(ranks[0])
        sends = {words("column.sends", axis=axis): format_bytes(sent[axis]) for axis in sent}
        return first | sends | {words("column.holds"): format_bytes(self.memories[ranks[0]].total)}

    def _choose_rank(self, rank: str) -> None:
        """Called with a click on a rank in the picture."""
        if rank.isdecimal() and int(rank) < MOST_RANKS:
            self.rank.value = int(rank)

    def _draw(self, turned: Control | None = None) -> None:
        """First note which axis was turned, and move the rank into the mesh where it lies outside."""
        if turned in (self.dp, self.pp, self.tp):
            self._last_axis = turned.description
        # The dial keeps all its options: in a browser, the key End goes to the end with which it was created.
        with suppress(ValueError):  # an invalid plan; Explorer shows the message
            last = self.plan.world_size - 1
            if self.rank.value > last:
                self.rank.value = last  # this draws again
                return
        super()._draw(turned)


def _range_text(numbers: list[int]) -> str:
    """The first and the last number, such as "0–7", or one number alone."""
    return f"{numbers[0]}–{numbers[-1]}" if numbers[0] < numbers[-1] else str(numbers[0])


def _can_be_split(model: ModelSpec, plan: Plan) -> bool:
    """Whether the model's layers can be divided over the pipeline stages of the plan."""
    try:
        return plan.layers_on_stage(model, 0) > 0
    except ValueError:
        return False


@lru_cache(maxsize=64)  # all ranks of a stage send the same bytes
def _axis_bytes(model: ModelSpec, plan: Plan, stage: int) -> dict[str, float]:
    """The bytes that a rank of this stage sends in a step, by axis."""
    found = axis_bytes(model, plan, stage)
    return {axis: getattr(found, axis) for axis in AXES}
