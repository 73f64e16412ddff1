"""An Advice as text, as a table for a notebook, and as a page to print: black on white, A4, nothing from outside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from html import escape
from typing import TYPE_CHECKING

from helpers.predict.flops import step_flops
from helpers.predict.rules import RULES, largest_layer
from helpers.predict.states import bytes_per_parameter, weight_bytes
from helpers.predict.step_time import tokens_that_hide
from helpers.predict.strategies import Candidate
from helpers.specs import PRESETS, Cluster, Link, ModelSpec, Plan
from helpers.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from helpers.predict.advise import Advice

Rows = Sequence[Mapping[str, str]]
SHOWN_KINDS = ("parameters", "gradients", "optimizer", "activations")
ESTIMATE = (
    "Steps are estimates, to compare plans: GPUs reach {efficiency:.0f} % of their dense 16-bit peak in compute, "
    "collectives are flat rings, and gradients and parameters travel behind compute where they can."
)
_NOTEBOOK_CSS = """
.rr-advice table { margin: 0 0 12px; font-size: 13px }
.rr-advice th:first-child, .rr-advice .words { text-align: left !important }
.rr-advice :is(td, th) { vertical-align: top } .rr-advice :is(td, th):not(.words) { white-space: nowrap }
 .rr-advice tr.chosen > * { font-weight: bold }
"""
_CSS = """
@page { size: A4; margin: 12mm }
* { box-sizing: border-box }
body { font: 9.5pt/1.3 Helvetica, Arial, sans-serif; color: #000; background: #fff; margin: 0 auto; max-width: 190mm }
h1 { font-size: 16pt; margin: 0 0 2mm } h2 { font-size: 10.5pt; margin: 4mm 0 1mm; break-after: avoid }
p { margin: 0 0 2mm } ul { margin: 0; padding-left: 5mm }
.choice { border: 1.5pt solid #000; padding: 2.5mm 3mm; margin: 3mm 0; font-size: 11pt }
table { border-collapse: collapse; width: 100%; font-size: 8pt; font-variant-numeric: tabular-nums }
th, td { padding: .7mm 1.5mm; border-bottom: .4pt solid #000; text-align: right; vertical-align: top }
td, th { white-space: nowrap } td.words { white-space: normal }
th:first-child, .words { text-align: left } thead th { border-bottom-width: 1pt; vertical-align: bottom }
tr { break-inside: avoid } tr.chosen > * { font-weight: bold; border-bottom-width: 1pt; border-top: 1pt solid #000 }
.two { display: grid; grid-template-columns: 1fr 1fr; column-gap: 6mm }
.two table th { font-weight: normal } small { font-size: 8pt }
@media screen { body { padding: 8mm } }
"""


def model_name(model: ModelSpec) -> str:
    """Its name in PRESETS, whatever its context, else its size."""
    for name, known in PRESETS.items():
        if replace(known, seq=model.seq) == model:
            return name
    return f"a model of {model.num_params:,} parameters"


def cluster_name(cluster: Cluster) -> str:
    """For example "4 nodes of 8 H100 SXM" or "1 T4"."""
    one = f"{cluster.gpus_per_node} {cluster.gpu.name}"
    return one if cluster.num_nodes == 1 else f"{cluster.num_nodes} nodes of {one}"


def memory_rows(advice: Advice) -> Rows:
    """Bytes of the fullest rank by kind, a row for each strategy."""
    return [{"strategy": _marked(one), **_kinds(one)} for one in advice.candidates]


def traffic_rows(advice: Advice) -> Rows:
    """What a rank sends in a step by link, what of it is exposed, and the estimated step."""
    return [{"strategy": _marked(one), **_traffic(one)} for one in advice.candidates]


def flow_rows(advice: Advice) -> Rows:
    """What the chosen plan makes a rank hand in and send in a step, an operation a row; empty where nothing travels."""
    flows = advice.chosen.estimate.flows if advice.chosen else ()
    return [
        {
            "operation": flow.what, "over": _short(flow.link), "handed in": format_bytes(flow.payload),
            "sent": format_bytes(flow.sent), "takes": format_seconds(flow.seconds),
            "not hidden": format_seconds(flow.exposed),
        }
        for flow in flows
    ]  # fmt: skip


def reason_rows(advice: Advice) -> Rows:
    """Each strategy's plan, and the sentence that chooses it or leaves it out."""
    return [{"strategy": _marked(one), "plan": one.plan_words, "why": one.why} for one in advice.candidates]


def rows(advice: Advice) -> Rows:
    """All of it in one table."""
    return [
        {**first, **second, **third}
        for first, second, third in zip(memory_rows(advice), traffic_rows(advice), reason_rows(advice), strict=True)
    ]


def text(advice: Advice) -> str:
    """The choice and its reason, a line for each strategy, the remarks."""
    lines = [advice.sentence]
    for one in advice.candidates:
        held = format_bytes(one.held.total) if one.held else "–"
        step = format_seconds(one.seconds) if one.fits else "–"
        lines.append(f"{'*' if one.is_chosen else ' '} {one.name:<21} {held:>8} a rank  step {step:>8}  {one.why}")
    return "\n".join([*lines, *advice.remarks])


def table(advice: Advice) -> str:
    """The choice, its reason, memory and traffic of every strategy, and the remarks, in the notebook's own colours."""
    chosen = _chosen(advice)
    said, *after = (f"<p>{escape(words)}</p>" for words in (advice.sentence, *advice.remarks, _assumed(advice)))
    tables = (memory_rows, traffic_rows, reason_rows)
    shown = "".join(_html_table(make(advice), chosen) for make in tables)
    return f'<div class="rr-advice"><style>{_NOTEBOOK_CSS}</style>{said}{shown}{"".join(after)}</div>'


def page(advice: Advice) -> str:
    """The whole page."""
    work = advice.work
    title = f"Which strategy for {model_name(work.model)} on {cluster_name(work.cluster)}?"
    chosen = _chosen(advice)
    rule, flows = advice.rule, flow_rows(advice)
    parts = [
        f'<h1>{escape(title)}</h1><div class="choice">{escape(advice.sentence)}</div>',
        f'<div class="two"><div><h2>Model</h2>{_facts(_model_facts(work.model))}</div>',
        f"<div><h2>Cluster</h2>{_facts(_cluster_facts(work.cluster))}</div></div>",
        f"<h2>Arithmetic</h2>{_facts(_arithmetic(advice))}",
        f"<h2>Memory of the fullest rank</h2>{_html_table(memory_rows(advice), chosen)}",
        f"<h2>Traffic and time of a step</h2>{_html_table(traffic_rows(advice), chosen)}",
        f"<h2>What the chosen plan sends, a rank and step</h2>{_html_table(flow_rows(advice))}" if flows else "",
        f"<p><small>{escape(_assumed(advice))}</small></p>",
        f"<h2>Why</h2>{_html_table(reason_rows(advice), chosen)}",
        f"<h2>The rule</h2><p>{escape(f'{rule.case}: {rule.says}. Source: {rule.source}.')}</p>",
        _list(advice.remarks),
        f"<h2>All rules</h2>{_list([f'{one.case}: {one.says}.' for one in RULES.values()])}",
    ]
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{_CSS}</style>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{chr(10).join(parts)}\n</body></html>\n'


def _marked(one: Candidate) -> str:
    return f"{one.name} ✓" if one.is_chosen else one.name


def _kinds(one: Candidate) -> dict[str, str]:
    if one.held is None:
        return dict.fromkeys((*SHOWN_KINDS, "other", "a rank", "fits"), "–")
    shown = {kind: getattr(one.held, kind) for kind in SHOWN_KINDS}
    shown["other"] = one.held.total - sum(shown.values())
    sizes = {name: format_bytes(size) for name, size in shown.items()}
    return {**sizes, "a rank": format_bytes(one.held.total), "fits": "yes" if one.fits else "no"}


def _traffic(one: Candidate) -> dict[str, str]:
    if one.estimate is None:
        return dict.fromkeys(("sends", "not hidden", "bubble", "step", "MFU"), "–")
    step = one.estimate
    return {
        "sends": "; ".join(_by_link(one)) or "nothing",
        "not hidden": format_seconds(step.exposed + step.host),
        "bubble": format_seconds(step.bubble),
        "step": format_seconds(step.seconds),
        "MFU": f"{100 * step.peak_share:.0f} %",
    }


def _by_link(one: Candidate) -> Iterator[str]:
    """Bytes that a rank sends in a step, added up by kind and link."""
    sent: dict[tuple[str, str], float] = {}
    for flow in one.estimate.flows:
        key = flow.kind, _short(flow.link)
        sent[key] = sent.get(key, 0.0) + flow.sent
    for (kind, link), num_bytes in sent.items():
        yield f"{kind} {format_bytes(num_bytes)} over {link}"


def _model_facts(model: ModelSpec) -> dict[str, str]:
    return {
        "parameters": f"{model.num_params:,}",
        "layers, hidden": f"{model.num_layers}, {model.hidden:,}",
        "heads, of keys and values": f"{model.num_heads}, {model.kv_heads}",
        "feed-forward, vocabulary": f"{model.ffn:,}, {model.vocab:,}",
        "tokens of a sequence": f"{model.seq:,}",
    }


def _cluster_facts(cluster: Cluster) -> dict[str, str]:
    network = "none" if cluster.num_nodes == 1 else _link_words(cluster.network)
    return {
        "GPUs": f"{cluster.world_size:,}: {cluster_name(cluster)}",
        "memory of a GPU": format_bytes(cluster.gpu.memory),
        "16-bit peak of a GPU": f"{cluster.gpu.flops / 1e12:,.0f} TFLOP/s",
        "inside a node, a GPU": _link_words(cluster.intra) if cluster.gpus_per_node > 1 else "none",
        "network of a node": network,
    }


def _link_words(link: Link) -> str:
    return f"{_short(link)}, {_rate(link)}"


def _short(link: Link) -> str:
    """The link's name without what stands in brackets."""
    return link.name.split(" (")[0]


def _rate(link: Link) -> str:
    return f"{format_bytes(link.bandwidth)}/s"


def _arithmetic(advice: Advice) -> dict[str, str]:
    work = advice.work
    plain = Plan(precision=work.precision, optimizer=work.optimizer, attention=work.attention)
    per, params = bytes_per_parameter(plain), work.model.num_params
    tokens, flops = work.global_batch * work.model.seq, step_flops(work.model, batch=work.global_batch)
    share = work.assumptions.efficiency
    reached = share * work.cluster.gpu.flops * work.cluster.world_size
    facts = {
        "model states": f"{params:,} parameters x {per:g} bytes = {format_bytes(params * per)}",
        "largest layer, its states": format_bytes(largest_layer(work.model, plain)),
        "usable on a GPU": format_bytes(work.usable),
        "a step": f"{work.global_batch:,} sequences, {tokens:,} tokens, {flops / 1e15:,.1f} PFLOP",
        "compute, nothing else": f"{format_seconds(flops / reached)} at {100 * share:.0f} % of the peak",
    }
    if work.cluster.num_nodes > 1:
        enough = tokens_that_hide(work.cluster, work.assumptions, dtype_bytes=weight_bytes(plain))
        rates = f"{share * work.cluster.gpu.flops / 1e12:,.0f} TFLOP/s a GPU, {_rate(work.cluster.network)} a node"
        facts["a micro-batch hides ZeRO-3 or DDP"] = f"from {enough:,.0f} tokens a rank on: {rates}"
    return facts


def _assumed(advice: Advice) -> str:
    return ESTIMATE.format(efficiency=100 * advice.work.assumptions.efficiency)


def _chosen(advice: Advice) -> int | None:
    return next((row for row, one in enumerate(advice.candidates) if one.is_chosen), None)


def _facts(facts: Mapping[str, str]) -> str:
    body = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>' for name, value in facts.items()
    )
    return f"<table><tbody>{body}</tbody></table>"


def _list(sentences: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(words)}</li>" for words in sentences) + "</ul>" if sentences else ""


def _html_table(shown: Rows, chosen: int | None = None) -> str:
    head = "".join(f'<th scope="col"{_words(name)}>{escape(name)}</th>' for name in shown[0])
    body = "".join(_row(row, number == chosen) for number, row in enumerate(shown))
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _row(row: Mapping[str, str], is_chosen: bool) -> str:
    (_, first), *others = row.items()
    cells = "".join(f"<td{_words(name)}>{escape(value)}</td>" for name, value in others)
    mark = ' class="chosen"' if is_chosen else ""
    return f'<tr{mark}><th scope="row">{escape(first)}</th>{cells}</tr>'


def _words(column: str) -> str:
    """The class of a column of words, not of numbers."""
    return ' class="words"' if column in ("plan", "sends", "why", "over") else ""
