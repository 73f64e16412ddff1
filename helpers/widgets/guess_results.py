"""Provides pictures of many guesses: `my_guesses` of a chapter, `my_calibration` by kind, `votes` of a taught class.

A guess is a learner's answer to a question of a chapter before its result is shown: a number, a range, a choice or an
order. `my_guesses` and `my_calibration` read the learner's progress file. `votes` reads the folder that the environment
variable GUESS_BOX names, the box: there the notebooks of all learners in a class store their answers, without names.
All three return a widget. A learner may switch guesses off (GUESS=off), and is then asked nothing.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Sequence
from html import escape
from typing import Any

import ipywidgets

from helpers.draw import GuessMark, Scene, guesses_scene, to_svg, votes_scene
from helpers.learner.guesses import storage as class_box  # here for the box alone
from helpers.learner.guesses.calibration import FAR, GuessCalibration, by_kind, compare, format_answer
from helpers.learner.guesses.questions import Declaration, Question, declarations_in, make_question
from helpers.learner.guesses.storage import is_off, kernel_guesses
from helpers.learner.words import language
from helpers.widgets.explorer import with_sentence
from helpers.widgets.guess_view import known_declaration, value_text, words  # words: guess.yaml
from helpers.widgets.view import SavedWidget, button, display, row, style_sheet

# The texts of my_guesses, of my_calibration, and of votes.
mine_words, self_words, vote_words = (words.section(name) for name in ("mine", "calibration", "votes"))
MAX_BARS = 8  # where a class gave more different numbers, they are grouped by powers of two


def my_guesses(chapter: str, *, path: str | os.PathLike | None = None) -> MyGuesses:
    """The learner's guesses of a chapter, such as "08", compared with the true answers. path: the progress file."""
    return MyGuesses(str(chapter), path=path)


class _Picture(SavedWidget, ipywidgets.VBox):
    """A sentence and below it a picture, which are drawn anew by `refresh()`. `scene` is None where there is none."""

    scene: Scene | None
    sentence: str

    def __init__(self, *controls: ipywidgets.Widget) -> None:
        self.html = ipywidgets.HTML()
        super().__init__([style_sheet("guess"), self.html, *controls])
        self.add_class("rr-guess")
        self.refresh()

    def refresh(self) -> None:
        """Draw what is known now."""
        sentence, scene = self.sentence, self.scene
        self.html.value = f'<p aria-live="polite">{escape(sentence)}</p>{to_svg(scene) if scene else ""}'

    @property
    def text(self) -> str:
        """What is shown, as plain text."""
        scene = self.scene
        return "\n".join([self.sentence, *([scene.summary] if scene else [])])


class MyGuesses(_Picture):
    """What `my_guesses` returns. Drawn anew whenever one of the guesses is answered in this kernel."""

    def __init__(self, chapter: str, *, path: str | os.PathLike | None = None) -> None:
        self.chapter = chapter
        self._guesses = kernel_guesses(path)  # the questions asked and the answers given in this kernel
        self.declared = _declared_in(chapter)  # each question of the chapter, with its key and its true answer
        for question in self.declared:
            self._guesses.listen(question.key, self)  # an answer to the question calls `refresh`
        super().__init__()

    @property
    def scene(self) -> Scene | None:
        """One row per question; None where the chapter has no questions."""
        return self._scene(with_guesses=True)

    @property
    def sentence(self) -> str:
        """How many questions were guessed, and how many of the guesses were near."""
        stored = [(question, self._guesses.answer(question.key)) for question in self.declared]
        guessed = [(question, answer) for question, answer in stored if answer is not None]
        if not self.declared or not guessed:
            return mine_words("empty" if self.declared else "nothing", chapter=self.chapter, all=len(self.declared))
        # `compare` says whether an answer is right and, for numbers, the ratio of guess and truth; None for "no idea".
        errors = [compare(answer.form, answer.value, question.answer) for question, answer in guessed]
        ratios = [error.ratio for error in errors if error and error.ratio is not None]
        chosen = [error for error in errors if error and error.ratio is None]
        near = sum(max(ratio, 1 / ratio) <= 2 for ratio in ratios)  # at most twice too high or too low
        counts = {"near": near, "numbers": len(ratios), "chosen": len(chosen)}
        right = sum(error.is_right for error in chosen)
        return mine_words("sentence", count=len(guessed), all=len(self.declared), right=right, **counts)

    def _scene(self, *, with_guesses: bool) -> Scene | None:
        """The picture; without guesses it shows the questions alone."""
        if not self.declared:
            return None
        known = [question for question in self.declared if self._is_known(question, with_guesses=with_guesses)]
        # Before any question was asked, the picture lists all of them instead of none.
        marks = [self._mark(question, with_guesses=with_guesses) for question in known or self.declared]
        # For those who cannot see the picture: every question, with what was guessed or what came of it.
        summary = "; ".join(": ".join(filter(None, [mark.text, mark.tooltip or mark.word])) for mark in marks) + "."
        labels = [mine_words(name) for name in ("low", "truth", "high", "chosen")]
        return guesses_scene(marks, title=mine_words("title", chapter=self.chapter), words=labels, summary=summary)

    def _is_known(self, question: Declaration, *, with_guesses: bool) -> bool:
        """Whether the question was asked in this kernel or answered before; others come later in the chapter."""
        is_answered = self._guesses.answer(question.key) is not None
        return question.key in self._guesses.asked or (with_guesses and is_answered)

    def _mark(self, question: Declaration, *, with_guesses: bool) -> GuessMark:
        """The row of a question in the picture: where the guess lies, or what came of it in words."""
        stored, truth = self._guesses.answer(question.key), question.answer
        text, is_number = self._text(question), isinstance(truth, float)
        if not with_guesses:
            return GuessMark(text=text, is_number=is_number)
        if stored is None or stored.value is None:
            word = words("not_guessed" if stored is None else "no_idea")
            return GuessMark(text=text, word=word, is_number=is_number)
        error = compare(stored.form, stored.value, truth)  # whether it is right, and for a number how far off it is
        if stored.form in ("choice", "order"):
            return GuessMark(text=text, word=mine_words("right" if error.is_right else "wrong"), is_number=False)
        guessed = stored.value if isinstance(stored.value, list) else [stored.value]  # two numbers for a range
        ratios = [value / truth if truth else 0 for value in guessed]
        tooltip = f"{format_answer(stored.value, stored.unit)} / {format_answer(truth, stored.unit)}"
        if min(ratios) <= 0:  # such a guess has no place on a logarithmic axis
            word = mine_words("right") if error.is_right else mine_words("no_number", value=tooltip)
            return GuessMark(text=text, word=word)
        late = f" ({mine_words('late')})" if stored.is_late else ""  # late: given after the result was opened
        return GuessMark(text=text + late, ratios=tuple(ratios), tooltip=tooltip)

    def _text(self, question: Declaration) -> str:
        """The question as it was asked, as the progress file has it, or as declared in Chinese; else its key."""
        if language() == "zh" and question.zh:
            return question.zh
        asked = self._guesses.asked.get(question.key)
        if asked is not None:
            return asked.text.en
        stored = self._guesses.answer(question.key)
        return stored.text if stored is not None and stored.text else question.key

    def __repr__(self) -> str:
        return f"[guesses] chapter {self.chapter}: my guesses and the truth"

    @property
    def saved(self) -> Scene | None:
        """The questions on their axis, without the learner's guesses."""
        return self._scene(with_guesses=False)


def my_calibration(*, path: str | os.PathLike | None = None) -> MyCalibration:
    """How well the learner guesses each kind of number. path: the progress file, if it is not the one in the home."""
    return MyCalibration(path=path)


class MyCalibration(_Picture):
    """What `my_calibration` returns: one row per kind, on the axis of `my_guesses`."""

    TEXT = "[guesses] how well I guess: memory, traffic, time, count"

    def __init__(self, *, path: str | os.PathLike | None = None) -> None:
        self._path = path
        super().__init__()

    @property
    def sentence(self) -> str:
        """Such as "traffic: typically 2 times high", for each kind."""
        calibrations = by_kind(self._path)
        lines = [line for kind, calibration in calibrations.items() for line in _kind_texts(kind, calibration)]
        # FAR is a factor: where guesses of a kind are typically off by that much, the quiz asks about that kind first.
        if any(calibration.far >= FAR for calibration in calibrations.values()):
            lines.append(self_words("then"))
        return " · ".join(lines) or self_words("none")

    @property
    def scene(self) -> Scene | None:
        """One row per kind; None as long as there is nothing to compare."""
        times = {kind: calibration.times for kind, calibration in by_kind(self._path).items()}
        marks = [GuessMark(text=self_words(kind), ratios=(ratio,)) for kind, ratio in times.items() if ratio]
        labels = [mine_words(name) for name in ("low", "truth", "high")]
        if not marks:
            return None
        return guesses_scene(marks, title=self_words("title"), words=labels, summary=self.sentence)

    @property
    def saved(self) -> Scene:
        """That nothing was guessed yet, which is all that a saved notebook says."""
        return with_sentence(None, self_words("none"))


def _kind_texts(kind: str, calibration: GuessCalibration) -> list[str]:
    """A sentence on the guessed numbers of this kind, and one on the choices, where there were any."""
    lines = []
    if calibration.times is not None:
        # `times` is the typical ratio of guess and truth, so `factor` is how far off it is, whether high or low.
        factor = max(calibration.times, 1 / calibration.times)
        # Within 10 % of the truth, guesses are said to be neither high nor low.
        name = "near" if factor < 1.1 else "high" if calibration.times > 1 else "low"
        sentence = self_words(name, kind=self_words(kind), times=f"{factor:.2g}")
        lines.append(self_words("of", sentence=sentence, count=calibration.num_numbers))
    if calibration.num_chosen:
        counts = {"right": calibration.num_right, "count": calibration.num_chosen}
        lines.append(self_words("right", kind=self_words(kind), **counts))
    return lines


def _declared_in(chapter: str) -> tuple[Declaration, ...]:
    """The questions of a chapter with their true answers."""
    try:
        return declarations_in(chapter)
    except ValueError:  # the file of answers is damaged; its own tests report that
        return ()


def votes(key: str, *, show: bool = False, path: str | os.PathLike | None = None) -> Votes:
    """The answers of a class to one question; before the result is revealed, only their number.

    show: draw the histogram before the result is revealed. path: the progress file, which says whether this notebook
    has answered or opened the result.
    """
    return Votes(key, show=show, path=path)


class Votes(_Picture):
    """What `votes` returns. Without a front end: `.look()`, `.refresh()`, then `.text`.

    It draws the histogram once this notebook has answered the question or opened its result, or on request (`look`). A
    saved notebook keeps no answers of a class.
    """

    def __init__(self, key: str, *, show: bool = False, path: str | os.PathLike | None = None) -> None:
        self.key, self._is_requested = key, show
        self._guesses = kernel_guesses(path)  # the questions asked and the answers given in this kernel
        self.show_button = button(self.look, vote_words("show"))
        self.again_button = button(self.refresh, vote_words("again"))
        super().__init__(row(self.show_button, self.again_button))
        self._guesses.listen(key, self)

    def look(self) -> None:
        """Show the histogram before the result is revealed."""
        self._is_requested = True
        self.refresh()

    def refresh(self) -> None:
        """Read the folder again."""
        self.answers = class_box.class_guesses(self.key)  # a list of the values, None for "no idea"
        super().refresh()
        display(self.show_button, not self.is_open)

    @property
    def is_open(self) -> bool:
        """Whether the histogram is shown: it was requested, or this notebook shows the result already."""
        return self._is_requested or self._is_revealed

    @property
    def _is_revealed(self) -> bool:
        """Whether this notebook shows the result of the question, as it was answered or opened, or guesses are off."""
        return is_off() or self._guesses.is_opened(self.key) or self._guesses.answer(self.key) is not None

    @property
    def question(self) -> Question:
        """The question as it was asked in this kernel, or one made from its key alone."""
        asked = self._guesses.asked.get(self.key)
        return asked or make_question(self.key, key=self.key)

    @property
    def sentence(self) -> str:
        """How many answered."""
        if class_box.class_folder() is None:
            return vote_words("no_box")
        count = vote_words("count", count=len(self.answers))
        return count if self.is_open else f"{count} {vote_words('folded')}"

    @property
    def scene(self) -> Scene | None:
        """The histogram; the answer is marked only once the result has been revealed."""
        if not self.is_open or not self.answers:
            return None
        counts, bars = _counted(self.question, self.answers)
        declared = known_declaration(self.key)
        truth = declared.answer if declared and self._is_revealed else None
        right = next((number for number, value in enumerate(bars) if _is_right(value, truth)), None)
        return votes_scene(counts, title=vote_words("title", key=self.key), right=right, word=vote_words("answer"))

    def __repr__(self) -> str:
        return f"[votes] {self.key}: how the class guessed"


def _counted(question: Question, answers: Sequence[Any]) -> tuple[list[tuple[str, int]], list[Any]]:
    """Text and count of each bar, "no idea" last; and for each bar its answer, or a slice for a range of numbers."""
    given = [tuple(answer) if isinstance(answer, list) else answer for answer in answers if answer is not None]
    numbers = [answer for answer in given if isinstance(answer, int | float)]
    are_numbers = len(numbers) == len(given)
    if are_numbers and len(set(numbers)) > MAX_BARS and min(numbers) > 0:
        counts, bars = _by_powers(question, numbers)
    else:
        # Numbers ascend; all other answers are sorted by how often they were given, and then by their text.
        tally = sorted(Counter(given).items(), key=lambda pair: pair if are_numbers else (-pair[1], str(pair[0])))
        counts = [(value_text(question, value), count) for value, count in tally]
        bars = [value for value, _ in tally]
    num_without = len(answers) - len(given)  # those who answered "no idea"
    return counts + ([(words("no_idea"), num_without)] if num_without else []), bars


def _by_powers(question: Question, numbers: Sequence[float]) -> tuple[list[tuple[str, int]], list[Any]]:
    """Bars of equal width on a logarithmic axis: a factor of two, or a larger power of two if that keeps them few."""
    low, high = (math.floor(math.log2(edge)) for edge in (min(numbers), max(numbers)))  # powers of two
    step = max(1, math.ceil((high - low + 1) / MAX_BARS))
    edges = [(2.0**power, 2.0 ** (power + step)) for power in range(low, high + 1, step)]
    counts = [
        (f"{format_answer(a)} – {format_answer(b, question.unit)}", sum(a <= number < b for number in numbers))
        for a, b in edges
    ]
    return counts, [slice(*edge) for edge in edges]


def _is_right(value: Any, truth: Any) -> bool:
    """Whether a bar's answer, or its range of numbers, is true; False while the truth is None, not to be seen yet."""
    if truth is None:
        return False
    if isinstance(value, slice):
        return isinstance(truth, float) and value.start <= truth < value.stop
    form = "choice" if isinstance(truth, str) else "order" if isinstance(truth, tuple) else "number"
    if form == "number" and isinstance(value, tuple):
        form = "between"
    error = compare(form, value, truth)
    return error is not None and error.is_right
