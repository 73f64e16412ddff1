"""The dials of chapter 11: a plan's step on any number of GPUs, its speed-up, where more stop paying, what it costs."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import ipywidgets

from helpers.draw.failures import duration_text
from helpers.draw.scaling import speedup_scene
from helpers.draw.scene import Scene, stacked_scene
from helpers.draw.waterfall import step_scene
from helpers.learner.words import book, language
from helpers.predict.advice.advise import advise
from helpers.predict.advice.fit import fullest_stage
from helpers.predict.advice.plans import PlanEstimate, PlanRequest
from helpers.predict.advice.search import plans_by_micro_batch, timed_plans
from helpers.predict.scaling import Point, TrainingTime, where_it_stops
from helpers.predict.scaling.laws import points_of
from helpers.predict.time.step import StepTime
from helpers.quantities.units import format_bytes, format_seconds
from helpers.specs import GPUS, PRESETS, Cluster, Plan
from helpers.widgets.dials import choice, dial
from helpers.widgets.explorer import Explorer, Rows
from helpers.widgets.memory_examples import NAMES
from helpers.widgets.strategy_explorer import NETWORKS, cluster_of

COUNTS = tuple(2**n for n in range(15))
TOKENS = {"1 B": 1e9, "10 B": 1e10, "100 B": 1e11, "300 B": 3e11, "1 T": 1e12, "2 T": 2e12, "15 T": 15e12}
NODE, LIMIT = 8, 0.7  # GPUs; the efficiency down to which more GPUs are said to pay
LAYOUT = ("tp", "pp", "cp", "zero", "recompute")
say = book("steps").section("explorer")


class ScalingExplorer(Explorer):
    """How training scales, by the model of time. Without a front end: `.gpus.value = 2048`, then `.text`.

    model: a key of PRESETS; gpu: a key of GPUS. Dials: model, gpu, network (of a node of 8), gpus, batch (sequences of
    a step), tokens (of the whole training), tp, pp, cp, zero, recompute; micro-batch and chunks are the fastest that
    fit. `.points` is the curve, `.found` the plan of the dials with its step; the button takes the planner's plan.
    """

    TEXT = "[widget] ScalingExplorer: a step's waterfall and its speed-up on 1 to 16,384 GPUs, with dials for the plan"

    def __init__(
        self, model: str = "llama3-70b", gpu: str = "H100", *, network: str = "8 x 400 Gb/s", gpus: int = 512,
        batch: int = 1024, tp: int = 8, pp: int = 4, cp: int = 1, zero: int = 1, recompute: str = "none",
    ) -> None:  # fmt: skip
        self.model = choice([(NAMES[key], key) for key in PRESETS], model, say("model"), tooltip=say("context"))
        self.gpu = choice(tuple(GPUS), gpu, say("gpu"), tooltip=say("links"))
        networks = [(name.replace("8 x 400 Gb/s", "3.2 Tb/s"), name) for name in NETWORKS]
        self.network = dial(networks, network, say("network"), tooltip=say("cards"))
        self.gpus = dial([(f"{n:,}", n) for n in COUNTS], gpus, say("gpus"), tooltip=say("nodes"))
        self.batch = dial([(f"{2**n:,}", 2**n) for n in range(15)], batch, say("batch"), tooltip=say("sequences"))
        self.tokens = dial(list(TOKENS.items()), 15e12, say("tokens"), tooltip=say("training"))
        self.tp = dial((1, 2, 4, 8), tp, "TP", tooltip=say("tp"))
        self.pp = dial([2**n for n in range(7)], pp, "PP", tooltip=say("pp"))
        self.cp = dial([2**n for n in range(7)], cp, "CP", tooltip=say("cp"))
        self.zero = dial((0, 1, 2, 3), zero, "ZeRO", tooltip=say("zero"))
        self.recompute = dial(Plan.KNOWN["recompute"], recompute, say("recompute"), tooltip=say("again"))
        self.planner = ipywidgets.Button(description=say("planner"), tooltip=say("planner_tip"))
        self.planner.layout = ipywidgets.Layout(width="auto", max_width="348px", margin="2px 14px")
        self.planner.on_click(self._take_plan)
        self._is_setting = False
        cluster = (self.model, self.gpu, self.network, self.gpus, self.batch, self.tokens)
        super().__init__((*cluster, self.tp, self.pp, self.cp, self.zero, self.recompute), controls=(self.planner,))

    @property
    def found(self) -> PlanEstimate:
        """The plan of the dials, its memory, step, MFU and tokens per second. ValueError where it cannot be or fit."""
        found = self._planned(self.gpus.value)
        if isinstance(found, str):
            raise ValueError(found)
        return found

    @property
    def points(self) -> tuple[Point, ...]:
        """The dials' plan on every count of GPUs on which it fits; ideal is the count whose GPUs do most each.

        ValueError where it does not fit on the dial's count.
        """
        assert self.found  # or its sentence
        found = {gpus: one for gpus in COUNTS if isinstance(one := self._planned(gpus), PlanEstimate)}
        steps = [one.step for one in found.values()]
        seconds = [step.seconds for step in steps]
        points = points_of(tuple(found), [self.batch.value / each for each in seconds], seconds, steps)
        most = max(one.efficiency for one in points)  # few GPUs may be slow each: many sums, traffic for each of them
        return tuple(replace(one, speedup=one.speedup / most, efficiency=one.efficiency / most) for one in points)

    @property
    def stops(self) -> Point:
        """The largest count that pays: from the ideal one on, efficiency is at least `LIMIT`."""
        points = self.points
        ideal = next(number for number, one in enumerate(points) if one.efficiency == 1)
        return where_it_stops(points[ideal:], LIMIT)

    def training(self, point: Point) -> TrainingTime:
        """Days and GPU-hours for the dial's tokens."""
        steps = self.tokens.value / (self.batch.value * PRESETS[self.model.value].seq)
        return TrainingTime(gpus=point.gpus, seconds=steps * point.seconds)

    def _planned(self, gpus: int) -> PlanEstimate | str:
        layout = tuple(getattr(self, name).value for name in LAYOUT)
        cluster = (self.gpu.value, self.network.value, gpus)
        return _fastest(self.model.value, cluster, self.batch.value, layout, language())

    @property
    def scene(self) -> Scene:
        """The speed-up above, the waterfall of the dials' step below."""
        found = self.found
        points, names = self.points, {"model": NAMES[self.model.value], "gpu": self.gpu.value}
        title = say("title", batch=self.batch.value, **names)
        curve = speedup_scene(points, title=title, stops=self.stops, limit=LIMIT, yours=self.gpus.value)
        below = step_scene(found.step, title=say("step", gpus=self.gpus.value, plan=found.plan_text))
        return stacked_scene(curve, below, title=title)

    @property
    def sentence(self) -> str:
        """The step, what binds, what the whole training costs, and where more GPUs stop paying."""
        points = self.points
        (here,) = (point for point in points if point.gpus == self.gpus.value)
        stops, whole, binds = self.stops, self.training(here), _most(here.step)
        told = {"gpus": here.gpus, "seconds": format_seconds(here.seconds), "mfu": self.found.mfu}
        told |= {
            "binds": binds[0],
            "share": binds[1],
            "tokens": self.tokens.label,
            "days": duration_text(whole.seconds),
        }
        low, high = map(format_seconds, here.step.interval)
        told |= {"hours": float(f"{whole.gpu_hours:.3g}"), "low": low, "high": high}
        last = points[-1].gpus
        pays = "always" if stops.gpus == COUNTS[-1] else "batch_ends" if stops.gpus == last else "stops"
        return say("sentence", pays=say(pays, last=last if pays == "batch_ends" else stops.gpus, limit=LIMIT), **told)

    @property
    def rows(self) -> Rows:
        """A row for each count of GPUs: plan, step, efficiency, days, GPU-hours, what binds."""
        return [self._row(point) for point in self.points]

    def _row(self, point: Point) -> dict[str, str]:
        found, whole, (binds, share) = self._planned(point.gpus), self.training(point), _most(point.step)
        plan = found.plan
        cells = {
            "gpus": f"{point.gpus:,}" + " ✓" * (point.gpus == self.gpus.value),
            "rows": f"{plan.micro_batch} x {plan.num_microbatches}", "time": format_seconds(point.seconds),
            "efficiency": f"{point.efficiency:.0%}", "mfu": f"{found.mfu:.0%}", "lasts": duration_text(whole.seconds),
            "hours": f"{whole.gpu_hours:,.0f}", "binds": f"{binds} {share:.0%}",
        }  # fmt: skip
        return {say(f"column.{name}"): cell for name, cell in cells.items()}

    def _take_plan(self, button: object = None) -> None:
        """Set the dials to what the planner chooses for these GPUs and this batch; as they are where nothing fits."""
        self.planner.disabled, self.planner.description = True, say("searches")
        cluster = _cluster(self.gpu.value, self.network.value, self.gpus.value)
        try:
            chosen = advise(PRESETS[self.model.value], cluster, global_batch=self.batch.value).chosen
        except ValueError:
            chosen = None
        self.planner.disabled, self._is_setting = False, True
        if fits := chosen is not None and not chosen.host_bytes:
            for name in LAYOUT:
                getattr(self, name).value = getattr(chosen.plan, name)
        self._is_setting = False
        self._draw()
        self.planner.description = say("planner" if fits else "hopeless")

    def _draw(self, change: object = None) -> None:
        if not self._is_setting:
            super()._draw(change)
            self.planner.description = say("planner")


@lru_cache(maxsize=4096)
def _fastest(model: str, where: tuple[str, str, int], batch: int, layout: tuple, lang: str) -> PlanEstimate | str:
    """The plan of a LAYOUT with the fastest micro-batch and chunks that fit; else why not."""
    spec, cluster, gpus, (tp, pp, cp, zero, recompute) = PRESETS[model], _cluster(*where), where[2], layout
    if gpus < (needed := tp * pp * cp):
        return say("few", tp=tp, pp=pp, cp=cp, needed=needed, gpus=gpus)
    spread = Plan(tp=tp, pp=pp, cp=cp, dp=gpus // needed, zero=zero, sequence_parallel=tp > 1)
    if batch % spread.dp:
        return say("small", batch=batch, replicas=spread.dp)
    try:
        spread.check(spec)
    except ValueError as error:
        return str(error)
    work = PlanRequest(model=spec, cluster=cluster, global_batch=batch)
    every = (row for rows in plans_by_micro_batch(work, spread) for row in rows)
    rows = [[plan for plan in row if plan.recompute == recompute] for row in every]
    held = {plan: fullest_stage(spec, plan) for row in rows for plan in row}
    fits = [[(plan, *held[plan]) for plan in row if held[plan][1].total <= work.usable] for row in rows]
    fitting = [row[0] for row in fits if row]
    if not fitting:
        least = format_bytes(min(bytes_.total for _, bytes_ in held.values()))
        return say("large", held=least, usable=format_bytes(work.usable))
    return min(timed_plans(work, fitting), key=lambda one: one.seconds)


def _cluster(gpu: str, network: str, gpus: int) -> Cluster:
    """Nodes of 8, or a part of one."""
    return cluster_of(gpu, network, min(NODE, gpus), max(1, gpus // NODE))


def _most(step: StepTime) -> tuple[str, float]:
    """What binds most of the step, and its share."""
    seconds = sum(bar.seconds for bar in step.bars if bar.binds == step.binds)
    return book("steps")(f"binds.{step.binds}"), seconds / step.seconds
