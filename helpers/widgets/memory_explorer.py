"""The dials of the memory chapter: a model, a way to spread it, a GPU, and where the bytes of each rank go."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import ipywidgets

from helpers.draw import memory_scene
from helpers.draw.palette import kind_word
from helpers.draw.scene import Scene
from helpers.learner.words import book
from helpers.predict.advice.fit import Fit, fit
from helpers.predict.memory import memory, rank_kinds
from helpers.quantities.units import format_bytes
from helpers.records import MEMORY_KINDS, MemoryBreakdown
from helpers.specs import GPUS, PRESETS, ModelSpec, Plan
from helpers.widgets.dials import choice, dial
from helpers.widgets.explorer import Explorer, Rows
from helpers.widgets.memory_examples import EXAMPLES, FREE, NAMES
from helpers.widgets.overlay import overlay_rows, overlay_words, rank_of

say = book("memory")
_POWERS = [2**n for n in range(15)]
_BOXES = ("num_layers", "hidden", "num_heads", "vocab")  # what the number boxes say, in their order
_SMALL = 0.02  # of a GPU's memory: bars below it would be slivers beside the line of its capacity
_COLUMN, _LABEL, _BOX = 262, 100, 190  # pixels
_PLAN_DIALS = ("dp", "tp", "pp", "cp", "zero", "micro_batch", "num_microbatches", "sequence_parallel", "recompute")
_PLAN_DIALS += ("attention", "precision", "optimizer")


class MemoryExplorer(Explorer):
    """What fills the memory of each rank. Without a front end: `.zero.value = 1`, then `.sentence` or `.rows`.

    model: a key of PRESETS, "free" for the number boxes layers, hidden, heads and vocabulary, or the ModelSpec of a
    GPT. gpu: a key of GPUS. plan: where the dials start. measured: name -> MemoryBreakdown of that model and plan; its
    bars stand below the predicted ones, and words say how far apart they are. `lay_over` adds what another plan
    measured: the dials show it when they come there. A name such as "rank 3, at the peak" says whose prediction counts.
    hints: False leaves the smallest change that would make it fit to the learner and to the button.
    Dials: each field of Plan by its name (dp, tp, zero, …), `model`, `gpu`, `seq`, and `example`, which sets all of
    them. The button `make_it_fit` takes the offered change.
    """

    TEXT = "[widget] MemoryExplorer: the memory of each rank, with dials for model, GPU, plan, batch and precision"

    def __init__(
        self,
        model: str | ModelSpec = "llama3-8b",
        gpu: str = "H100",
        measured: Mapping[str, MemoryBreakdown] | None = None,
        *,
        plan: Plan | None = None,
        hints: bool = True,
    ) -> None:
        self._hints = hints
        self._measured: dict[tuple[ModelSpec, Plan], dict[str, MemoryBreakdown]] = {}
        self._is_setting = False
        self._make_dials(FREE if isinstance(model, ModelSpec) else model, gpu)
        look = {"layout": _width(_BOX), "style": _label_width(76)}
        self.boxes = tuple(
            ipywidgets.IntText(value=value, description=say(f"dial.{name}"), **look)
            for name, value in {"layers": 24, "hidden": 2048, "heads": 16, "vocabulary": 50_257}.items()
        )
        self.make_it_fit = ipywidgets.Button(description=say("dial.make_it_fit"), tooltip=say("dial.set"))
        self.make_it_fit.on_click(self._take_advice)
        plan_dials = tuple(getattr(self, name) for name in _PLAN_DIALS)
        super().__init__((self.example, self.model, self.gpu, self.seq, *plan_dials, *self.boxes))
        self.children = (self._arranged(), *self.children[1:])
        if isinstance(model, ModelSpec) or plan:
            self.show(model, gpu, plan or self.plan)
        if measured:
            self.lay_over(self.plan, measured)

    def _make_dials(self, model: str, gpu: str) -> None:
        self.example = choice([(say("dial.choose"), ""), *((name, name) for name in EXAMPLES)], "", say("dial.example"))
        self.model = choice([(_named(key), key) for key in (*NAMES, FREE)], model, say("dial.model"))
        seq = PRESETS[model].seq if model in PRESETS else 1024
        self.seq = dial([(f"{n:,}", n) for n in (128, 256, *_POWERS[9:], 32_768, 131_072)], seq, say("dial.sequence"))
        gpus = [(f"{key}, {format_bytes(one.memory)}", key) for key, one in GPUS.items()]
        self.gpu = choice(gpus, gpu, say("dial.GPU"), tooltip=say("headroom"))
        self.dp = dial(_POWERS, 1, "DP", tooltip=say("dial.dp"))
        self.tp = dial((1, 2, 3, 4, 6, 8, 16), 1, "TP", tooltip=say("dial.tp"))
        self.pp = dial((1, 2, 3, 4, 6, 8, 12, 16, 32, 64), 1, "PP", tooltip=say("dial.pp"))
        self.cp = dial((1, 2, 4, 8, 16), 1, "CP", tooltip=say("dial.cp"))
        self.zero = dial((0, 1, 2, 3), 0, say("dial.zero"), tooltip=say("dial.shards"))
        self.sequence_parallel = choice(
            [(say(f"dial.{on}"), on) for on in (False, True)], False, say("dial.sequence_parallel")
        )
        self.micro_batch = dial(
            (1, 2, 3, 4, 6, 8, 16, 32, 64), 1, say("dial.micro_batch"), tooltip=say("dial.together")
        )
        self.num_microbatches = dial(_POWERS[:10], 1, say("dial.num_microbatches"), tooltip=say("dial.before"))
        self.recompute = choice(Plan.KNOWN["recompute"], "none", say("dial.recompute"))
        self.attention = choice(Plan.KNOWN["attention"], "flash", say("dial.attention"))
        self.precision = choice(Plan.KNOWN["precision"], "mixed", say("dial.precision"))
        self.optimizer = choice(Plan.KNOWN["optimizer"], "adamw", say("dial.optimizer"))

    def _arranged(self) -> ipywidgets.VBox:
        """Examples and model above, then three columns; 800 pixels hold it, a narrower page wraps."""
        for wide in (self.example, self.model):
            wide.layout.width, wide.style.description_width = f"{1.5 * _COLUMN:.0f}px", "62px"
        columns = (
            _column(say("dial.spread"), (self.dp, self.tp, self.pp, self.cp, self.sequence_parallel)),
            _column(say("dial.feed"), (self.seq, self.micro_batch, self.num_microbatches, self.gpu)),
            _column(say("dial.save"), (self.zero, self.recompute, self.attention, self.precision, self.optimizer)),
        )
        self.make_it_fit.layout = ipywidgets.Layout(
            width=f"{_COLUMN - _LABEL - 14}px", margin=f"4px 2px 2px {_LABEL + 8}px"
        )
        columns[1].children = (*columns[1].children, self.make_it_fit)
        return ipywidgets.VBox([_row(self.example, self.model), _row(*self.boxes), _row(*columns)])

    @property
    def spec(self) -> ModelSpec:
        """The model of the dials. ValueError for a shape that cannot be."""
        if self.model.value != FREE:
            return replace(PRESETS[self.model.value], seq=self.seq.value)
        shape = (box.value for box in self.boxes)
        return ModelSpec(**dict(zip(_BOXES, shape, strict=True)), seq=self.seq.value)

    @property
    def plan(self) -> Plan:
        """The plan of the dials."""
        return Plan(**{name: getattr(self, name).value for name in _PLAN_DIALS})

    @property
    def advice(self) -> Fit:
        """Whether it fits, and the smallest change. ValueError where the plan does not fit the model."""
        return fit(self.spec, self.plan, GPUS[self.gpu.value])

    @property
    def bars(self) -> dict[str, MemoryBreakdown]:
        """Each kind of rank; what the offered change makes of the fullest one; then what was measured."""
        bars = {kind.name: kind.breakdown for kind in rank_kinds(self.spec, self.plan)}
        if self._hints and self.advice.changes and self.advice.suggested_memory:
            bars[say("after")] = self.advice.suggested_memory
        return bars | {say("measured", name=name): one for name, one in self.measured.items()}

    @property
    def measured(self) -> dict[str, MemoryBreakdown]:
        """What was measured with the dials as they stand; empty where nobody measured."""
        return self._measured.get((self.spec, self.plan), {})

    @property
    def predicted(self) -> dict[str, MemoryBreakdown]:
        """The prediction that belongs to each of `measured`: that of its rank, else that of the fullest one."""
        stages = {name: self._stage(rank_of(name)) for name in self.measured}
        return {name: memory(self.spec, self.plan, stage) for name, stage in stages.items()}

    def _stage(self, rank: int | None) -> int:
        if rank is None:
            return self.advice.stage
        if rank >= self.plan.world_size:
            raise ValueError(f"measured on rank {rank}, but this plan has ranks 0 to {self.plan.world_size - 1}")
        return self.plan.mesh.coordinates(rank)["pp"]

    @property
    def scene(self) -> Scene:
        """The picture of the dials. What is next to nothing on this GPU gets an axis of its own, without the limit."""
        size, gpus = self.advice.usable, {"gpus": self.plan.world_size, "gpu": self.gpu.value}
        title = say("title", name=_model(self.model.value), params=self.spec.num_params, **gpus)
        is_small = max(bar.total for bar in self.bars.values()) < _SMALL * size
        return memory_scene(self.bars, capacity=None if is_small else size, capacity_name=say("usable"), title=title)

    @property
    def sentence(self) -> str:
        """Whether it fits, what takes most, the smallest change that makes it fit, and how far off measurements are."""
        advice = self.advice
        words = (advice.text,) if self._hints else (advice.verdict, advice.largest_kind)
        return say("between").join(filter(None, (*words, self._overlay_words)))

    @property
    def _overlay_words(self) -> str:
        if self._measured and not self.measured:
            return say("not_measured")
        return overlay_words(self.predicted, self.measured)

    @property
    def rows(self) -> Rows:
        """Bytes by kind, a row for each bar; a kind that nobody holds is left out."""
        bars = self.bars
        kinds = [kind for kind in MEMORY_KINDS if any(getattr(bar, kind) for bar in bars.values())]
        return [
            {say("ranks"): name} | {kind_word(kind): format_bytes(getattr(bar, kind)) for kind in (*kinds, "total")}
            for name, bar in bars.items()
        ] + overlay_rows(self.predicted, self.measured, kinds)

    def show(self, model: str | ModelSpec, gpu: str, plan: Plan) -> None:
        """Set the dials to a model (a key of PRESETS, or the ModelSpec of a GPT), a GPU and a plan; draw once."""
        values = {"gpu": gpu, **_fields(_shown(plan))}
        if not isinstance(model, ModelSpec):
            return self._set(
                values | {"model": model, "seq": PRESETS[model].seq if model in PRESETS else self.seq.value}
            )
        shape = (model.num_layers, model.hidden, model.num_heads, model.vocab)
        if model != ModelSpec(**dict(zip(_BOXES, shape, strict=True)), seq=model.seq):
            raise ValueError(f"the number boxes describe a GPT as ModelSpec does by default; this is {model}")
        boxes = zip(self.boxes, shape, strict=True)
        return self._set(values | {"model": FREE, "seq": model.seq}, boxes)

    def lay_over(self, plan: Plan, measured: Mapping[str, MemoryBreakdown]) -> MemoryExplorer:
        """Keep what was measured with the dials' model under `plan`, and show it whenever the dials stand there."""
        self._measured[self.spec, _shown(plan)] = dict(measured)
        self._draw()
        return self

    def _set(self, values: Mapping[str, object], boxes: Iterable[tuple[ipywidgets.IntText, int]] = ()) -> None:
        self._is_setting = True
        try:
            for name, value in values.items():
                _turn(getattr(self, name), value)
            for box, number in boxes:
                box.value = number
        finally:
            self._is_setting = False
        self._draw()

    def _take_advice(self, button: object = None) -> None:
        if self.advice.suggested:
            self._set(_fields(self.advice.suggested))

    def _draw(self, change: object = None) -> None:
        if self._is_setting:
            return
        moved = getattr(change, "owner", None)
        if moved is self.example and self.example.value:
            return self.show(*EXAMPLES[self.example.value])
        if moved is self.model and self.model.value != FREE:
            return self._set({"example": "", "seq": PRESETS[self.model.value].seq})
        if moved in self.dials and self.example.value:
            return self._set({"example": ""})
        for box in self.boxes:
            box.layout.display = "" if self.model.value == FREE else "none"
        super()._draw(change)
        self.make_it_fit.disabled = not self._can_be_helped()

    def _can_be_helped(self) -> bool:
        try:
            return bool(self.advice.changes)
        except ValueError:
            return False


def _fields(plan: Plan) -> dict[str, object]:
    return {name: getattr(plan, name) for name in _PLAN_DIALS}


def _shown(plan: Plan) -> Plan:
    """The plan, if the dials can show it."""
    if plan != Plan(**_fields(plan)):
        raise ValueError(f"the dials have no num_chunks, so they cannot show {plan}; take num_chunks=1")
    return plan


def _turn(widget: ipywidgets.Widget, value: object) -> None:
    """Set a dial; a number that it does not offer becomes one more of its options."""
    if value not in [known for _, known in widget.options]:
        widget.options = sorted([*widget.options, (str(value), value)], key=lambda option: option[1])
    widget.value = value


def _named(key: str) -> str:
    return _model(key) if key == FREE else say("dial.named", name=_model(key), params=PRESETS[key].num_params)


def _model(key: str) -> str:
    return say("dial.own") if key == FREE else NAMES[key]


def _width(pixels: float) -> ipywidgets.Layout:
    return ipywidgets.Layout(width=f"{pixels:.0f}px")


def _label_width(pixels: float) -> dict[str, str]:
    return {"description_width": f"{pixels:.0f}px"}


def _row(*widgets: ipywidgets.Widget) -> ipywidgets.HBox:
    return ipywidgets.HBox(widgets, layout=ipywidgets.Layout(flex_flow="row wrap"))


def _column(heading: str, dials: Sequence[ipywidgets.Widget]) -> ipywidgets.VBox:
    for each in dials:
        each.layout.width, each.style.description_width = f"{_COLUMN - 6}px", f"{_LABEL}px"
    title = f'<b style="font-size:13px;margin-left:8px">{heading}</b>'
    return ipywidgets.VBox([ipywidgets.HTML(title), *dials], layout=_width(_COLUMN))
