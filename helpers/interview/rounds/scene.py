"""A model on a cluster, what changes in follow-ups, and the numbers that the course's predictors compute of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter
from typing import Any

from helpers.interview.cards import Check
from helpers.interview.verify import UNITS, compute
from helpers.learner.words import LANGUAGES, Words, book, reading
from helpers.predict.advice import Advice, advise
from helpers.quantities.units import format_bytes, format_seconds
from helpers.specs import CLUSTERS, GPUS, PRESETS, Cluster, ModelSpec, Plan
from helpers.specs.hardware import INTRA

say = book("round")
REACHED = 0.4  # of a GPU's peak: what the numbers of a round assume, which are done by hand
CHANGES = ("network", "num_nodes", "gpu", "seq")


@dataclass(frozen=True)
class Scene:
    """global_batch: sequences of a step."""

    model: ModelSpec
    cluster: Cluster
    global_batch: int

    @cached_property
    def advice(self) -> Advice:
        """What the course's adviser finds here."""
        return advise(self.model, self.cluster, global_batch=self.global_batch)

    @property
    def plan(self) -> Plan:
        return self.advice.plan

    @property
    def reached(self) -> float:
        """Operations a second of one GPU, as the estimates assume."""
        return REACHED * self.cluster.gpu.flops

    def say(self, name: str) -> Words | None:
        """What every text may name: `{gpus}`, `{nodes}`, `{seq}`, `{batch}`, a network `{card}`; of a GPU `{usable}`,
        `{peak}` and the `{share}` of it that numbers assume; the adviser's `{plan}`, which holds `{held}` and takes
        `{step}`. None for another name."""
        plain = {
            "gpus": lambda: str(self.cluster.world_size), "nodes": lambda: str(self.cluster.num_nodes),
            "seq": lambda: f"{self.model.seq:,}", "batch": lambda: f"{self.global_batch:,}",
            "card": lambda: f"{8 * self.cluster.inter.bandwidth / 1e9:g} Gb/s",
            "peak": lambda: f"{self.cluster.gpu.flops / 1e12:,.0f} TFLOP/s",
            "share": lambda: f"{100 * REACHED:g} %",
            "usable": lambda: format_bytes(self.advice.request.usable),
            "held": lambda: format_bytes(self.advice.chosen.memory.total),
            "step": lambda: format_seconds(self.advice.chosen.seconds),
        }  # fmt: skip
        return self._plan_words if name == "plan" else Words.of(plain[name]()) if name in plain else None

    @property
    def _plan_words(self) -> Words:
        told = {}
        for language in LANGUAGES:
            with reading(language):
                told[language] = say(
                    "plan", language, name=self.advice.chosen.title, plan=self.advice.chosen.plan_text
                )
        return Words(**told)

    def changed(self, change: Mapping[str, Any], where: str = "change") -> Scene:
        """The scene of a follow-up. network: so many times as fast; num_nodes, gpu, seq: the new ones.

        Sequences of another length keep the tokens of a step. Raises ValueError for what is no such change.
        """
        unknown = [name for name in change if name not in CHANGES]
        if unknown:
            raise ValueError(f"{where}: `change` has {unknown[0]!r}; a follow-up changes {', '.join(CHANGES)}")
        model, cluster, batch = self.model, self.cluster, self.global_batch
        if "seq" in change:
            batch = batch * model.seq // change["seq"]
            model = replace(model, seq=change["seq"])
        if "network" in change:
            bandwidth = cluster.inter.bandwidth * change["network"]
            cluster = replace(cluster, inter=replace(cluster.inter, bandwidth=bandwidth, name=""))
        if "gpu" in change:
            cluster = replace(cluster, gpu=GPUS[change["gpu"]], intra=INTRA[change["gpu"]])
        return Scene(model, replace(cluster, num_nodes=change.get("num_nodes", cluster.num_nodes)), batch)


def read_scene(fields: Any, where: str) -> Scene:
    """`{model: llama3-8b, cluster: 8 H100, global_batch: 512}`. Raises ValueError for names that are not there."""
    if not isinstance(fields, dict) or set(fields) != {"model", "cluster", "global_batch"}:
        raise ValueError(f"{where}: `scene` must hold model, cluster and global_batch and nothing else")
    for name, known in (("model", PRESETS), ("cluster", CLUSTERS)):
        if fields[name] not in known:
            raise ValueError(f"{where}: `scene.{name}` is {fields[name]!r}; it must be one of {', '.join(known)}")
    return Scene(PRESETS[fields["model"]], CLUSTERS[fields["cluster"]], fields["global_batch"])


@dataclass(frozen=True, kw_only=True)
class Number:
    """A number that is given (`value`) or computed by `call`, as on a card. An argument "$model.num_params" is of the
    scene, "$tokens" a number before this one. unit: in which it is said, with so many decimals."""

    value: float | None = None
    call: str = ""
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    attribute: str | None = None
    unit: str = ""
    decimals: int = 0

    def said(self, value: float) -> str:
        """ "64.2 MB"."""
        return f"{value / UNITS[self.unit]:,.{self.decimals}f} {self.unit}".strip()


def read_number_of(fields: Any, where: str) -> Number:
    """One entry of `numbers`: a `value`, or a `call` of ours with its arguments."""
    known = set(Number.__dataclass_fields__)
    if not isinstance(fields, dict) or not set(fields) <= known or ("value" in fields) == ("call" in fields):
        raise ValueError(f"{where}: write `value` or `call`, and beside it {', '.join(sorted(known))}")
    if fields.get("unit", "") not in UNITS:
        raise ValueError(f"{where}: `unit` is {fields['unit']!r}; it must be one of {', '.join(UNITS)}")
    return Number(**{**fields, "args": tuple(fields.get("args", ()))})


def value(name: str, numbers: Mapping[str, Number], scene: Scene | None = None) -> float:
    """One of the numbers, computed now: the adviser is asked only for what is shown."""
    number = numbers[name]
    if number.value is not None:
        return number.value

    def given(argument: Any) -> Any:
        if isinstance(argument, list):
            return [given(one) for one in argument]
        if not isinstance(argument, str) or not argument.startswith("$"):
            return argument
        named = argument[1:]
        return value(named, numbers, scene) if named in numbers else attrgetter(named)(scene)

    args, kwargs = map(given, number.args), {key: given(one) for key, one in number.kwargs.items()}
    check = Check(call=number.call, value=0, says="", args=tuple(args), kwargs=kwargs, attribute=number.attribute)
    return float(compute(check))


def filled(text: Words, numbers: Mapping[str, Number], scene: Scene | None = None) -> Words:
    """A text with its `{names}` filled: numbers, and what the scene says. Other braces stay."""

    def word(name: str) -> Words | None:
        if name in numbers:
            return Words.of(numbers[name].said(value(name, numbers, scene)))
        return scene.say(name) if scene else None

    named = {name: word(name) for name in set(re.findall(r"\{(\w+)\}", text.en + text.zh))}
    told = {}
    for lang in LANGUAGES:
        found = {name: one.in_(lang) for name, one in named.items() if one}
        told[lang] = re.sub(r"\{(\w+)\}", lambda one, found=found: found.get(one[1], one[0]), text.in_(lang))
    return Words(**told)
