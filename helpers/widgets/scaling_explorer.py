"""Provides ScalingExplorer: how a training step scales to 16,384 GPUs, and what the whole training costs.

Dials choose the model, cluster, batch and plan. A PlanEstimate is a plan with its predicted memory, its step and its
MFU, the share of the GPUs' peak that the model's FLOPs use. A Point is a number of GPUs with the seconds of a step, the
speed-up and the efficiency, which is the speed-up per GPU. The picture has the speed-up, with the number of GPUs beyond
which more do not pay, and the parts of one step. What bounds a step, its bottleneck, is called `binds` in the code.
Chapter 11 uses it.

Explorer, the base class, shows `sentence`, `scene` (a picture as plain data) and `rows` (a table), and computes them
anew whenever a dial changes. A ValueError in one of them becomes a message instead of the picture. A saved notebook
keeps TEXT and a picture.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from helpers.draw.chapters.fault_tolerance import duration_text
from helpers.draw.chapters.scaling import speedup_scene
from helpers.draw.scene import Scene, stacked_scene
from helpers.draw.waterfall import step_scene
from helpers.learner.words import book, language
from helpers.predict.advice.advise import advise
from helpers.predict.advice.plans import PlanEstimate, PlanRequest
from helpers.predict.advice.search import context_method, fastest_plan, micro_batches
from helpers.predict.memory.rank_memory import RankMemory
from helpers.predict.scaling import Point, TrainingTime, where_it_stops
from helpers.predict.scaling.laws import points_of
from helpers.predict.time.step import StepTime
from helpers.quantities.units import format_bytes, format_seconds
from helpers.specs import GPUS, PRESETS, Cluster, Plan
from helpers.widgets.controls import Button, Control, choice, dial
from helpers.widgets.explorer import Explorer, Rows
from helpers.widgets.memory_explorer import MODEL_NAMES
from helpers.widgets.strategy_explorer import NETWORKS, cluster_of, network_text

COUNTS = tuple(2**n for n in range(15))  # of GPUs, and of sequences
# Tokens of the whole training, by the text on the dial.
TOKENS = {"1 B": 1e9, "10 B": 1e10, "100 B": 1e11, "300 B": 3e11, "1 T": 1e12, "2 T": 2e12, "15 T": 15e12}
GPUS_PER_NODE = 8
LIMIT = 0.7  # More GPUs are said to pay as long as the efficiency is at least this.
LAYOUT = ("tp", "pp", "cp", "zero", "recompute")  # dials that are fields of Plan
words = book("steps").section("explorer")  # the texts that are shown, by name: learner/words/steps.yaml


class ScalingExplorer(Explorer):
    """How training scales, by the model of time. Without a front end: `.gpus.value = 2048`, then `.text`.

    model: a key of PRESETS; gpu: a key of GPUS. Dials: model, gpu, network (of a node of 8), gpus, batch (sequences of
    a step), tokens (of the whole training), tp, pp, cp, zero, recompute. The micro-batch, and the chunks (stages of a
    pipeline per rank), are the fastest that fit. `.points` is the curve, `.estimate` the plan of the dials with its
    step; the button applies the planner's plan.
    """

    TEXT = "[widget] ScalingExplorer: a step's waterfall and its speed-up on 1 to 16,384 GPUs, with dials for the plan"

    def __init__(
        self, model: str = "llama3-70b", gpu: str = "H100", *, network: str = "8 x 400 Gb/s", gpus: int = 512,
        batch: int = 1024, tp: int = 8, pp: int = 4, cp: int = 1, zero: int = 1, recompute: str = "none",
    ) -> None:  # fmt: skip
        # The texts named as tooltips say in a few words what each dial means.
        self.model = choice(PRESETS, model, words("model"), label=MODEL_NAMES.get, tooltip=words("context"))
        self.gpu = choice(tuple(GPUS), gpu, words("gpu"), tooltip=words("links"))
        self.network = dial(NETWORKS, network, words("network"), label=network_text, tooltip=words("cards"))
        self.gpus = dial(COUNTS, gpus, words("gpus"), label="{:,}".format, tooltip=words("nodes"))
        self.batch = dial(COUNTS, batch, words("batch"), label="{:,}".format, tooltip=words("sequences"))
        self.tokens = dial(list(TOKENS.items()), 15e12, words("tokens"), tooltip=words("training"))
        self.tp = dial((1, 2, 4, 8), tp, "TP", tooltip=words("tp"))
        self.pp = dial([2**n for n in range(7)], pp, "PP", tooltip=words("pp"))
        self.cp = dial([2**n for n in range(7)], cp, "CP", tooltip=words("cp"))
        self.zero = dial((0, 1, 2, 3), zero, "ZeRO", tooltip=words("zero"))
        self.recompute = dial(Plan.KNOWN["recompute"], recompute, words("recompute"), tooltip=words("again"))
        self.planner = Button(self._apply_planner, words("planner"), tooltip=words("planner_tip"), is_wide=True)
        self._is_paused = False  # True while several dials are set, so that the picture is drawn once, at the end
        cluster = (self.model, self.gpu, self.network, self.gpus, self.batch, self.tokens)
        super().__init__((*cluster, self.tp, self.pp, self.cp, self.zero, self.recompute), controls=(self.planner,))

    @property
    def estimate(self) -> PlanEstimate:
        """The dials' plan with its memory, step, MFU and tokens per second. Raises ValueError if it does not fit."""
        estimate = self._estimate_or_reason(self.gpus.value)
        if isinstance(estimate, str):
            raise ValueError(estimate)
        return estimate

    @property
    def points(self) -> tuple[Point, ...]:
        """The dials' plan on every number of GPUs on which it fits. The most efficient one has efficiency 1.

        Raises ValueError where the plan does not fit on the dial's number of GPUs.
        """
        assert self.estimate  # the property raises the ValueError
        every = {gpus: self._estimate_or_reason(gpus) for gpus in COUNTS}
        fitting = {gpus: each for gpus, each in every.items() if isinstance(each, PlanEstimate)}
        steps = [each.step for each in fitting.values()]
        seconds = [step.seconds for step in steps]
        # The speed of each is the sequences per second.
        points = points_of(tuple(fitting), [self.batch.value / each for each in seconds], seconds, steps)
        # The fewest GPUs need not be the most efficient: each then has many micro-batches and their traffic.
        best = max(point.efficiency for point in points)
        return tuple(replace(each, speedup=each.speedup / best, efficiency=each.efficiency / best) for each in points)

    @property
    def stops(self) -> Point:
        """The largest number of GPUs that pays: from the most efficient one on, efficiency is at least `LIMIT`."""
        points = self.points
        ideal = next(index for index, point in enumerate(points) if point.efficiency == 1)  # the most efficient point
        return where_it_stops(points[ideal:], LIMIT)

    def training(self, point: Point) -> TrainingTime:
        """Days and GPU-hours for the dial's tokens."""
        steps = self.tokens.value / (self.batch.value * PRESETS[self.model.value].seq)
        return TrainingTime(gpus=point.gpus, seconds=steps * point.seconds)

    def _estimate_or_reason(self, gpus: int) -> PlanEstimate | str:
        """The dials' plan on so many GPUs, or a sentence why it cannot run there."""
        layout = tuple(getattr(self, name).value for name in LAYOUT)
        cluster = (self.gpu.value, self.network.value, gpus)
        return _fastest(self.model.value, cluster, self.batch.value, layout, language())

    @property
    def scene(self) -> Scene:
        """The speed-up above, the parts of one step below."""
        estimate = self.estimate
        points, names = self.points, {"model": MODEL_NAMES[self.model.value], "gpu": self.gpu.value}
        title = words("title", batch=self.batch.value, **names)
        curve = speedup_scene(points, title=title, stops=self.stops, limit=LIMIT, yours=self.gpus.value)
        below = step_scene(estimate.step, title=words("step", gpus=self.gpus.value, plan=estimate.plan_text))
        return stacked_scene(curve, below, title=title)

    @property
    def sentence(self) -> str:
        """The step, its bottleneck, what the whole training costs, and from where on more GPUs do not pay."""
        points = self.points
        (here,) = (point for point in points if point.gpus == self.gpus.value)
        stops, training, (bottleneck, share) = self.stops, self.training(here), _bottleneck(here.step)
        values = {"gpus": here.gpus, "seconds": format_seconds(here.seconds), "mfu": self.estimate.mfu}
        values |= {"binds": bottleneck, "share": share, "tokens": self.tokens.label}
        low, high = map(format_seconds, here.step.interval)  # 80 % of real steps are expected between the two
        values |= {"days": duration_text(training.seconds), "hours": float(f"{training.gpu_hours:.3g}")}  # three digits
        values |= {"low": low, "high": high}
        # More GPUs always pay, or the batch has too few sequences for more, or the efficiency falls below LIMIT.
        last = points[-1].gpus
        pays = "always" if stops.gpus == COUNTS[-1] else "batch_ends" if stops.gpus == last else "stops"
        pays_text = words(pays, last=last if pays == "batch_ends" else stops.gpus, limit=LIMIT)
        return words("sentence", pays=pays_text, **values)

    @property
    def rows(self) -> Rows:
        """One row per number of GPUs: plan, step, efficiency, days, GPU-hours and bottleneck."""
        return [self._row(point) for point in self.points]

    def _row(self, point: Point) -> dict[str, str]:
        """One number of GPUs, as the cells of the table."""
        estimate, training = self._estimate_or_reason(point.gpus), self.training(point)
        plan, (bottleneck, share) = estimate.plan, _bottleneck(point.step)
        cells = {
            "gpus": f"{point.gpus:,}" + " ✓" * (point.gpus == self.gpus.value),
            # "rows": the sequences of a micro-batch, and how many micro-batches a step has
            "rows": f"{plan.micro_batch} x {plan.num_microbatches}", "time": format_seconds(point.seconds),
            "efficiency": f"{point.efficiency:.0%}", "mfu": f"{estimate.mfu:.0%}",
            "lasts": duration_text(training.seconds), "hours": f"{training.gpu_hours:,.0f}",
            "binds": f"{bottleneck} {share:.0%}",
        }  # fmt: skip
        return {words(f"column.{name}"): cell for name, cell in cells.items()}

    def _apply_planner(self) -> None:
        """Set the dials to the planner's plan for these GPUs and this batch; leave them where no plan fits."""
        self.planner.disabled, self.planner.description = True, words("searches")
        self._show()
        cluster = _cluster(self.gpu.value, self.network.value, self.gpus.value)
        try:
            chosen = advise(PRESETS[self.model.value], cluster, global_batch=self.batch.value).chosen
        except ValueError:
            chosen = None
        self.planner.disabled, self._is_paused = False, True  # paused: the picture is drawn once, after all dials
        fits = chosen is not None and not chosen.host_bytes  # the dials cannot show a plan that uses the host's memory
        if fits:
            for name in LAYOUT:
                getattr(self, name).value = getattr(chosen.plan, name)
        self._is_paused = False
        self.planner.description = words("planner" if fits else "hopeless")  # that no plan fits
        super()._draw()  # and not self._draw(), which would remove what the button says

    def _draw(self, turned: Control | None = None) -> None:
        """Draw, unless several dials are being set; the button then offers the planner again."""
        if not self._is_paused:
            self.planner.description = words("planner")
            super()._draw(turned)


@lru_cache(maxsize=4096)  # each picture needs up to 15 of them, one per number of GPUs
def _fastest(
    model: str, cluster_dials: tuple[str, str, int], batch: int, layout: tuple, lang: str
) -> PlanEstimate | str:
    """The plan of a layout with the fastest micro-batch and chunks that fit, or a sentence why there is none.

    cluster_dials: GPU, network and number of GPUs. layout: the values of the dials in LAYOUT. lang: the language of the
    sentence, which must be a part of the cache's key.
    """
    spec, cluster, gpus = PRESETS[model], _cluster(*cluster_dials), cluster_dials[2]
    tp, pp, cp, zero, recompute = layout
    needed = tp * pp * cp  # GPUs of one replica of the model
    if gpus < needed:
        return words("few", tp=tp, pp=pp, cp=cp, needed=needed, gpus=gpus)
    request = PlanRequest(model=spec, cluster=cluster, global_batch=batch)
    # How the model is spread over the GPUs; micro-batch and chunks follow below.
    axes = {"tp": tp, "pp": pp, "cp": cp, "dp": gpus // needed}
    spread = Plan(**axes, zero=zero, sequence_parallel=tp > 1, cp_method=context_method(request, tp, cp))
    if batch % spread.dp:
        return words("small", batch=batch, replicas=spread.dp)
    try:
        spread.check(spec)
    except ValueError as error:
        return str(error)
    # Each row has one micro-batch and number of chunks. Its first plan that fits is the one to take the time of.
    of_sizes = micro_batches(request, spread)
    rows = [[*row.plans(zero, [recompute])] for of_size in of_sizes for row in of_size.rows]
    memory = RankMemory(spec)
    fitting = [next((plan for plan in row if memory.fits(plan, request.usable)), None) for row in rows]
    if not any(fitting):
        least = min(memory.fullest_stage(plan)[1].total for row in rows for plan in row)
        return words("large", held=format_bytes(least), usable=format_bytes(request.usable))
    return fastest_plan(request, filter(None, fitting))


def _cluster(gpu: str, network: str, gpus: int) -> Cluster:
    """Nodes of 8 GPUs, or a part of one node."""
    return cluster_of(gpu, network, min(GPUS_PER_NODE, gpus), max(1, gpus // GPUS_PER_NODE))


def _bottleneck(step: StepTime) -> tuple[str, float]:
    """What the step is bound by for most of its time, and the share of that time."""
    # A bar is a term of the step, and its `binds` names what bounds it, such as "network".
    seconds = sum(bar.seconds for bar in step.bars if bar.binds == step.binds)
    return book("steps")(f"binds.{step.binds}"), seconds / step.seconds
