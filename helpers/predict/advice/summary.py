"""Renders an Advice for a terminal of 80 columns: a table of the best plans, the reasons for the first, the marks.

`Advice` (advise.py) is the planner's answer: `best` are up to ten plans, of which the first is recommended, and
`candidates` has one plan per strategy. Each is a `PlanEstimate`, a plan with its memory and step. A mark is a letter in
a plan's row that stands for what speaks against the plan, and is explained once below the table. `width` counts the
columns of a terminal, of which a Chinese character takes two. `words("summary.why")` returns the text of that key in
the reader's language, from words/advice.yaml.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from helpers.learner.words.wrapping import padded, width, wrap
from helpers.predict.advice.choice import LAYOUT_TIE, RIGHT_WITHIN
from helpers.predict.advice.plans import KINDS, NOT_IN_PLAN, STEPS, PlanEstimate, bottleneck_name, words
from helpers.quantities.units import format_bytes, format_seconds

if TYPE_CHECKING:  # because advise.py imports this file
    from helpers.predict.advice.advise import Advice

COLUMNS = 80  # of a terminal
TIED, TRAINER = "=", "T"  # cannot be told from the fastest plan; this course's Trainer runs it
RECOMPUTES = "r"  # the plan recomputes activations in backward, without which it may not fit
# The kind of a warning (`ranking.warnings`) -> its mark.
MARKS = {
    "bubble": "b", "few": "f", "narrow": "n", "tokens": "t", "micro": "m", "sums": "s", "traffic": "w", "full": "g",
    "loss": "l", "bf16": "h",
}  # fmt: skip
SHOWN_KINDS = ("parameters", "gradients", "optimizer", "activations")  # of memory, each with a column of its own
RIGHT = ("place", "step", "MFU", "a rank", "seconds", "share")  # columns of numbers, which are aligned right


def marks(advice: Advice, candidate: PlanEstimate) -> str:
    """The marks of one of the best plans, such as "=Tf", with a space where others have the first one."""
    tied = "" if advice.num_tied == 1 else TIED if candidate.is_tied else " "
    runs = "" if candidate.trainer_refusal(advice.request.model) else TRAINER
    return tied + runs + "".join(_objections(candidate))


def _objections(candidate: PlanEstimate) -> dict[str, str]:
    """What speaks against a plan: mark -> sentence."""
    recompute = candidate.plan.recompute
    again = {RECOMPUTES: words("legend_again", what=recompute)} if recompute != "none" else {}
    return again | {mark: candidate.warnings[kind] for kind, mark in MARKS.items() if kind in candidate.warnings}


def plan_rows(advice: Advice) -> list[dict[str, str]]:
    """The best plans as rows of a table: column name -> text."""
    return [
        {
            "place": str(place), "layout": candidate.layout_text, "step": format_seconds(candidate.seconds),
            "MFU": f"{100 * candidate.mfu:.0f} %", "a rank": format_bytes(candidate.memory.total),
            "binds": bottleneck_name(advice.request, candidate.bottleneck), "marks": marks(advice, candidate),
        }
        for place, candidate in enumerate(advice.best, 1)
    ]  # fmt: skip


def column(name: str) -> str:
    """The heading of a column."""
    return KINDS(f"kind.{name}") if name in (*SHOWN_KINDS, "other") else words(f"column.{name}")


def tie(advice: Advice) -> str:
    """A sentence about which plans cannot be told apart; empty where nothing fits."""
    if not advice.best:
        return ""
    low, high = map(format_seconds, advice.tied_seconds)
    values = dict(count=advice.num_tied, low=low, high=high, shown=len(advice.best), last=advice.num_tied)
    values |= dict(near=100 * LAYOUT_TIE, right=100 * RIGHT_WITHIN)
    if advice.num_tied == 1:
        return words("tie.one", **values) if len(advice.best) > 1 else ""
    return words("tie.all" if advice.num_tied > len(advice.best) else "tie.some", **values)


def legend(advice: Advice) -> list[tuple[str, str]]:
    """Each mark of the table once, with its sentence. The numbers in it are of the first plan that has the mark."""
    of_trainer = [TRAINER in marks(advice, candidate) for candidate in advice.best]
    key = "all" if all(of_trainer) else "some" if any(of_trainer) else "none"
    found = [(TRAINER, words(f"trainer.{key}"))]
    if key == "none" and (other := advice.trainable):
        found = [(TRAINER, words("trainer.other", plan=other.plan_text, step=format_seconds(other.seconds)))]
    objections = [_objections(one) for one in advice.best]
    for mark in (RECOMPUTES, *MARKS.values()):
        of_plans = [(place, one[mark]) for place, one in enumerate(objections, 1) if mark in one]
        if of_plans:
            place, sentence = of_plans[0]
            found.append((mark, words("legend", sentence=sentence, place=place, plans=len(advice.best))))
    return found


def text(advice: Advice, columns: int = COLUMNS) -> str:
    """The recommended plan, the table, why the first plan is first, what the marks mean, and the remarks."""
    chosen = advice.chosen
    blocks = [[_row_text(chosen, 1) if chosen else advice.choice, advice.alternative]]
    if chosen:
        reasons = [words("summary.why"), *(f"- {sentence}" for sentence in chosen.reasons)]
        explained = [words("summary.marks"), *(f"{mark:>2} {sentence}" for mark, sentence in legend(advice))]
        blocks += [table_lines(plan_rows(advice)), [tie(advice)], reasons, explained]
    else:
        blocks += [_strategies(advice)]
    estimated = "" if advice.is_calibrated or not advice.best else words("uncalibrated")
    blocks += [[advice.by_rule, *advice.remarks, estimated]]
    blocks += [[words("summary.more")]] if advice.best else []
    return "\n\n".join("\n".join(_wrapped(filter(None, block), columns)) for block in blocks if any(block))


def explanation(advice: Advice, place: int, columns: int = COLUMNS) -> str:
    """All that the planner knows about one of the best plans: its step by terms, its memory, reasons and warnings."""
    candidate, model = advice.best[place - 1], advice.request.model
    memory = words("why.uses", memory=candidate.memory_text(advice.request.usable))
    refusal = candidate.trainer_refusal(model)
    trainer = words("trainer.refuses", why=refusal) if refusal else words("trainer.runs")
    blocks = [
        [_row_text(candidate, place), memory],
        table_lines(bar_rows(advice, candidate)),
        [f"- {sentence}" for sentence in candidate.reasons[1:]],
        [*(words("warned", words=sentence) for sentence in candidate.warnings.values()), trainer],
    ]
    return "\n\n".join("\n".join(_wrapped(block, columns)) for block in blocks if block)


def _row_text(candidate: PlanEstimate, place: int) -> str:
    """A plan in full, with its step. What a plan does not show itself, such as offload, is named, too."""
    named = [f"{candidate.title}: "] if candidate.name in NOT_IN_PLAN else []
    plan = "".join((*named, candidate.plan_text))
    return words("summary.row", place=place, plan=plan, step=candidate.step_text, mfu=100 * candidate.mfu)


def bar_rows(advice: Advice, candidate: PlanEstimate | None) -> list[dict[str, str]]:
    """A plan's step, one row per term; empty without a plan."""
    return [
        {
            "term": STEPS(f"term.{bar.name}"), "seconds": format_seconds(bar.seconds),
            "share": f"{100 * bar.seconds / candidate.seconds:.1f} %",
            "binds": bottleneck_name(advice.request, bar.binds),
        }
        for bar in (candidate.step.bars if candidate else ())
    ]  # fmt: skip


def _strategies(advice: Advice) -> list[str]:
    """Where nothing fits: each strategy with the reason."""
    return [f"- {candidate.title}: {candidate.why}" for candidate in advice.candidates]


def table_lines(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Rows as lines of aligned text under a heading."""
    names = [*rows[0]]
    heading = {name: "" if name == "place" else column(name) for name in names}
    shown = [heading, *rows]
    widths = {name: max(width(row[name]) for row in shown) for name in names}
    return ["  ".join(padded(row[name], widths[name], right=name in RIGHT) for name in names).rstrip() for row in shown]


def _wrapped(lines: Iterator[str] | Sequence[str], columns: int) -> Iterator[str]:
    """The lines, those that are too long in several; a list's item or a mark keeps its indent."""
    for line in lines:
        if width(line) <= columns:
            yield line
            continue
        indent = len(line) - len(line.lstrip("- ")) if line.startswith("- ") else 3 if line.startswith(" ") else 0
        yield from wrap(line[indent:], columns, first=line[:indent], rest=" " * (indent or 2))
