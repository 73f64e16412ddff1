"""The dials of chapter 09: a plan on nodes of cards, the groups of a rank, what it sends on each axis, and memory."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import lru_cache

from helpers.draw.mesh_plan import MOST_RANKS, AxisUse, mesh_plan_scene
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
from helpers.widgets.dials import choice, dial
from helpers.widgets.explorer import Explorer, Rows
from helpers.widgets.memory_examples import NAMES
from helpers.widgets.picks import Picks

say = book("mesh")
AXES = ("dp", "pp", "tp")
MODELS = ("gpt2-medium", "llama3-8b", "llama2-13b", "llama3-70b", "gpt3-175b")
GPU, NETWORK = "H100", LINKS["400 Gb/s"]
_LIMIT = USABLE_SHARE * GPUS[GPU].memory
_POWERS = [2**n for n in range(11)]
_DIAL = 300  # pixels at least: two beside each other in a narrow window, or the picture lies below its end


class MeshExplorer(Explorer):
    """A plan on H100s, each with a card of 400 Gb/s. Without a front end: `.tp.value, .rank.value = 4, 5`, `.text`.

    Dials: model (one of MODELS), sequences of a step (one per micro-batch), dp, pp, tp, zero, gpus_per_node, rank. The
    rank is chosen by a click on its card as well.
    """

    TEXT = "[widget] MeshExplorer: dp, pp, tp and ZeRO on nodes of GPUs, the groups of a rank, bytes by axis, memory"

    def __init__(
        self, model: str = "llama3-8b", *, dp: int = 2, pp: int = 2, tp: int = 2, zero: int = 0, sequences: int = 64,
        gpus_per_node: int = 4, rank: int = 0,
    ) -> None:  # fmt: skip
        models = [(NAMES[key], key) for key in MODELS]
        self.model = choice(models, model, say("dial.model"), tooltip=say("dial.context"))
        self.sequences = dial(_POWERS, sequences, say("dial.sequences"), tooltip=say("dial.of_step"))
        self.dp = dial(_POWERS[:7], dp, "dp", tooltip=say("dial.dp"))
        self.pp = dial(_POWERS[:5], pp, "pp", tooltip=say("dial.pp"))
        self.tp = dial(_POWERS[:5], tp, "tp", tooltip=say("dial.tp"))
        self.zero = dial((0, 1, 2, 3), zero, say("dial.zero"), tooltip=say("dial.shards"))
        self.gpus_per_node = dial((2, 4, 8), gpus_per_node, say("dial.gpus_per_node"), tooltip=say("dial.machine"))
        self.rank = dial(range(max(rank + 1, MOST_RANKS)), rank, say("dial.rank"), tooltip=say("dial.which"))
        self._turned = "dp"
        dials = (self.model, self.sequences, self.dp, self.pp, self.tp, self.zero, self.gpus_per_node, self.rank)
        super().__init__(dials, controls=(Picks(self._pick),))
        for each in dials:
            each.layout.width = "auto"
        self.children[0].layout.grid_template_columns = f"repeat(auto-fit, minmax({_DIAL}px, 1fr))"

    @property
    def plan(self) -> Plan:
        """The plan of the dials. ValueError, in words, for one that cannot be drawn, cut or trained."""
        sizes = {axis: getattr(self, axis).value for axis in AXES}
        dp, zero, sequences = self.dp.value, self.zero.value, self.sequences.value
        ranks = Mesh(**sizes).world_size
        if ranks > MOST_RANKS:
            room = MOST_RANKS * sizes[self._turned] // ranks
            turn = say("at_most", axis=self._turned, size=room) if room else say("turn_down")
            raise ValueError(say("too_many", **sizes, ranks=ranks, most=MOST_RANKS) + turn)
        if sequences < dp:
            raise ValueError(say("too_few", sequences=sequences, dp=dp))
        if zero > 1 and self.pp.value > 1:
            raise ValueError(say("zero_pp", zero=zero, pp=self.pp.value, number=sequences // dp))
        plan = Plan(**sizes, zero=zero, num_microbatches=sequences // dp)
        model = PRESETS[self.model.value]
        if not _can_be_cut(model, plan):
            near = max(pp for pp in _POWERS if pp < plan.pp and _can_be_cut(model, replace(plan, pp=pp)))
            raise ValueError(say("stages", layers=model.num_layers, pp=plan.pp, near=near))
        plan.check(model)
        return plan

    @property
    def cluster(self) -> Cluster:
        """As many nodes as the plan takes."""
        each = self.gpus_per_node.value
        return Cluster(
            gpu=GPUS[GPU], gpus_per_node=each, num_nodes=-(-self.plan.world_size // each), intra=INTRA[GPU],
            inter=NETWORK, network_cards=each,
        )  # fmt: skip

    def sent(self, rank: int) -> dict[str, float]:
        """Bytes that a rank sends over links in a step, by axis."""
        return _sent(PRESETS[self.model.value], self.plan, self.plan.mesh.coordinates(rank)["pp"])

    def link(self, axis: str, rank: int) -> Link | None:
        """The slowest link that its messages on this axis cross; None where it is alone on it."""
        return axis_link(self.cluster, self.plan.mesh, axis, rank)

    @property
    def held(self) -> list[MemoryBreakdown]:
        """What each rank holds: the same for all ranks of a stage."""
        model, plan = PRESETS[self.model.value], self.plan
        stages = [memory(model, plan, stage) for stage in range(plan.pp)]
        return [stages[plan.mesh.coordinates(rank)["pp"]] for rank in range(plan.world_size)]

    @property
    def scene(self) -> Scene:
        """The picture of the dials as they stand."""
        plan, rank, each = self.plan, self.rank.value, self.gpus_per_node.value
        sizes = {axis: getattr(plan, axis) for axis in AXES} | {"ranks": plan.world_size}
        title = say("title", model=NAMES[self.model.value], **sizes, nodes=self.cluster.num_nodes, each=each)
        uses = {axis: self._use(axis, plan.mesh.ranks_along(axis, rank)) for axis in AXES}
        limit = {"limit": _LIMIT, "limit_name": say("limit", size=format_bytes(_LIMIT), gpu=GPU)}
        return mesh_plan_scene(plan.mesh, uses, self.held, gpus_per_node=each, rank=rank, title=title, **limit)

    def _use(self, axis: str, group: list[int]) -> AxisUse:
        rank = self.rank.value
        link, sent = self.link(axis, rank), self.sent(rank)[axis]
        if link is None:
            return AxisUse(group=group, sent=0, link="", words="")
        where = {"link": link.name.split(" (")[0], "node": rank // self.gpus_per_node.value}
        cards = int(link.bandwidth / NETWORK.bandwidth)
        if link != INTRA[GPU] and cards > 1:
            crossed = say("cards", cards=cards, rate=format_bytes(NETWORK.bandwidth))
        else:
            crossed = say("inside" if link == INTRA[GPU] else "network", rate=format_bytes(link.bandwidth), **where)
        words = say("use", size=format_bytes(sent), time=format_seconds(link.seconds(sent)))
        return AxisUse(group=group, sent=sent, link=crossed, words=words)

    @property
    def sentence(self) -> str:
        """Where the rank stands, the axis on which it sends most, and whether the fullest rank fits."""
        rank, place = self.rank.value, self.plan.mesh.coordinates(self.rank.value)
        sent, held = self.sent(rank), [one.total for one in self.held]
        axis, full = max(sent, key=sent.get), held.index(max(held))
        most = say("most", axis=axis, size=format_bytes(sent[axis])) if sent[axis] else say("nothing")
        slow = say("slow") if self.link("tp", rank) not in (None, INTRA[GPU]) else ""
        sizes = {"held": format_bytes(held[full]), "limit": format_bytes(_LIMIT)}
        fits = say("fits" if held[full] <= _LIMIT else "fits_not", rank=full, **sizes)
        return say("where", rank=rank, **place) + most + slow + fits

    @property
    def rows(self) -> Rows:
        """Each stage, whose ranks are alike: who they are, their nodes, what one sends on each axis and holds."""
        return [self._row(stage) for stage in range(self.plan.pp)]

    def _row(self, stage: int) -> dict[str, str]:
        mesh, each = self.plan.mesh, self.gpus_per_node.value
        ranks = [rank for rank in range(mesh.world_size) if mesh.coordinates(rank)["pp"] == stage]
        cells = (str(stage), _ends(ranks), _ends([rank // each for rank in ranks]))
        first = dict(zip((say(f"column.{name}") for name in ("stage", "ranks", "nodes")), cells, strict=True))
        sends = {say("column.sends", axis=axis): format_bytes(sent) for axis, sent in self.sent(ranks[0]).items()}
        return first | sends | {say("column.holds"): format_bytes(self.held[ranks[0]].total)}

    def _pick(self, rank: str) -> None:
        """A click on a card."""
        if rank.isdecimal() and int(rank) < MOST_RANKS:
            self.rank.value = int(rank)

    def _draw(self, change: object = None) -> None:
        if (owner := getattr(change, "owner", None)) in (self.dp, self.pp, self.tp):
            self._turned = owner.description
        # The dial keeps its length: in a browser the key End goes to the end with which it was drawn.
        with suppress(ValueError):  # the picture's place says why
            last = self.plan.world_size - 1
            if self.rank.value > last:
                self.rank.value = last  # which draws
                return
        super()._draw(change)


def _ends(numbers: list[int]) -> str:
    return f"{numbers[0]}–{numbers[-1]}" if numbers[0] < numbers[-1] else str(numbers[0])


def _can_be_cut(model: ModelSpec, plan: Plan) -> bool:
    try:
        return plan.layers_on_stage(model, 0) > 0
    except ValueError:
        return False


@lru_cache(maxsize=64)  # all ranks of a stage send the same
def _sent(model: ModelSpec, plan: Plan, stage: int) -> dict[str, float]:
    found = axis_bytes(model, plan, stage)
    return {axis: getattr(found, axis) for axis in AXES}
