"""Renders an Advice as tables for a notebook, and as a self-contained HTML page to print on A4.

`Advice` (advise.py) is the planner's answer: `best` are the ranked plans, of which the first is recommended, and
`candidates` has one plan per strategy with the reason for or against it. Each is a `PlanEstimate`, a plan with its
memory and step. A table is a list of rows, and a row maps column names to texts; `column` gives the heading of a
column. summary.py renders the same for a terminal. `words("page.title", model=…)` returns the text of that key in the
reader's language, from words/advice.yaml.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from helpers.learner import document
from helpers.learner.document import (
    Content,
    Element,
    bold,
    element,
    heading,
    listed,
    paragraph,
    section,
    small,
    table_row,
)
from helpers.learner.words import language
from helpers.predict.advice.plans import TRAFFIC, PlanEstimate, words
from helpers.predict.advice.rules import RULES, largest_layer
from helpers.predict.advice.summary import SHOWN_KINDS, bar_rows, column, legend, plan_rows
from helpers.predict.memory.states import bytes_per_parameter, weight_bytes
from helpers.predict.time.collectives import tokens_that_hide
from helpers.predict.time.convolutions import ResNet
from helpers.predict.time.flops import step_flops
from helpers.predict.time.kernels import sustained_share
from helpers.quantities.units import format_bytes, format_seconds
from helpers.specs import PRESETS, ROUTED, Cluster, Link, ModelSpec, Plan

if TYPE_CHECKING:  # because advise.py imports this file
    from helpers.predict.advice.advise import Advice

TEXT_COLUMNS = ("plan", "why", "term", "binds", "marks")  # binds: the bottleneck that limits a term of the step
Rows = Sequence[Mapping[str, str]]  # the rows of a table: column name -> text
# The class rr-advice keeps these rules off the other tables of a notebook.
_NOTEBOOK_CSS = """
.rr-advice table { margin: 0 0 12px; font-size: 13px }
.rr-advice th:first-child, .rr-advice .words { text-align: left !important }
.rr-advice :is(td, th) { vertical-align: top } .rr-advice :is(td, th):not(.words) { white-space: nowrap }
 .rr-advice tr.chosen > * { font-weight: bold }
"""


def model_name(model: ModelSpec) -> str:
    """The model's published name, whatever its sequence length, or else its number of parameters."""
    if isinstance(model, ResNet):
        return model.name
    for name, known in {**PRESETS, **ROUTED}.items():
        if replace(known, seq=model.seq) == model:
            return name
    return words("model", params=model.num_params)


def cluster_name(cluster: Cluster) -> str:
    """The cluster in a few words, for example "4 nodes of 8 H100 SXM" or "1 T4"."""
    number = "node" if cluster.num_nodes == 1 else "nodes"
    return words(number, nodes=cluster.num_nodes, gpus=cluster.gpus_per_node, gpu=cluster.gpu.name)


def memory_rows(advice: Advice) -> Rows:
    """Bytes of the fullest rank by kind, one row per strategy."""
    return [{"strategy": _marked(candidate), **_kinds(candidate)} for candidate in advice.candidates]


def time_rows(advice: Advice) -> Rows:
    """The parts of the estimated step, one row per strategy."""
    return [{"strategy": _marked(candidate), **_time(candidate)} for candidate in advice.candidates]


def best_rows(advice: Advice) -> Rows:
    """The best plans as in a terminal, but each in full instead of its layout alone."""
    shown = []
    for candidate, row in zip(advice.best, plan_rows(advice), strict=True):
        layout = {"plan" if name == "layout" else name: text for name, text in row.items()}
        shown.append(layout | {"plan": candidate.plan_text})
    return shown


def reason_rows(advice: Advice) -> Rows:
    """Each strategy's plan, and the sentence that chooses it or leaves it out."""
    return [
        {"strategy": _marked(candidate), "plan": candidate.plan_text, "why": candidate.why}
        for candidate in advice.candidates
    ]


def rows(advice: Advice) -> Rows:
    """Memory, time and reasons of each strategy in one table."""
    return [
        {**first, **second, **third}
        for first, second, third in zip(memory_rows(advice), time_rows(advice), reason_rows(advice), strict=True)
    ]


def table(advice: Advice) -> str:
    """The advice as HTML tables for a notebook, in the notebook's own colours."""
    chosen = _chosen_row(advice)
    return section(
        element("style", _NOTEBOOK_CSS),
        paragraph(bold(advice.choice), f" {advice.alternative}"),
        _best(advice),
        [_table(make(advice), chosen) for make in (memory_rows, time_rows, reason_rows)],
        [paragraph(text) for text in (advice.by_rule, *advice.remarks, _assumed(advice)) if text],
        class_="rr-advice",
    ).html


def _best(advice: Advice) -> Content:
    """The table of the best plans, which of them cannot be told apart, why the first is first, and the marks."""
    if not advice.best:
        return None
    return [
        _table(best_rows(advice), 0),  # 0: the first plan is recommended
        paragraph(advice.tie),
        paragraph(words("summary.why")),
        listed(advice.chosen.reasons),
        paragraph(words("summary.marks")),
        listed(f"{mark}: {sentence}" for mark, sentence in legend(advice)),
    ]


def page(advice: Advice) -> str:
    """The HTML page that `Advice.page` writes."""
    request = advice.request
    title = words("page.title", model=model_name(request.model), cluster=cluster_name(request.cluster))
    chosen = _chosen_row(advice)
    bars = bar_rows(advice, advice.chosen)
    return document.page(
        heading(title, 1),
        section(words("between").join(filter(None, (advice.choice, advice.alternative))), class_="choice"),
        [_heading("best"), _best(advice)] if advice.best else None,
        section(
            section(_heading("model"), _facts(_model_facts(request.model))),
            section(_heading("cluster"), _facts(_cluster_facts(request.cluster))),
            class_="two",
        ),
        listed(advice.remarks),
        [_heading("bars"), _table(bars)] if bars else None,
        [_heading("arithmetic"), _facts(_arithmetic(advice))],
        [_heading("memory"), _table(memory_rows(advice), chosen)],
        [_heading("time"), _table(time_rows(advice), chosen)],
        paragraph(small(_assumed(advice))),
        [_heading("why"), _table(reason_rows(advice), chosen)],
        _rules(advice),
        title=title,
        kind="advice",
        lang=language(),
    )


def _rules(advice: Advice) -> Content:
    """The published rule of thumb for this case, and the list of all of them."""
    if advice.rule is None:
        return None
    cited = words("page.cited", case=advice.rule.case, says=advice.rule.says, source=advice.rule.source)
    rules = [words("page.one_rule", case=candidate.case, says=candidate.says) for candidate in RULES.values()]
    return _heading("rule"), paragraph(cited), _heading("rules"), listed(rules)


def _heading(name: str) -> Element:
    return heading(words(f"page.{name}"))


def _marked(candidate: PlanEstimate) -> str:
    """The strategy's name, with a tick at the recommended one."""
    return f"{candidate.title} ✓" if candidate.is_chosen else candidate.title


def _kinds(candidate: PlanEstimate) -> dict[str, str]:
    """The cells of a row of `memory_rows`; dashes where the strategy cannot run."""
    if candidate.memory is None:
        return dict.fromkeys((*SHOWN_KINDS, "other", "a rank", "fits"), "–")
    shown = {kind: getattr(candidate.memory, kind) for kind in SHOWN_KINDS}
    shown["other"] = candidate.memory.total - sum(shown.values())
    sizes = {name: format_bytes(size) for name, size in shown.items()}
    return {**sizes, "a rank": format_bytes(candidate.memory.total), "fits": words(f"fits.{candidate.fits}")}


def _time(candidate: PlanEstimate) -> dict[str, str]:
    """The cells of a row of `time_rows`; dashes where the plan does not fit."""
    if not candidate.fits:
        return dict.fromkeys(("compute", "not hidden", "bubble", "step", "MFU"), "–")
    waits = sum(candidate.shares.get(name, 0.0) for name in TRAFFIC)
    bubble = candidate.shares.get("waiting", 0.0)
    return {
        "compute": format_seconds(candidate.seconds - waits - bubble), "not hidden": format_seconds(waits),
        "bubble": format_seconds(bubble), "step": format_seconds(candidate.seconds),
        "MFU": f"{100 * candidate.mfu:.0f} %",
    }  # fmt: skip


# A fact is a row of a table without a head: a key of `fact` in words/advice.yaml, which gives its label in the reader's
# language, and its value as text.
def _model_facts(model: ModelSpec | ResNet) -> dict[str, str]:
    if isinstance(model, ResNet):
        return {"parameters": f"{model.num_params:,}"}
    more = {"experts, of each token": f"{model.num_experts}, {model.top_k}"} if model.num_experts > 1 else {}
    return more | {
        "parameters": f"{model.num_params:,}",
        "layers, hidden": f"{model.num_layers}, {model.hidden:,}",
        "heads, of keys and values": f"{model.num_heads}, {model.kv_heads}",
        "feed-forward, vocabulary": f"{model.ffn:,}, {model.vocab:,}",
        "tokens of a sequence": f"{model.seq:,}",
        "window": f"{model.seen:,}",
    }


def _cluster_facts(cluster: Cluster) -> dict[str, str]:
    network = words("value.none") if cluster.num_nodes == 1 else _link_words(cluster.network)
    return {
        "GPUs": words("value.gpus", gpus=cluster.world_size, cluster=cluster_name(cluster)),
        "memory of a GPU": format_bytes(cluster.gpu.memory),
        "16-bit peak of a GPU": f"{cluster.gpu.flops / 1e12:,.0f} TFLOP/s",
        "inside a node, a GPU": _link_words(cluster.intra) if cluster.gpus_per_node > 1 else words("value.none"),
        "network of a node": network,
    }


def _link_words(link: Link) -> str:
    return words("value.link", name=link.name.split(" (")[0], rate=f"{format_bytes(link.bandwidth)}/s")


def _arithmetic(advice: Advice) -> dict[str, str]:
    """The divisions that a reader can check by hand: model states, compute of a step, tokens that hide traffic."""
    request = advice.request
    if isinstance(request.model, ResNet):
        return {"images": f"{request.global_batch:,}", "usable on a GPU": format_bytes(request.usable)}
    plain = Plan(precision=request.precision or "mixed", optimizer=request.optimizer, attention=request.attention)
    per, params = bytes_per_parameter(plain), request.model.num_params
    tokens, flops = request.tokens, step_flops(request.model, batch=request.global_batch)
    share = sustained_share(request.cluster.gpu)  # of the peak that large products sustain
    reached = share * request.cluster.gpu.flops * request.cluster.world_size
    facts = {
        "model states": words("value.states", params=params, each=per, size=format_bytes(params * per)),
        "largest layer, its states": format_bytes(largest_layer(request.model, plain)),
        "usable on a GPU": format_bytes(request.usable),
        "a step": words("value.step", batch=request.global_batch, tokens=tokens, flops=flops / 1e15),
        "compute, nothing else": words("value.compute", time=format_seconds(flops / reached), share=100 * share),
    }
    if request.cluster.num_nodes > 1:
        # The tokens of a micro-batch from which on the traffic hides, at 40 % of the peak, which the function assumes.
        enough = tokens_that_hide(request.cluster, dtype_bytes=weight_bytes(plain))
        rates = {"flops": 0.4 * request.cluster.gpu.flops / 1e12}  # in TFLOP/s
        rates["rate"] = f"{format_bytes(request.cluster.network.bandwidth)}/s"
        facts["a micro-batch hides ZeRO-3 or DDP"] = words("value.enough", tokens=enough, **rates)
    return facts


def _assumed(advice: Advice) -> str:
    return words("estimate", stack=advice.request.stack.name)


def _chosen_row(advice: Advice) -> int | None:
    """The number of the recommended strategy's row, which is printed bold."""
    return next((row for row, candidate in enumerate(advice.candidates) if candidate.is_chosen), None)


def _facts(facts: Mapping[str, str]) -> Element:
    """Facts as a table with two columns."""
    return document.table((), [(words(f"fact.{name}"), value) for name, value in facts.items()], has_row_heads=True)


def _table(shown: Rows, chosen: int | None = None) -> Element:
    """Rows as a table. chosen: the number of the row that is printed bold."""
    names = [*shown[0]]

    def cells(column: int) -> Mapping[str, str]:
        """A column that has text instead of numbers has the class `words`."""
        return {"class": "words"} if names[column] in TEXT_COLUMNS else {}

    rows = [
        table_row([*one.values()], cells=cells, has_head=True, class_="chosen" if number == chosen else "")
        for number, one in enumerate(shown)
    ]
    return document.table(map(column, names), rows, heads=cells)
