"""An Advice as text, as a table for a notebook, and as a page to print: black on white, A4, nothing from outside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from html import escape

from helpers.predict.advice.findings import Findings
from helpers.predict.advice.rules import RULES, largest_layer
from helpers.predict.advice.strategies import KINDS, Candidate, say
from helpers.predict.memory.states import bytes_per_parameter, weight_bytes
from helpers.predict.time.flops import step_flops
from helpers.predict.time.step import tokens_that_hide
from helpers.specs import PRESETS, Cluster, Link, ModelSpec, Plan
from helpers.units import format_bytes, format_seconds
from helpers.words import language

Rows = Sequence[Mapping[str, str]]
SHOWN_KINDS = ("parameters", "gradients", "optimizer", "activations")
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
    return say("model", params=model.num_params)


def cluster_name(cluster: Cluster) -> str:
    """For example "4 nodes of 8 H100 SXM" or "1 T4"."""
    number = "node" if cluster.num_nodes == 1 else "nodes"
    return say(number, nodes=cluster.num_nodes, gpus=cluster.gpus_per_node, gpu=cluster.gpu.name)


def memory_rows(advice: Findings) -> Rows:
    """Bytes of the fullest rank by kind, a row for each strategy."""
    return [{"strategy": _marked(one), **_kinds(one)} for one in advice.candidates]


def traffic_rows(advice: Findings) -> Rows:
    """What a rank sends in a step by link, what of it is exposed, and the estimated step."""
    return [{"strategy": _marked(one), **_traffic(one)} for one in advice.candidates]


def flow_rows(advice: Findings) -> Rows:
    """What the chosen plan makes a rank hand in and send in a step, an operation a row; empty where nothing travels."""
    flows = advice.chosen.estimate.flows if advice.chosen else ()
    return [
        {
            "operation": say(f"flow.{flow.what}"), "over": _short(flow.link), "handed in": format_bytes(flow.payload),
            "sent": format_bytes(flow.sent), "takes": format_seconds(flow.seconds),
            "not hidden": format_seconds(flow.exposed),
        }
        for flow in flows
    ]  # fmt: skip


def reason_rows(advice: Findings) -> Rows:
    """Each strategy's plan, and the sentence that chooses it or leaves it out."""
    return [{"strategy": _marked(one), "plan": one.plan_words, "why": one.why} for one in advice.candidates]


def rows(advice: Findings) -> Rows:
    """All of it in one table."""
    return [
        {**first, **second, **third}
        for first, second, third in zip(memory_rows(advice), traffic_rows(advice), reason_rows(advice), strict=True)
    ]


def column(name: str) -> str:
    """The heading of a column."""
    return KINDS(f"kind.{name}") if name in (*SHOWN_KINDS, "other") else say(f"column.{name}")


def text(advice: Findings) -> str:
    """The choice and its reason, a line for each strategy, the remarks."""
    lines = [advice.sentence]
    for one in advice.candidates:
        held = format_bytes(one.held.total) if one.held else "–"
        step = format_seconds(one.seconds) if one.fits else "–"
        mark = "*" if one.is_chosen else " "
        lines.append(say("line", mark=mark, name=one.title, held=held, step=step, why=one.why))
    return "\n".join([*lines, *advice.remarks])


def table(advice: Findings) -> str:
    """The choice, its reason, memory and traffic of every strategy, and the remarks, in the notebook's own colours."""
    chosen = _chosen(advice)
    said, *after = (f"<p>{escape(words)}</p>" for words in (advice.sentence, *advice.remarks, _assumed(advice)))
    tables = (memory_rows, traffic_rows, reason_rows)
    shown = "".join(_html_table(make(advice), chosen) for make in tables)
    return f'<div class="rr-advice"><style>{_NOTEBOOK_CSS}</style>{said}{shown}{"".join(after)}</div>'


def page(advice: Findings) -> str:
    """The whole page."""
    work = advice.work
    title = say("page.title", model=model_name(work.model), cluster=cluster_name(work.cluster))
    chosen = _chosen(advice)
    rule, flows = advice.rule, flow_rows(advice)
    cited = say("page.cited", case=rule.case, says=rule.says, source=rule.source)
    rules = [say("page.one_rule", case=one.case, says=one.says) for one in RULES.values()]
    parts = [
        f'<h1>{escape(title)}</h1><div class="choice">{escape(advice.sentence)}</div>',
        f'<div class="two"><div>{_heading("model")}{_facts(_model_facts(work.model))}</div>',
        f"<div>{_heading('cluster')}{_facts(_cluster_facts(work.cluster))}</div></div>",
        f"{_heading('arithmetic')}{_facts(_arithmetic(advice))}",
        f"{_heading('memory')}{_html_table(memory_rows(advice), chosen)}",
        f"{_heading('traffic')}{_html_table(traffic_rows(advice), chosen)}",
        f"{_heading('flows')}{_html_table(flow_rows(advice))}" if flows else "",
        f"<p><small>{escape(_assumed(advice))}</small></p>",
        f"{_heading('why')}{_html_table(reason_rows(advice), chosen)}",
        f"{_heading('rule')}<p>{escape(cited)}</p>",
        _list(advice.remarks),
        f"{_heading('rules')}{_list(rules)}",
    ]
    html = f'<!doctype html>\n<html lang="{language()}">'
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{_CSS}</style>'
    return f"{html}<head>{head}</head>\n<body>\n{chr(10).join(parts)}\n</body></html>\n"


def _heading(name: str) -> str:
    return f"<h2>{escape(say(f'page.{name}'))}</h2>"


def _marked(one: Candidate) -> str:
    return f"{one.title} ✓" if one.is_chosen else one.title


def _kinds(one: Candidate) -> dict[str, str]:
    if one.held is None:
        return dict.fromkeys((*SHOWN_KINDS, "other", "a rank", "fits"), "–")
    shown = {kind: getattr(one.held, kind) for kind in SHOWN_KINDS}
    shown["other"] = one.held.total - sum(shown.values())
    sizes = {name: format_bytes(size) for name, size in shown.items()}
    return {**sizes, "a rank": format_bytes(one.held.total), "fits": say(f"fits.{one.fits}")}


def _traffic(one: Candidate) -> dict[str, str]:
    if one.estimate is None:
        return dict.fromkeys(("sends", "not hidden", "bubble", "step", "MFU"), "–")
    step = one.estimate
    return {
        "sends": say("sends.list", parts=sent) if (sent := [*_by_link(one)]) else say("sends.nothing"),
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
        yield say(f"sends.{kind}", size=format_bytes(num_bytes), link=link)


def _model_facts(model: ModelSpec) -> dict[str, str]:
    return {
        "parameters": f"{model.num_params:,}",
        "layers, hidden": f"{model.num_layers}, {model.hidden:,}",
        "heads, of keys and values": f"{model.num_heads}, {model.kv_heads}",
        "feed-forward, vocabulary": f"{model.ffn:,}, {model.vocab:,}",
        "tokens of a sequence": f"{model.seq:,}",
    }


def _cluster_facts(cluster: Cluster) -> dict[str, str]:
    network = say("value.none") if cluster.num_nodes == 1 else _link_words(cluster.network)
    return {
        "GPUs": say("value.gpus", gpus=cluster.world_size, cluster=cluster_name(cluster)),
        "memory of a GPU": format_bytes(cluster.gpu.memory),
        "16-bit peak of a GPU": f"{cluster.gpu.flops / 1e12:,.0f} TFLOP/s",
        "inside a node, a GPU": _link_words(cluster.intra) if cluster.gpus_per_node > 1 else say("value.none"),
        "network of a node": network,
    }


def _link_words(link: Link) -> str:
    return say("value.link", name=_short(link), rate=_rate(link))


def _short(link: Link) -> str:
    """The link's name without what stands in brackets; what `Cluster.network_for` adds, in words."""
    name = link.name.split(" (")[0]
    for way in ("shared by", "to a card"):
        first, found, number = name.partition(f", {way}")
        if found:
            return say(f"link.{way}", name=first, number=number.strip())
    return name


def _rate(link: Link) -> str:
    return f"{format_bytes(link.bandwidth)}/s"


def _arithmetic(advice: Findings) -> dict[str, str]:
    work = advice.work
    plain = Plan(precision=work.precision, optimizer=work.optimizer, attention=work.attention)
    per, params = bytes_per_parameter(plain), work.model.num_params
    tokens, flops = work.global_batch * work.model.seq, step_flops(work.model, batch=work.global_batch)
    share = work.assumptions.efficiency
    reached = share * work.cluster.gpu.flops * work.cluster.world_size
    facts = {
        "model states": say("value.states", params=params, each=per, size=format_bytes(params * per)),
        "largest layer, its states": format_bytes(largest_layer(work.model, plain)),
        "usable on a GPU": format_bytes(work.usable),
        "a step": say("value.step", batch=work.global_batch, tokens=tokens, flops=flops / 1e15),
        "compute, nothing else": say("value.compute", time=format_seconds(flops / reached), share=100 * share),
    }
    if work.cluster.num_nodes > 1:
        enough = tokens_that_hide(work.cluster, work.assumptions, dtype_bytes=weight_bytes(plain))
        rates = {"flops": share * work.cluster.gpu.flops / 1e12, "rate": _rate(work.cluster.network)}
        facts["a micro-batch hides ZeRO-3 or DDP"] = say("value.enough", tokens=enough, **rates)
    return facts


def _assumed(advice: Findings) -> str:
    return say("estimate", efficiency=100 * advice.work.assumptions.efficiency)


def _chosen(advice: Findings) -> int | None:
    return next((row for row, one in enumerate(advice.candidates) if one.is_chosen), None)


def _facts(facts: Mapping[str, str]) -> str:
    body = "".join(
        f'<tr><th scope="row">{escape(say(f"fact.{name}"))}</th><td>{escape(value)}</td></tr>'
        for name, value in facts.items()
    )
    return f"<table><tbody>{body}</tbody></table>"


def _list(sentences: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(words)}</li>" for words in sentences) + "</ul>" if sentences else ""


def _html_table(shown: Rows, chosen: int | None = None) -> str:
    head = "".join(f'<th scope="col"{_words(name)}>{escape(column(name))}</th>' for name in shown[0])
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
