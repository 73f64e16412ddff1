"""Draws the memory of every strategy's fullest rank against a GPU's limit, with its estimated step beside the bar.

A strategy is a way to train a model on many GPUs, such as ZeRO-3. A candidate (PlanEstimate) is the best plan of one
strategy: its title, the memory of its fullest rank, its estimated seconds, and whether it fits; memory is None where
the strategy cannot train this model. The strategy explorer shows what `predict.advice.advise` recommends: the chosen
plan is framed. A bar far beyond the limit is broken, because drawn to scale it would leave no room for the others;
behind the break stands how many times the limit it is, so that broken bars of one length are not taken for equal.

A Scene is a picture as plain data: rectangles (Rect), labels and lines, in pixels from the top left corner. Plain
numbers in the code are such pixels. A kind of the palette, such as "forward", stands for a colour and a texture.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from helpers.draw.palette import kind_word
from helpers.draw.rows import BarRow, BarStyle, memory_parts, rows_scene
from helpers.draw.scene import Scene, kinds_legend
from helpers.learner.words import book
from helpers.predict.advice.plans import PlanEstimate
from helpers.quantities.units import format_bytes, format_seconds
from helpers.records import MEMORY_KINDS

words = book("advice").section("picture")  # the texts that are shown, by name: learner/words/advice.yaml
_BARS = BarStyle(height=20, pitch=30)
_MOST_LIMITS = 2.0  # bars are broken at this many times the limit


def strategies_scene(candidates: Sequence[PlanEstimate], *, limit: float, limit_name: str, title: str) -> Scene:
    """A row for each candidate; `limit` is the usable bytes of a GPU. Raises ValueError if there is nothing to draw."""
    memories = [candidate.memory for candidate in candidates if candidate.memory]
    if not any(memory.total for memory in memories) or not limit > 0:
        raise ValueError(
            f"strategies_scene got no bytes to draw, or a limit of {limit!r} bytes; give advise's candidates"
        )
    kinds = [kind for kind in MEMORY_KINDS if any(getattr(memory, kind) for memory in memories)]
    # "between" is what separates two sentences in the learner's language.
    summary = book("advice")("between").join(_sentence(candidate) for candidate in candidates)
    return rows_scene(
        [_row(candidate, kinds, limit) for candidate in candidates],
        _BARS,
        title=title,
        summary=summary,
        legend=kinds_legend(kinds),
        limit=(limit, words("limit", name=limit_name, size=format_bytes(limit))),
        has_bytes_axis=True,
        ends_title=words("beside"),  # memory per rank, and step
    )


def _row(candidate: PlanEstimate, kinds: list[str], limit: float) -> BarRow:
    """A candidate: the memory of its fullest rank, and memory and step as text; the chosen one is framed."""
    name = f"✓ {candidate.title}" if candidate.is_chosen else candidate.title
    if candidate.memory is None:
        return BarRow(name=name, parts=[], end=words("cannot"), is_chosen=False)
    total, most, parts = 0.0, _MOST_LIMITS * limit, []
    for part in memory_parts(candidate.memory, kinds, partial(_tooltip, candidate)):
        # As much of the part as lies before the break.
        parts.append(replace(part, size=min(total + part.size, most) - min(total, most)))
        total += part.size
    end = f"{format_bytes(total)} · {_step_text(candidate)}"
    if total > most:
        end = f"{words('times', ratio=total / limit)} · {end}"
    frame = words("chosen", plan=candidate.plan_text) if candidate.is_chosen else ""
    style = {"is_chosen": candidate.is_chosen, "frame": frame, "broken": words("cut") if total > most else ""}
    return BarRow(name=name, parts=parts, end=end, **style)


def _tooltip(candidate: PlanEstimate, kind: str, num_bytes: int) -> str:
    return words("bytes", name=candidate.title, kind=kind_word(kind), size=num_bytes)


def _step_text(candidate: PlanEstimate) -> str:
    """The estimated seconds of a step, or that the plan needs too much memory."""
    return format_seconds(candidate.seconds) if candidate.fits else words("too_much")


def _sentence(candidate: PlanEstimate) -> str:
    """A row for readers who cannot see the picture."""
    if candidate.memory is None:
        return words("refused", name=candidate.title, why=candidate.why)
    texts = {"held": format_bytes(candidate.memory.total), "step": _step_text(candidate)}
    return words("said", name=candidate.title, chosen=candidate.is_chosen, **texts)
