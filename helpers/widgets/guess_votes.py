"""How a class guessed: what lies in GUESS_BOX, without names; before the reveal only how many answered."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Sequence
from html import escape
from typing import Any

import ipywidgets

from helpers.draw import Scene, to_svg, votes_scene
from helpers.learner.guesses import Question, compare, declared, is_off, make_question, told
from helpers.learner.guesses import box as class_box
from helpers.learner.guesses.room import room
from helpers.widgets import sitting_parts as parts
from helpers.widgets.bundle import bundle
from helpers.widgets.guess_reading import SAYS, say_value
from helpers.widgets.guess_view import style

VOTES = SAYS.section("votes")
MOST = 8  # bars: with more different numbers than these, they are put together by powers of two


def votes(key: str, *, show: bool = False, path: str | os.PathLike | None = None) -> Votes:
    """The class's answers to this question. show: the histogram also before the result was revealed.

    path: of the progress file, which says whether this notebook has answered or opened the result.
    """
    return Votes(key, show=show, path=path)


class Votes(ipywidgets.VBox):
    """What `votes` returns. Without a front end: `.look()`, `.refresh()`, then `.text`."""

    def __init__(self, key: str, *, show: bool = False, path: str | os.PathLike | None = None) -> None:
        self.key, self._room, self._has_asked = key, room(path), show
        self.html = ipywidgets.HTML()
        self.show_button, self.again_button = parts.button(self.look), parts.button(self.refresh)
        self.show_button.description, self.again_button.description = VOTES("show"), VOTES("again")
        super().__init__([style(), self.html, parts.row(self.show_button, self.again_button)])
        self.add_class("rr-guess")
        self._room.listen(key, self)
        self.refresh()

    def look(self) -> None:
        """Show the histogram now."""
        self._has_asked = True
        self.refresh()

    def refresh(self) -> None:
        """Read the folder again."""
        self.answers = class_box.answers(self.key)
        scene = self.scene
        self.html.value = f'<p aria-live="polite">{escape(self.sentence)}</p>{to_svg(scene) if scene else ""}'
        parts.display(self.show_button, not self.is_open)

    @property
    def is_open(self) -> bool:
        """Whether the histogram is shown: it was asked for, or this notebook shows the result already."""
        return self._has_asked or self._is_revealed

    @property
    def _is_revealed(self) -> bool:
        return is_off() or self._room.is_opened(self.key) or self._room.answer(self.key) is not None

    @property
    def question(self) -> Question:
        asked = self._room.asked.get(self.key)
        return asked or make_question(self.key, key=self.key)

    @property
    def sentence(self) -> str:
        """How many answered."""
        if class_box.folder() is None:
            return VOTES("no_box")
        count = VOTES("count", count=len(self.answers))
        return count if self.is_open else f"{count} {VOTES('folded')}"

    @property
    def scene(self) -> Scene | None:
        """The histogram; the answer is marked only once the result has been revealed."""
        if not self.is_open or not self.answers:
            return None
        counts, places = _counted(self.question, self.answers)
        truth = _truth(self.key) if self._is_revealed else None
        right = next((place for place, value in enumerate(places) if _is_right(value, truth)), None)
        return votes_scene(counts, title=VOTES("title", key=self.key), right=right, word=VOTES("answer"))

    @property
    def text(self) -> str:
        """What is shown, as plain text."""
        scene = self.scene
        return "\n".join([self.sentence, *([scene.summary] if scene else [])])

    def __repr__(self) -> str:
        return f"[votes] {self.key}: how the class guessed"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None, **kwargs: Any) -> dict[str, Any]:
        """A saved notebook keeps no answers of a class."""
        shown = super()._repr_mimebundle_(include=include, exclude=exclude, **kwargs)
        return bundle(shown, repr(self), {})


def _counted(question: Question, answers: Sequence[Any]) -> tuple[list[tuple[str, int]], list[Any]]:
    """Text and count of each bar, and the answer or the range of numbers that it stands for; "no idea" comes last."""
    given = [tuple(one) if isinstance(one, list) else one for one in answers if one is not None]
    numbers = [one for one in given if isinstance(one, int | float)]
    if len(numbers) == len(given) and len(set(numbers)) > MOST and min(numbers) > 0:
        counts, places = _by_powers(question, numbers)
    else:
        tally = sorted(Counter(given).items(), key=lambda pair: (-pair[1], str(pair[0])))
        if len(numbers) == len(given):
            tally.sort()
        counts = [(say_value(question, _listed(value)), count) for value, count in tally]
        places = [value for value, _ in tally]
    nothing = len(answers) - len(given)
    return counts + ([(SAYS("no_idea"), nothing)] if nothing else []), places


def _by_powers(question: Question, numbers: Sequence[float]) -> tuple[list[tuple[str, int]], list[Any]]:
    """Bars a factor of two wide, without gaps; of a wide field as much wider as keeps them few."""
    low, high = (math.floor(math.log2(edge)) for edge in (min(numbers), max(numbers)))
    step = max(1, math.ceil((high - low + 1) / MOST))
    edges = [(2.0**power, 2.0 ** (power + step)) for power in range(low, high + 1, step)]
    counts = [(f"{told(a)} – {told(b, question.unit)}", sum(a <= one < b for one in numbers)) for a, b in edges]
    return counts, [slice(*edge) for edge in edges]


def _is_right(value: Any, truth: Any) -> bool:
    if truth is None:
        return False
    if isinstance(value, slice):
        return isinstance(truth, float) and value.start <= truth < value.stop
    form = "choice" if isinstance(truth, str) else "order" if isinstance(truth, tuple) else "number"
    if form == "number" and isinstance(value, tuple):
        form = "between"
    off = compare(form, value, truth)
    return off is not None and off.is_right


def _truth(key: str) -> Any:
    try:
        return (known := declared(key)) and known.answer
    except ValueError:  # the tests of the files say so
        return None


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
