"""Provides MemoryExplorer: dials for a model, a plan and a GPU, and a picture of where the bytes of each rank go.

A plan says how a model is trained: over how many ranks, with which batch, ZeRO stage, precision and optimizer. A
MemoryBreakdown has the bytes of a rank by kind: parameters, gradients, optimizer state, activations and so on. The
dials can start from EXAMPLES. Measured bytes can be shown below the predicted ones; `comparison_text` and
`comparison_rows` then say by how much they differ. Chapter 05 uses it.

Explorer, the base class, shows `sentence`, `scene` (a picture as plain data) and `rows` (a table), and computes them
anew whenever a dial changes. A ValueError in one of them becomes a message instead of the picture. A saved notebook
keeps TEXT and a picture.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from helpers.draw import memory_scene
from helpers.draw.palette import kind_word
from helpers.draw.scene import Scene
from helpers.learner.words import book
from helpers.predict.advice.fit import Fit, fit
from helpers.predict.memory import memory, rank_kinds
from helpers.quantities.units import format_bytes, format_ratio
from helpers.records import MEMORY_KINDS, MemoryBreakdown
from helpers.specs import GPUS, PRESETS, ModelSpec, Plan
from helpers.widgets.controls import Button, Control, Dial, Group, NumberBox, choice, dial
from helpers.widgets.explorer import Explorer, Rows

FREE = "free"  # stands for the model whose shape is in the number boxes
MODEL_NAMES = {
    "gpt2": "GPT-2",
    "gpt2-medium": "GPT-2 medium",
    "gpt2-large": "GPT-2 large",
    "gpt2-xl": "GPT-2 XL",
    "gpt3-175b": "GPT-3 175B",
    "llama2-7b": "Llama-2 7B",
    "llama2-13b": "Llama-2 13B",
    "llama2-70b": "Llama-2 70B",
    "mistral-7b": "Mistral 7B",
    "llama3-8b": "Llama-3 8B",
    "llama3-70b": "Llama-3 70B",
    "llama3-405b": "Llama-3 405B",
}
# Name -> (model, GPU, plan), settings that people have really run or tried. The last one is table 4 of The Llama 3 Herd
# of Models with 8,192 tokens, except that its schedule is interleaved while this one is plain 1F1B.
EXAMPLES = {
    "GPT-2 on one V100": ("gpt2", "V100", Plan(precision="fp32", micro_batch=8, attention="materialized")),
    "Llama-3 8B, Adam, one H100": ("llama3-8b", "H100", Plan()),
    "Llama-3 8B, ZeRO-3 on 8 H100": ("llama3-8b", "H100", Plan(dp=8, zero=3)),
    "Llama-3 70B, plain DP on 64 H100": ("llama3-70b", "H100", Plan(dp=64)),
    "Llama-3 70B, TP 8 and PP 4 on 64 H100": (
        "llama3-70b", "H100", Plan(dp=2, tp=8, pp=4, num_microbatches=32, zero=1, sequence_parallel=True)
    ),
    "GPT-3 175B, TP 8 and PP 8 on A100": (
        "gpt3-175b", "A100", Plan(tp=8, pp=8, num_microbatches=64, attention="materialized")
    ),
    "Llama-3 405B on 16,384 H100": (
        "llama3-405b", "H100", Plan(dp=128, tp=8, pp=16, num_microbatches=16, zero=2, sequence_parallel=True)
    ),
}  # fmt: skip


words = book("memory")  # what a reader sees, by name, in the learner's language: learner/words/memory.yaml
Breakdowns = Mapping[str, MemoryBreakdown]
_RANK = re.compile(r"\brank (\d+)\b")


def rank_of(name: str) -> int | None:
    """The rank in the name of a measured bar, such as 3 in "rank 3, at the peak"; None where it has none."""
    match = _RANK.search(name)
    return int(match[1]) if match else None


def difference_text(predicted: MemoryBreakdown, measured: MemoryBreakdown) -> str:
    """How two breakdowns differ, kind by kind: "parameters and gradients equal to the byte; …; in all …"."""
    kinds = [kind for kind in MEMORY_KINDS if getattr(predicted, kind) or getattr(measured, kind)]
    equal = [kind for kind in kinds if getattr(predicted, kind) == getattr(measured, kind)]
    if equal == kinds:
        return words("equal" if kinds else "no_bytes")
    absent = [kind for kind in kinds if kind not in equal and not getattr(measured, kind)]  # predicted, not measured
    parts = [words("same", kinds=list(map(kind_word, equal)))] if equal else []
    parts += [_difference(kind, predicted, measured) for kind in kinds if kind not in (*equal, *absent)]
    if absent:
        size = format_bytes(sum(getattr(predicted, kind) for kind in absent))
        parts.append(words("absent", kinds=list(map(kind_word, absent)), size=size))
    return words("list", parts=[*parts, words("in_all", ratio=_ratio(predicted.total, measured.total))])


def _difference(kind: str, predicted: MemoryBreakdown, measured: MemoryBreakdown) -> str:
    """The ratio of measured and predicted bytes of one kind, or the measured bytes where none were predicted."""
    before, after = getattr(predicted, kind), getattr(measured, kind)
    if not before:
        return words("unpredicted", kind=kind_word(kind), size=format_bytes(after))
    return words("differs", kind=kind_word(kind), ratio=_ratio(before, after))


def _ratio(before: float, after: float) -> str:
    """The ratio with two decimals; where that would be 1.00 although the sizes differ, their difference in bytes."""
    if not before or format_ratio(after / before) != "1.00":
        ratio = format_ratio(after / before) if before else "–"
        return words("ratio", ratio=ratio, after=format_bytes(after), before=format_bytes(before))
    if after == before:
        return words("equal")
    return words("more_than" if after > before else "less_than", size=format_bytes(abs(after - before)))


def comparison_text(predicted: Breakdowns, measured: Breakdowns) -> str:
    """One sentence per difference, which names all bars that differ in this way. Both arguments have the same keys."""
    sentences: dict[str, list[str]] = {}
    for name, breakdown in measured.items():
        sentences.setdefault(difference_text(predicted[name], breakdown), []).append(_with_instant(name, breakdown))
    # "between" is what separates two sentences in the learner's language: a space in English, nothing in Chinese.
    # "said" puts "Measured, rank 0 and rank 1:" before the sentence on these bars.
    return words("between").join(words("said", names=names, words=sentence) for sentence, names in sentences.items())


def _with_instant(name: str, breakdown: MemoryBreakdown) -> str:
    """The bar's name with the moment at which it was measured, such as "rank 3 (at the peak)"."""
    return f"{name} ({breakdown.instant})" if breakdown.instant and breakdown.instant not in name else name


def comparison_rows(predicted: Breakdowns, measured: Breakdowns, kinds: list[str]) -> list[dict[str, str]]:
    """The rows "measured / predicted" of the explorer's table, with one ratio per kind."""
    columns = (*kinds, "total")
    return [
        {words("ranks"): words("over_predicted", name=name)}
        | {kind_word(kind): _plain_ratio(getattr(predicted[name], kind), getattr(one, kind)) for kind in columns}
        for name, one in measured.items()
    ]


def _plain_ratio(before: float, after: float) -> str:
    """The ratio as text, or a dash where nothing was predicted."""
    return format_ratio(after / before if before else None)


_POWERS = [2**n for n in range(15)]  # values of the dials: 1 to 16,384; the first 10 end at 512
# The fields of ModelSpec that have a number box, each with the name of the explorer's attribute.
_BOXES = {"num_layers": "layers", "hidden": "hidden", "num_heads": "heads", "vocab": "vocabulary"}
_SMALL = 0.02  # fraction of a GPU's memory: shorter bars would be slivers beside the line of its capacity
# Fields of Plan. Each has a dial, which is an attribute of the explorer with the same name.
_PLAN_DIALS = ("dp", "tp", "pp", "cp", "zero", "micro_batch", "num_microbatches", "sequence_parallel", "recompute")
_PLAN_DIALS += ("attention", "precision", "optimizer")


class MemoryExplorer(Explorer):
    """What fills the memory of each rank. Without a front end: `.zero.value = 1`, then `.sentence` or `.rows`.

    model: a key of PRESETS, "free" for the number boxes layers, hidden, heads and vocabulary, or the ModelSpec of a
    GPT. gpu: a key of GPUS. plan: where the dials start. measured: name -> MemoryBreakdown of that model and plan; its
    bars are drawn below the predicted ones, and a sentence says by how much they differ. `lay_over` adds measurements
    of another plan, which are drawn while the dials have that plan. A bar named "rank 3, at the peak" is compared
    with the prediction for rank 3. hints: False does not display the smallest change that would make the model fit.
    Dials: each field of Plan by its name (dp, tp, zero, …), `model`, `gpu`, `seq`, and `example`, which sets all of
    them. The button `make_it_fit` applies that change.
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
        self._measured: dict[tuple[ModelSpec, Plan], dict[str, MemoryBreakdown]] = {}  # bars by name, for each plan
        self._is_paused = False  # True while several dials are set, so that the picture is drawn once, at the end
        self._make_dials(FREE if isinstance(model, ModelSpec) else model, gpu)
        self.make_it_fit = Button(self._take_advice, words("dial.make_it_fit"), tooltip=words("dial.set"))
        plan_dials = tuple(getattr(self, name) for name in _PLAN_DIALS)
        dials = (self.example, self.model, self.gpu, self.seq, *plan_dials, *self.boxes)
        super().__init__(dials, arrangement=self._arranged())
        if isinstance(model, ModelSpec) or plan:
            self.show(model, gpu, plan or self.plan)
        if measured:
            self.lay_over(self.plan, measured)

    def _make_dials(self, model: str, gpu: str) -> None:
        """Make each dial; all but `model` and `gpu` start at a plain plan."""
        # The texts named as tooltips say in a few words what each dial means.
        self.example = choice([(words("dial.choose"), ""), *EXAMPLES], "", words("dial.example"))
        self.model = choice((*MODEL_NAMES, FREE), model, words("dial.model"), label=_name_with_size)
        seq = PRESETS[model].seq if model in PRESETS else 1024
        lengths = (128, 256, *_POWERS[9:], 32_768, 131_072)  # _POWERS[9:] are 512 to 16,384
        self.seq = dial(lengths, seq, words("dial.sequence"), label="{:,}".format)
        gpus = [(f"{key}, {format_bytes(one.memory)}", key) for key, one in GPUS.items()]
        self.gpu = choice(gpus, gpu, words("dial.GPU"), tooltip=words("headroom"))  # why not all is usable
        self.dp = dial(_POWERS, 1, "DP", tooltip=words("dial.dp"))
        self.tp = dial((1, 2, 3, 4, 6, 8, 16), 1, "TP", tooltip=words("dial.tp"))
        self.pp = dial((1, 2, 3, 4, 6, 8, 12, 16, 32, 64), 1, "PP", tooltip=words("dial.pp"))
        self.cp = dial((1, 2, 4, 8, 16), 1, "CP", tooltip=words("dial.cp"))
        self.zero = dial((0, 1, 2, 3), 0, words("dial.zero"), tooltip=words("dial.shards"))
        switch = [(words(f"dial.{on}"), on) for on in (False, True)]  # the texts are named dial.False and dial.True
        self.sequence_parallel = choice(switch, False, words("dial.sequence_parallel"))
        sizes = (1, 2, 3, 4, 6, 8, 16, 32, 64)
        self.micro_batch = dial(sizes, 1, words("dial.micro_batch"), tooltip=words("dial.together"))
        self.num_microbatches = dial(_POWERS[:10], 1, words("dial.num_microbatches"), tooltip=words("dial.before"))
        self.recompute = choice(Plan.KNOWN["recompute"], "none", words("dial.recompute"))
        self.attention = choice(Plan.KNOWN["attention"], "flash", words("dial.attention"))
        self.precision = choice(Plan.KNOWN["precision"], "mixed", words("dial.precision"))
        self.optimizer = choice(Plan.KNOWN["optimizer"], "adamw", words("dial.optimizer"))
        # Where the boxes start: the shape of a GPT of 1.3 billion parameters, with the vocabulary of GPT-2.
        self.layers, self.hidden = NumberBox(24, words("dial.layers")), NumberBox(2048, words("dial.hidden"))
        self.heads, self.vocabulary = NumberBox(16, words("dial.heads")), NumberBox(50_257, words("dial.vocabulary"))
        self.boxes = tuple(getattr(self, name) for name in _BOXES.values())

    def _arranged(self) -> list[list[Control | Group]]:
        """Examples and model above, then three columns; they fit on 800 pixels and wrap on a narrower page."""
        # The headings are "Spread it" (over ranks), "Feed it" (with sequences) and "Save memory".
        spread = (self.dp, self.tp, self.pp, self.cp, self.sequence_parallel)
        feed = (self.seq, self.micro_batch, self.num_microbatches, self.gpu, self.make_it_fit)
        save = (self.zero, self.recompute, self.attention, self.precision, self.optimizer)
        columns = {"spread": spread, "feed": feed, "save": save}
        groups = [Group(words(f"dial.{name}"), controls) for name, controls in columns.items()]
        return [[self.example, self.model], [*self.boxes], [*groups]]

    @property
    def spec(self) -> ModelSpec:
        """The model of the dials. Raises ValueError for an impossible shape."""
        if self.model.value != FREE:
            return replace(PRESETS[self.model.value], seq=self.seq.value)
        shape = {field: getattr(self, name).value for field, name in _BOXES.items()}
        return ModelSpec(**shape, seq=self.seq.value)

    @property
    def plan(self) -> Plan:
        """The plan of the dials."""
        return Plan(**{name: getattr(self, name).value for name in _PLAN_DIALS})

    @property
    def advice(self) -> Fit:
        """Whether the model fits into the GPU's memory, and the smallest change of the plan with which it would.

        `changes` are that change, field by field, `suggested` is the plan with it, and `suggested_memory` what its
        fullest rank then holds; the latter two are None where nothing helps. `stage` is the pipeline stage of the
        fullest rank as it is now.
        Raises ValueError where the plan cannot split the model.
        """
        return fit(self.spec, self.plan, GPUS[self.gpu.value])

    @property
    def bars(self) -> dict[str, MemoryBreakdown]:
        """One bar per kind of rank, one for the fullest rank after the smallest change, then the measured ones.

        Ranks that hold equally much are one kind of rank.
        """
        bars = {kind.name: kind.breakdown for kind in rank_kinds(self.spec, self.plan)}
        if self._hints and self.advice.changes and self.advice.suggested_memory:
            bars[words("after")] = self.advice.suggested_memory
        return bars | {words("measured", name=name): one for name, one in self.measured.items()}

    @property
    def measured(self) -> dict[str, MemoryBreakdown]:
        """What was measured with the dials' values; empty where nothing was."""
        return self._measured.get((self.spec, self.plan), {})

    @property
    def predicted(self) -> dict[str, MemoryBreakdown]:
        """The prediction for each measured bar: that of the rank in its name, else that of the fullest rank.

        All ranks of a pipeline stage hold equally much, so a prediction is made for a stage.
        """
        stages = {name: self._stage(rank_of(name)) for name in self.measured}
        return {name: memory(self.spec, self.plan, stage) for name, stage in stages.items()}

    def _stage(self, rank: int | None) -> int:
        """The pipeline stage of a rank; that of the fullest rank for None."""
        if rank is None:
            return self.advice.stage
        if rank >= self.plan.world_size:
            raise ValueError(f"measured on rank {rank}, but this plan has ranks 0 to {self.plan.world_size - 1}")
        return self.plan.mesh.coordinates(rank)["pp"]

    @property
    def scene(self) -> Scene:
        """The bars. A model that is tiny compared with the GPU gets a larger scale, without the GPU's limit."""
        size, gpus = self.advice.usable, {"gpus": self.plan.world_size, "gpu": self.gpu.value}
        title = words("title", name=_model_name(self.model.value), params=self.spec.num_params, **gpus)
        is_small = max(bar.total for bar in self.bars.values()) < _SMALL * size  # such bars would be slivers
        return memory_scene(self.bars, capacity=None if is_small else size, capacity_name=words("usable"), title=title)

    @property
    def sentence(self) -> str:
        """Whether it fits, what takes most memory, the smallest change to make it fit, and how measurements differ."""
        advice = self.advice
        parts = (advice.text,) if self._hints else (advice.verdict, advice.largest_kind)
        return words("between").join(filter(None, (*parts, self._measured_sentence)))

    @property
    def _measured_sentence(self) -> str:
        """How measurements differ, or that there are none for the dials' plan; "" where nothing was ever measured."""
        if self._measured and not self.measured:
            return words("not_measured")
        return comparison_text(self.predicted, self.measured)

    @property
    def rows(self) -> Rows:
        """One row per bar, with its bytes by kind; kinds that no rank has are left out."""
        bars = self.bars
        kinds = [kind for kind in MEMORY_KINDS if any(getattr(bar, kind) for bar in bars.values())]
        return [
            {words("ranks"): name} | {kind_word(kind): format_bytes(getattr(bar, kind)) for kind in (*kinds, "total")}
            for name, bar in bars.items()
        ] + comparison_rows(self.predicted, self.measured, kinds)

    def show(self, model: str | ModelSpec, gpu: str, plan: Plan) -> None:
        """Set the dials to a model (a key of PRESETS, or the ModelSpec of a GPT), a GPU and a plan, and draw once."""
        values = {"gpu": gpu, **_fields(_checked_plan(plan))}
        if not isinstance(model, ModelSpec):
            seq = PRESETS[model].seq if model in PRESETS else self.seq.value
            return self._set(values | {"model": model, "seq": seq})
        shape = {field: getattr(model, field) for field in _BOXES}
        if model != ModelSpec(**shape, seq=model.seq):
            raise ValueError(f"the number boxes describe a GPT as ModelSpec does by default; this is {model}")
        boxes = {name: shape[field] for field, name in _BOXES.items()}
        return self._set(values | {"model": FREE, "seq": model.seq} | boxes)

    def lay_over(self, plan: Plan, measured: Mapping[str, MemoryBreakdown]) -> MemoryExplorer:
        """Store what was measured with the dials' model under `plan`, to draw it while the dials have that plan."""
        self._measured[self.spec, _checked_plan(plan)] = dict(measured)
        self._draw()
        return self

    def _set(self, values: Mapping[str, object]) -> None:
        """Set dials and number boxes, by name, and draw once."""
        self._is_paused = True
        try:
            for name, value in values.items():
                _set_control(getattr(self, name), value)
        finally:
            self._is_paused = False
        self._draw()

    def _take_advice(self) -> None:
        """Set the dials to the smallest change with which the model fits."""
        if self.advice.suggested:
            self._set(_fields(self.advice.suggested))

    def _draw(self, turned: Control | None = None) -> None:
        """Bring the other dials in line with the one that was turned, which draws again, or else draw."""
        if self._is_paused:
            return
        if turned is self.example and self.example.value:
            return self.show(*EXAMPLES[self.example.value])
        if turned is self.model and self.model.value != FREE:
            return self._set({"example": "", "seq": PRESETS[self.model.value].seq})
        if turned in self.dials and self.example.value:  # the dials show no example any more
            return self._set({"example": ""})
        for box in self.boxes:
            box.is_shown = self.model.value == FREE
        self.make_it_fit.disabled = True
        with suppress(ValueError):  # a plan that cannot split the model has no advice; Explorer shows the message
            self.make_it_fit.disabled = not self.advice.changes
        super()._draw(turned)


def _fields(plan: Plan) -> dict[str, object]:
    """The values of a plan for the dials, by name."""
    return {name: getattr(plan, name) for name in _PLAN_DIALS}


def _checked_plan(plan: Plan) -> Plan:
    """The plan. Raises ValueError if the dials cannot show it."""
    if plan != Plan(**_fields(plan)):
        raise ValueError(f"the dials have no num_chunks, so they cannot show {plan}; take num_chunks=1")
    return plan


def _set_control(control: Dial | NumberBox, value: object) -> None:
    """Set a control; a number that a dial does not offer becomes one more of its options, which are (text, value)."""
    if isinstance(control, Dial) and value not in [known for _, known in control.options]:
        options = sorted([*control.options, (str(value), value)], key=lambda option: option[1])
        control.offer(options, value)
    control.value = value


def _name_with_size(key: str) -> str:
    """The name of a model in the list, with its number of parameters."""
    name = _model_name(key)
    return name if key == FREE else words("dial.named", name=name, params=PRESETS[key].num_params)


def _model_name(key: str) -> str:
    """The name of a model."""
    return words("dial.own") if key == FREE else MODEL_NAMES[key]
