"""The dials of chapter 09: a plan on nodes of cards, the groups of a rank, what it sends on each axis, and memory."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import ipywidgets

from helpers.draw.mesh_plan import MOST_RANKS, AxisUse, mesh_plan_scene
from helpers.draw.scene import Scene
from helpers.mesh import Mesh
from helpers.predict.advice.fit import USABLE_SHARE
from helpers.predict.memory import memory
from helpers.predict.traffic.axes import axis_bytes
from helpers.predict.traffic.links import axis_link
from helpers.records import MemoryBreakdown
from helpers.specs import GPUS, LINKS, PRESETS, Cluster, Link, ModelSpec, Plan
from helpers.specs.clusters import INTRA
from helpers.units import format_bytes, format_seconds
from helpers.widgets.dials import WIDTH, choice, dial
from helpers.widgets.explorer import Explorer, Rows
from helpers.widgets.memory_examples import NAMES
from helpers.words import book, language, reading

say = book("mesh")
AXES = ("dp", "pp", "tp")
MODELS = ("gpt2-medium", "llama3-8b", "llama2-13b", "llama3-70b", "gpt3-175b")
_POWERS = (1, 2, 4, 8, 16, 32, 64)


class MeshExplorer(Explorer):
    """A plan on its machines. Without a front end: `.tp.value, .rank.value = 4, 5`, then `.text`.

    Dials: model (a key of PRESETS), sequences of a step (one per micro-batch), dp, pp, tp, zero, gpus_per_node, rank.
    gpu: a key of GPUS, which also sets the links inside a node. network: of LINKS, the card that each GPU has.
    """

    TEXT = "[widget] MeshExplorer: dp, pp, tp and ZeRO on nodes of GPUs, the groups of a rank, bytes by axis, memory"

    def __init__(
        self, model: str = "llama3-8b", *, dp: int = 2, pp: int = 2, tp: int = 2, zero: int = 0, sequences: int = 64,
        gpus_per_node: int = 4, rank: int = 0, gpu: str = "H100", network: str = "400 Gb/s",
    ) -> None:  # fmt: skip
        self.gpu, self.network = gpu, network
        names = [(NAMES[key], key) for key in dict.fromkeys((*MODELS, model)) if key in NAMES]
        self.model = choice(names, model, say("dial.model"), tooltip=say("dial.context"))
        self.sequences = dial([2**n for n in range(11)], sequences, say("dial.sequences"), tooltip=say("dial.of_step"))
        self.dp = dial(_POWERS, dp, "dp", tooltip=say("dial.dp"))
        self.pp = dial(_POWERS[:5], pp, "pp", tooltip=say("dial.pp"))
        self.tp = dial(_POWERS[:5], tp, "tp", tooltip=say("dial.tp"))
        self.zero = dial((0, 1, 2, 3), zero, say("dial.zero"), tooltip=say("dial.shards"))
        self.gpus_per_node = dial((2, 4, 8), gpus_per_node, say("dial.gpus_per_node"), tooltip=say("dial.machine"))
        self.rank = ipywidgets.IntSlider(
            value=rank, min=0, max=max(rank, MOST_RANKS - 1), description=say("dial.rank"), tooltip=say("dial.which")
        )
        self.rank.layout.width = f"{WIDTH}px"
        dials = (self.model, self.sequences, self.dp, self.pp, self.tp, self.zero, self.gpus_per_node, self.rank)
        super().__init__(dials)

    @property
    def spec(self) -> ModelSpec:
        return PRESETS[self.model.value]

    @property
    def plan(self) -> Plan:
        """The plan of the dials. ValueError, in words, for one that cannot be drawn, cut or trained."""
        sizes = {axis: getattr(self, axis).value for axis in AXES}
        dp, pp, zero, sequences = sizes["dp"], sizes["pp"], self.zero.value, self.sequences.value
        ranks = Mesh(**sizes).world_size
        if ranks > MOST_RANKS:
            raise ValueError(say("too_many", **sizes, ranks=ranks, most=MOST_RANKS))
        if sequences < dp:
            raise ValueError(say("too_few", sequences=sequences, dp=dp))
        if zero > 1 and pp > 1:
            raise ValueError(say("zero_pp", zero=zero, pp=pp, number=sequences // dp))
        plan = Plan(**sizes, zero=zero, num_microbatches=sequences // dp)
        plan.check(self.spec)
        return plan

    @property
    def cluster(self) -> Cluster:
        """As many nodes as the plan takes; each GPU has a network card."""
        each = self.gpus_per_node.value
        return Cluster(
            gpu=GPUS[self.gpu], gpus_per_node=each, num_nodes=-(-self.plan.world_size // each),
            intra=INTRA[self.gpu], inter=LINKS[self.network], network_cards=each,
        )  # fmt: skip

    @property
    def limit(self) -> float:
        """Bytes that a rank may take of its GPU."""
        return USABLE_SHARE * GPUS[self.gpu].memory

    def sent(self, rank: int) -> dict[str, float]:
        """Bytes that a rank sends over links in a step, by axis: what its ring makes of `axis_traffic`."""
        return _sent(self.spec, self.plan, self.plan.mesh.coordinates(rank)["pp"])

    def link(self, axis: str, rank: int) -> Link | None:
        """The slowest link that its messages on this axis cross; None where it is alone on it."""
        return axis_link(self.cluster, self.plan.mesh, axis, rank)

    @property
    def held(self) -> list[MemoryBreakdown]:
        """What each rank holds: the same for all ranks of a stage."""
        stages = [memory(self.spec, self.plan, stage) for stage in range(self.plan.pp)]
        return [stages[self.plan.mesh.coordinates(rank)["pp"]] for rank in range(self.plan.world_size)]

    @property
    def scene(self) -> Scene:
        """The picture of the dials as they stand."""
        plan, rank = self.plan, self.rank.value
        sizes = {axis: getattr(plan, axis) for axis in AXES}
        cluster = {"nodes": self.cluster.num_nodes, "each": self.cluster.gpus_per_node}
        title = say("title", model=NAMES[self.model.value], **sizes, ranks=plan.world_size, **cluster)
        limit = say("limit", size=format_bytes(self.limit), gpu=self.gpu)
        return mesh_plan_scene(
            plan.mesh, self._uses, self.held, gpus_per_node=self.gpus_per_node.value, rank=rank, limit=self.limit,
            limit_name=limit, title=title,
        )  # fmt: skip

    @property
    def sentence(self) -> str:
        """Where the rank stands, the axis on which it sends most, and whether the fullest rank fits."""
        plan, rank = self.plan, self.rank.value
        sent, held = self.sent(rank), self.held
        axis = max(sent, key=sent.get)
        most = say("most", axis=axis, size=format_bytes(sent[axis])) if sent[axis] else say("nothing")
        tp = self.link("tp", rank)
        slow = say("slow") if tp and tp != self.cluster.intra else ""
        full = max(range(len(held)), key=lambda each: held[each].total)
        sizes = {"held": format_bytes(held[full].total), "limit": format_bytes(self.limit)}
        fits = say("fits" if held[full].total <= self.limit else "fits_not", rank=full, **sizes)
        return say("where", rank=rank, **_place(plan.mesh, rank)) + most + slow + fits

    @property
    def rows(self) -> Rows:
        """Each rank: its place, its node, what it sends on each axis and what it holds."""
        return [self._row(rank, one) for rank, one in enumerate(self.held)]

    def _row(self, rank: int, held: MemoryBreakdown) -> dict[str, str]:
        place = ", ".join(map(str, _place(self.plan.mesh, rank).values()))
        where = {say("column.place"): place, say("column.node"): str(rank // self.gpus_per_node.value)}
        sends = {say("column.sends", axis=axis): format_bytes(sent) for axis, sent in self.sent(rank).items()}
        return {say("column.rank"): str(rank)} | where | sends | {say("column.holds"): format_bytes(held.total)}

    @property
    def _uses(self) -> Mapping[str, AxisUse]:
        rank, mesh = self.rank.value, self.plan.mesh
        sent = self.sent(rank)
        return {axis: self._use(axis, mesh.ranks_along(axis, rank), sent[axis]) for axis in AXES}

    def _use(self, axis: str, group: list[int], sent: float) -> AxisUse:
        rank = self.rank.value
        link = self.link(axis, rank)
        if link is None:
            return AxisUse(group=group, sent=0, link="", words="")
        rate = format_bytes(link.bandwidth)
        node = rank // self.gpus_per_node.value
        inside = link == self.cluster.intra
        crossed = (
            say("inside", link=link.name.split(" (")[0], node=node, rate=rate) if inside else say("network", rate=rate)
        )
        words = say("use", size=format_bytes(sent), time=format_seconds(link.seconds(sent)))
        return AxisUse(group=group, sent=sent, link=crossed, words=words)

    def _draw(self, change: object = None) -> None:
        try:
            self.rank.max = self.plan.world_size - 1  # a rank beyond it becomes the last one
        except ValueError:
            pass  # the picture's place says why
        with reading(language()):  # looked up once, not for each of a thousand words
            super()._draw(change)


@lru_cache(maxsize=64)  # all ranks of a stage send the same
def _sent(model: ModelSpec, plan: Plan, stage: int) -> dict[str, float]:
    found = axis_bytes(model, plan, stage)
    return {axis: getattr(found, axis) for axis in AXES}


def _place(mesh: Mesh, rank: int) -> dict[str, int]:
    return {axis: mesh.coordinates(rank)[axis] for axis in AXES}
