"""An Advice as text, as a table for a notebook, and as a page to print: black on white, A4, nothing from outside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape
from typing import TYPE_CHECKING

from helpers.learner.words import language
from helpers.predict.advice.plans import KINDS, STEPS, TRAFFIC, Ranked, say
from helpers.predict.advice.ranking import WARNED, binding
from helpers.predict.advice.rules import RULES, largest_layer
from helpers.predict.memory.states import bytes_per_parameter, weight_bytes
from helpers.predict.time.collectives import tokens_that_hide
from helpers.predict.time.convolutions import ResNet
from helpers.predict.time.flops import step_flops
from helpers.predict.time.kernels import sustained
from helpers.quantities.units import format_bytes, format_seconds
from helpers.specs import PRESETS, ROUTED, Cluster, Link, ModelSpec, Plan

if TYPE_CHECKING:
    from helpers.predict.advice.advise import Advice

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
    """Its published name, whatever its context, else its size."""
    if isinstance(model, ResNet):
        return model.name
    for name, known in {**PRESETS, **ROUTED}.items():
        if replace(known, seq=model.seq) == model:
            return name
    return say("model", params=model.num_params)


def cluster_name(cluster: Cluster) -> str:
    """For example "4 nodes of 8 H100 SXM" or "1 T4"."""
    number = "node" if cluster.num_nodes == 1 else "nodes"
    return say(number, nodes=cluster.num_nodes, gpus=cluster.gpus_per_node, gpu=cluster.gpu.name)


def memory_rows(advice: Advice) -> Rows:
    """Bytes of the fullest rank by kind, a row for each strategy."""
    return [{"strategy": _marked(one), **_kinds(one)} for one in advice.candidates]


def time_rows(advice: Advice) -> Rows:
    """Where the estimated step goes, a row for each strategy."""
    return [{"strategy": _marked(one), **_time(one)} for one in advice.candidates]


def best_rows(advice: Advice) -> Rows:
    """The best plans, each with why it is there and what stands against it."""
    return [
        {
            "place": str(place), "plan": one.plan_words, "a rank": format_bytes(one.held.total),
            "step": format_seconds(one.seconds), "MFU": f"{100 * one.mfu:.0f} %", "why": _why(advice, one),
        }
        for place, one in enumerate(advice.best, 1)
    ]  # fmt: skip


def _why(advice: Advice, one: Ranked) -> str:
    """Reasons and warnings, but for those of the first plan or of all, which the sentence says."""
    own = () if one is advice.chosen else advice.own_warnings(one)
    warned = (say("warned", words=words) for words in own)
    return say("between").join((*one.reasons, *warned))


def bar_rows(advice: Advice) -> Rows:
    """The chosen plan's step, a term a row; empty where nothing fits."""
    one = advice.chosen
    return [
        {
            "term": STEPS(f"term.{bar.name}"), "seconds": format_seconds(bar.seconds),
            "share": f"{100 * bar.seconds / one.seconds:.1f} %", "binds": binding(advice.work, bar.binds),
        }
        for bar in (one.step.bars if one else ())
    ]  # fmt: skip


def reason_rows(advice: Advice) -> Rows:
    """Each strategy's plan, and the sentence that chooses it or leaves it out."""
    return [{"strategy": _marked(one), "plan": one.plan_words, "why": one.why} for one in advice.candidates]


def rows(advice: Advice) -> Rows:
    """All of it in one table."""
    return [
        {**first, **second, **third}
        for first, second, third in zip(memory_rows(advice), time_rows(advice), reason_rows(advice), strict=True)
    ]


def column(name: str) -> str:
    """The heading of a column."""
    return KINDS(f"kind.{name}") if name in (*SHOWN_KINDS, "other") else say(f"column.{name}")


def text(advice: Advice) -> str:
    """The choice, the best plans with their reasons, a line for each strategy, the remarks."""
    lines = [advice.sentence]
    if advice.best:
        lines.append(say("searched", count=advice.searched, warned=100 * WARNED))
    for place, one in enumerate(advice.best, 1):
        words = dict(plan=one.plan_words, mfu=100 * one.mfu, step=format_seconds(one.seconds))
        lines += [say("ranked", place=place, **words), "     " + _why(advice, one)]
    for one in advice.candidates:
        held = format_bytes(one.held.total) if one.held else "–"
        step = format_seconds(one.seconds) if one.fits else "–"
        mark = "*" if one.is_chosen else " "
        lines += [say("line", mark=mark, name=one.title, held=held, step=step), "     " + one.why]
    return "\n".join([*lines, *advice.remarks])


def table(advice: Advice) -> str:
    """The choice, its reason, memory and traffic of every strategy, and the remarks, in the notebook's own colours."""
    chosen = _chosen(advice)
    said, *after = (f"<p>{escape(words)}</p>" for words in (advice.sentence, *advice.remarks, _assumed(advice)))
    tables = (memory_rows, time_rows, reason_rows)
    shown = _html_table(best_rows(advice), 0) if advice.best else ""
    shown += "".join(_html_table(make(advice), chosen) for make in tables)
    return f'<div class="rr-advice"><style>{_NOTEBOOK_CSS}</style>{said}{shown}{"".join(after)}</div>'


def page(advice: Advice) -> str:
    """The whole page."""
    work = advice.work
    title = say("page.title", model=model_name(work.model), cluster=cluster_name(work.cluster))
    chosen = _chosen(advice)
    best, bars = best_rows(advice), bar_rows(advice)
    parts = [
        f'<h1>{escape(title)}</h1><div class="choice">{escape(advice.sentence)}</div>',
        f'<div class="two"><div>{_heading("model")}{_facts(_model_facts(work.model))}</div>',
        f"<div>{_heading('cluster')}{_facts(_cluster_facts(work.cluster))}</div></div>",
        f"{_heading('best')}{_html_table(best, 0)}" if best else "",
        _list(advice.remarks),
        f"{_heading('bars')}{_html_table(bars)}" if bars else "",
        f"{_heading('arithmetic')}{_facts(_arithmetic(advice))}",
        f"{_heading('memory')}{_html_table(memory_rows(advice), chosen)}",
        f"{_heading('time')}{_html_table(time_rows(advice), chosen)}",
        f"<p><small>{escape(_assumed(advice))}</small></p>",
        f"{_heading('why')}{_html_table(reason_rows(advice), chosen)}",
        _rules(advice),
    ]
    html = f'<!doctype html>\n<html lang="{language()}">'
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{_CSS}</style>'
    return f"{html}<head>{head}</head>\n<body>\n{chr(10).join(parts)}\n</body></html>\n"


def _rules(advice: Advice) -> str:
    if advice.rule is None:
        return ""
    cited = say("page.cited", case=advice.rule.case, says=advice.rule.says, source=advice.rule.source)
    rules = [say("page.one_rule", case=one.case, says=one.says) for one in RULES.values()]
    return f"{_heading('rule')}<p>{escape(cited)}</p>{_heading('rules')}{_list(rules)}"


def _heading(name: str) -> str:
    return f"<h2>{escape(say(f'page.{name}'))}</h2>"


def _marked(one: Ranked) -> str:
    return f"{one.title} ✓" if one.is_chosen else one.title


def _kinds(one: Ranked) -> dict[str, str]:
    if one.held is None:
        return dict.fromkeys((*SHOWN_KINDS, "other", "a rank", "fits"), "–")
    shown = {kind: getattr(one.held, kind) for kind in SHOWN_KINDS}
    shown["other"] = one.held.total - sum(shown.values())
    sizes = {name: format_bytes(size) for name, size in shown.items()}
    return {**sizes, "a rank": format_bytes(one.held.total), "fits": say(f"fits.{one.fits}")}


def _time(one: Ranked) -> dict[str, str]:
    if not one.fits:
        return dict.fromkeys(("compute", "not hidden", "bubble", "step", "MFU"), "–")
    waits = sum(one.shares.get(name, 0.0) for name in TRAFFIC)
    bubble = one.shares.get("waiting", 0.0)
    return {
        "compute": format_seconds(one.seconds - waits - bubble), "not hidden": format_seconds(waits),
        "bubble": format_seconds(bubble), "step": format_seconds(one.seconds), "MFU": f"{100 * one.mfu:.0f} %",
    }  # fmt: skip


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
    network = say("value.none") if cluster.num_nodes == 1 else _link_words(cluster.network)
    return {
        "GPUs": say("value.gpus", gpus=cluster.world_size, cluster=cluster_name(cluster)),
        "memory of a GPU": format_bytes(cluster.gpu.memory),
        "16-bit peak of a GPU": f"{cluster.gpu.flops / 1e12:,.0f} TFLOP/s",
        "inside a node, a GPU": _link_words(cluster.intra) if cluster.gpus_per_node > 1 else say("value.none"),
        "network of a node": network,
    }


def _link_words(link: Link) -> str:
    return say("value.link", name=link.name.split(" (")[0], rate=f"{format_bytes(link.bandwidth)}/s")


def _arithmetic(advice: Advice) -> dict[str, str]:
    work = advice.work
    if isinstance(work.model, ResNet):
        return {"images": f"{work.global_batch:,}", "usable on a GPU": format_bytes(work.usable)}
    plain = Plan(precision=work.precision or "mixed", optimizer=work.optimizer, attention=work.attention)
    per, params = bytes_per_parameter(plain), work.model.num_params
    tokens, flops = work.tokens, step_flops(work.model, batch=work.global_batch)
    share = sustained(work.cluster.gpu)
    reached = share * work.cluster.gpu.flops * work.cluster.world_size
    facts = {
        "model states": say("value.states", params=params, each=per, size=format_bytes(params * per)),
        "largest layer, its states": format_bytes(largest_layer(work.model, plain)),
        "usable on a GPU": format_bytes(work.usable),
        "a step": say("value.step", batch=work.global_batch, tokens=tokens, flops=flops / 1e15),
        "compute, nothing else": say("value.compute", time=format_seconds(flops / reached), share=100 * share),
    }
    if work.cluster.num_nodes > 1:
        enough = tokens_that_hide(work.cluster, dtype_bytes=weight_bytes(plain))
        rates = {"flops": 0.4 * work.cluster.gpu.flops / 1e12}
        rates["rate"] = f"{format_bytes(work.cluster.network.bandwidth)}/s"
        facts["a micro-batch hides ZeRO-3 or DDP"] = say("value.enough", tokens=enough, **rates)
    return facts


def _assumed(advice: Advice) -> str:
    return say("estimate", stack=advice.work.stack.name)


def _chosen(advice: Advice) -> int | None:
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
    return ' class="words"' if column in ("plan", "why", "term", "binds") else ""
