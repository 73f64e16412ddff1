"""The dials of chapter 11: a plan's step on any number of GPUs, its speed-up, where more stop paying, what it costs."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import ipywidgets

from helpers.draw.failures import time_words
from helpers.draw.scaling import speedup_scene
from helpers.draw.scene import Scene
from helpers.draw.stack import stacked_scene
from helpers.draw.waterfall import step_scene
from helpers.predict.advice.advise import advise
from helpers.predict.advice.fit import USABLE_SHARE, fullest
from helpers.predict.scaling import Point, TrainingTime, where_it_stops
from helpers.predict.scaling.curves import points_of
from helpers.predict.time.flops import mfu
from helpers.predict.time.model import StepTime, step_time
from helpers.predict.time.stacks import MEGATRON_CORE
from helpers.specs import GPUS, LINKS, PRESETS, Cluster, ModelSpec, Plan
from helpers.specs.clusters import INTRA
from helpers.units import format_bytes, format_seconds
from helpers.widgets.dials import choice, dial
from helpers.widgets.explorer import Explorer, Rows
from helpers.widgets.memory_examples import NAMES
from helpers.widgets.strategy_explorer import NETWORKS
from helpers.words import book

COUNTS = tuple(2**n for n in range(15))
TOKENS = {"1 B": 1e9, "10 B": 1e10, "100 B": 1e11, "300 B": 3e11, "1 T": 1e12, "2 T": 2e12, "15 T": 15e12}
NODE, LIMIT = 8, 0.7  # GPUs; the efficiency down to which more GPUs are said to pay
MICRO_BATCHES, CHUNKS, MOST_SUMS = (1, 2, 4, 8, 16, 32, 64), (1, 2, 4, 8), 32  # sums of gradients in 16 bits
say = book("steps").section("explorer")


class ScalingExplorer(Explorer):
    """How training scales, by the model of time. Without a front end: `.gpus.value = 2048`, then `.text`.

    model: a key of PRESETS; gpu: a key of GPUS. Dials: model, gpu, network (of a node of 8), gpus, batch (sequences of
    a step), tokens (of the whole training), tp, pp, zero, recompute. Micro-batch and chunks are the fastest that fit.
    `.points` is the curve, `.plan` and `.step` are those of the dials; the button sets the dials to the planner's plan.
    """

    TEXT = "[widget] ScalingExplorer: a step's waterfall and its speed-up on 1 to 16,384 GPUs, with dials for the plan"

    def __init__(
        self, model: str = "llama3-70b", gpu: str = "H100", *, network: str = "8 x 400 Gb/s", gpus: int = 512,
        batch: int = 1024, tp: int = 8, pp: int = 4, zero: int = 1, recompute: str = "none",
    ) -> None:  # fmt: skip
        self.model = choice([(NAMES[key], key) for key in PRESETS], model, say("model"), tooltip=say("context"))
        self.gpu = choice(tuple(GPUS), gpu, say("gpu"), tooltip=say("links"))
        networks = [(name.replace("8 x 400 Gb/s", "3.2 Tb/s"), name) for name in NETWORKS]
        self.network = dial(networks, network, say("network"), tooltip=say("cards"))
        self.gpus = dial([(f"{n:,}", n) for n in COUNTS], gpus, say("gpus"), tooltip=say("nodes"))
        self.batch = dial([(f"{2**n:,}", 2**n) for n in range(15)], batch, say("batch"), tooltip=say("sequences"))
        self.tokens = dial(list(TOKENS.items()), 15e12, say("tokens"), tooltip=say("training"))
        self.tp = dial((1, 2, 4, 8), tp, "TP", tooltip=say("tp"))
        self.pp = dial((1, 2, 4, 8, 16), pp, "PP", tooltip=say("pp"))
        self.zero = dial((0, 1, 2, 3), zero, "ZeRO", tooltip=say("zero"))
        self.recompute = dial(Plan.KNOWN["recompute"], recompute, say("recompute"), tooltip=say("again"))
        self.planner = ipywidgets.Button(description=say("planner"), tooltip=say("planner_tip"))
        self.planner.layout = ipywidgets.Layout(width="auto", max_width="348px", margin="2px 14px")
        self.planner.on_click(self._take_plan)
        self._is_setting = False
        cluster = (self.model, self.gpu, self.network, self.gpus, self.batch, self.tokens)
        super().__init__((*cluster, self.tp, self.pp, self.zero, self.recompute), controls=(self.planner,))

    @property
    def spec(self) -> ModelSpec:
        return PRESETS[self.model.value]

    @property
    def cluster(self) -> Cluster:
        return _cluster(self.gpu.value, self.network.value, self.gpus.value)

    @property
    def plan(self) -> Plan:
        """The plan of the dials, with the fastest micro-batch and chunks. ValueError where it cannot be or fit."""
        return self._at(self.gpus.value)[0]

    @property
    def step(self) -> StepTime:
        """Its step."""
        return self._at(self.gpus.value)[1]

    @property
    def points(self) -> tuple[Point, ...]:
        """The dials' plan on every count of GPUs on which it fits. ValueError where it does not on the dial's."""
        self._at(self.gpus.value)
        found = {gpus: one for gpus in COUNTS if isinstance(one := self._planned(gpus), tuple)}
        steps = [step for _, step in found.values()]
        seconds = [step.seconds for step in steps]
        return points_of(tuple(found), [self.batch.value / each for each in seconds], seconds, steps)

    def training(self, point: Point) -> TrainingTime:
        """Days and GPU-hours for the dial's tokens."""
        steps = self.tokens.value / (self.batch.value * self.spec.seq)
        return TrainingTime(gpus=point.gpus, seconds=steps * point.seconds)

    def mfu(self, point: Point) -> float:
        """Model FLOPs utilization, a share of 1."""
        peak = GPUS[self.gpu.value].flops
        return mfu(self.spec, batch=self.batch.value, seconds=point.seconds, peak_flops=peak, num_gpus=point.gpus)

    def _at(self, gpus: int) -> tuple[Plan, StepTime]:
        found = self._planned(gpus)
        if isinstance(found, str):
            raise ValueError(found)
        return found

    def _planned(self, gpus: int) -> tuple[Plan, StepTime] | str:
        layout = (self.tp.value, self.pp.value, self.zero.value, self.recompute.value)
        return _fastest(self.model.value, self.gpu.value, self.network.value, gpus, self.batch.value, layout)

    @property
    def scene(self) -> Scene:
        """The speed-up above, the waterfall of the dials' step below."""
        plan, step = self._at(self.gpus.value)
        points, names = self.points, {"model": NAMES[self.model.value], "gpu": self.gpu.value}
        title = say("title", batch=self.batch.value, **names)
        stops = where_it_stops(points, LIMIT)
        curve = speedup_scene(points, title=title, stops=stops, limit=LIMIT, yours=self.gpus.value)
        below = step_scene(step, title=say("step", gpus=self.gpus.value, plan=_plan_words(plan)))
        return stacked_scene(curve, below, title=title)

    @property
    def sentence(self) -> str:
        """The step, what binds, what the whole training costs, and where more GPUs stop paying."""
        points = self.points
        (here,) = (point for point in points if point.gpus == self.gpus.value)
        stops, whole, binds = where_it_stops(points, LIMIT), self.training(here), _most(here.step)
        told = {"gpus": here.gpus, "seconds": format_seconds(here.seconds), "mfu": self.mfu(here)}
        told |= {"binds": binds[0], "share": binds[1], "tokens": self.tokens.label, "days": time_words(whole.seconds)}
        told |= {"hours": float(f"{whole.gpu_hours:.3g}")}
        last = points[-1].gpus
        pays = "always" if stops.gpus == COUNTS[-1] else "batch_ends" if stops.gpus == last else "stops"
        return say("sentence", pays=say(pays, last=last if pays == "batch_ends" else stops.gpus, limit=LIMIT), **told)

    @property
    def rows(self) -> Rows:
        """A row for each count of GPUs: plan, step, efficiency, days, GPU-hours, what binds."""
        return [self._row(point) for point in self.points]

    def _row(self, point: Point) -> dict[str, str]:
        whole, (binds, share) = self.training(point), _most(point.step)
        cells = {
            "gpus": f"{point.gpus:,}" + " ✓" * (point.gpus == self.gpus.value),
            "rest": _batch_words(self._at(point.gpus)[0]),
            "time": format_seconds(point.seconds), "efficiency": f"{point.efficiency:.0%}",
            "mfu": f"{self.mfu(point):.0%}", "lasts": time_words(whole.seconds), "hours": f"{whole.gpu_hours:,.0f}",
            "binds": f"{binds} {share:.0%}",
        }  # fmt: skip
        return {say(f"column.{name}"): cell for name, cell in cells.items()}

    def _take_plan(self, button: object = None) -> None:
        """Set the dials to what the planner chooses for these GPUs and this batch; as they are where nothing fits."""
        plan = _advised(self.model.value, self.gpu.value, self.network.value, self.gpus.value, self.batch.value)
        if plan is None:
            return
        self._is_setting = True
        try:
            for name in ("tp", "pp", "zero", "recompute"):
                getattr(self, name).value = getattr(plan, name)
        finally:
            self._is_setting = False
        self._draw()

    def _draw(self, change: object = None) -> None:
        if not self._is_setting:
            super()._draw(change)


@lru_cache(maxsize=4096)
def _fastest(
    model: str, gpu: str, network: str, gpus: int, batch: int, layout: tuple[int, int, int, str]
) -> tuple[Plan, StepTime] | str:
    """The plan of a layout (tp, pp, zero, recompute) with the fastest micro-batch and chunks that fit; else why not."""
    spec, cluster, (tp, pp, zero, recompute) = PRESETS[model], _cluster(gpu, network, gpus), layout
    if gpus < tp * pp:
        return say("few", tp=tp, pp=pp, needed=tp * pp, gpus=gpus)
    spread = Plan(tp=tp, pp=pp, dp=gpus // (tp * pp), zero=zero, recompute=recompute, sequence_parallel=tp > 1)
    if batch % spread.dp:
        return say("small", batch=batch, replicas=spread.dp)
    try:
        spread.check(spec)
    except ValueError as error:
        return str(error)
    usable = USABLE_SHARE * cluster.gpu.memory
    plans = _batched(spec, spread, batch // spread.dp)
    fitting = [plan for plan in plans if fullest(spec, plan)[1].total <= usable]
    if not fitting:
        held = min(fullest(spec, plan)[1].total for plan in plans)
        return say("large", held=format_bytes(held), usable=format_bytes(usable), gpus=gpus)
    timed = [(plan, step_time(spec, plan, cluster, MEGATRON_CORE)) for plan in fitting]
    return min(timed, key=lambda one: one[1].seconds)


def _batched(spec: ModelSpec, spread: Plan, each: int) -> list[Plan]:
    """Micro-batches by powers of 2, and chunks that come out even; long sums of gradients are in fp32."""
    found = []
    for size in MICRO_BATCHES:
        count = each // size
        for chunks in CHUNKS if spread.pp > 1 and count % spread.pp == 0 else (1,):
            parts = spread.pp * chunks
            if each % size == 0 and (chunks == 1 or spec.num_layers % parts == 0 or (spec.num_layers + 2) % parts == 0):
                precision = "mixed_fp32_grads" if count > MOST_SUMS else "mixed"
                how = {"micro_batch": size, "num_microbatches": count, "num_chunks": chunks, "precision": precision}
                found.append(replace(spread, **how))
    return found


@lru_cache(maxsize=64)
def _advised(model: str, gpu: str, network: str, gpus: int, batch: int) -> Plan | None:
    """What the planner chooses; None where nothing fits."""
    chosen = advise(PRESETS[model], _cluster(gpu, network, gpus), global_batch=batch).chosen
    return chosen and chosen.plan


def _cluster(gpu: str, network: str, gpus: int) -> Cluster:
    """Nodes of 8, or a part of one."""
    cards, link = NETWORKS[network]
    inside = min(NODE, gpus)
    return Cluster(
        gpu=GPUS[gpu], gpus_per_node=inside, num_nodes=gpus // inside, intra=INTRA[gpu], inter=LINKS[link],
        network_cards=min(cards, inside),
    )  # fmt: skip


def _most(step: StepTime) -> tuple[str, float]:
    """What binds most of the step, and its share."""
    seconds = sum(bar.seconds for bar in step.bars if bar.binds == step.binds)
    return book("steps")(f"binds.{step.binds}"), seconds / step.seconds


def _plan_words(plan: Plan) -> str:
    sizes = {"TP": plan.tp, "PP": plan.pp, "DP": plan.dp}
    spread = " x ".join(f"{name} {size}" for name, size in sizes.items() if size > 1) or say("alone")
    zero = [f"ZeRO-{plan.zero}"] if plan.zero else []
    again = [say("again_words", what=plan.recompute)] if plan.recompute != "none" else []
    return say("plan", parts=[spread, *zero, _batch_words(plan), *again])


def _batch_words(plan: Plan) -> str:
    words = say("micro", size=plan.micro_batch, count=plan.num_microbatches)
    return words + say("chunks", chunks=plan.num_chunks) * (plan.num_chunks > 1)
