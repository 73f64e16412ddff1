"""What came of the guesses: those of a chapter beside the truth, and how well somebody guesses each kind of thing."""

from __future__ import annotations

import os
from html import escape
from typing import Any

import ipywidgets

from helpers.draw import GuessMark, Scene, guesses_scene, to_svg
from helpers.draw.png import png_language
from helpers.learner.guesses import Declared, compare, declared_in, told
from helpers.learner.guesses.calibration import FAR, Calibration, by_kind
from helpers.learner.guesses.room import room
from helpers.learner.words import language, reading
from helpers.widgets.bundle import bundle, png_of
from helpers.widgets.explorer import with_sentence
from helpers.widgets.guess_reading import SAYS
from helpers.widgets.guess_view import style

MINE, SELF = SAYS.section("mine"), SAYS.section("calibration")


def my_guesses(chapter: str, *, path: str | os.PathLike | None = None) -> MyGuesses:
    """Each guess of this chapter, "08", beside the truth, and those not guessed. path: as of `guess`."""
    return MyGuesses(str(chapter), path=path)


class _Picture(ipywidgets.VBox):
    """A sentence and a picture that may be drawn anew; what is saved is drawn without the learner."""

    def __init__(self) -> None:
        self.html = ipywidgets.HTML()
        super().__init__([style(), self.html])
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
        self.chapter, self._room = chapter, room(path)
        self.declared = _declared_in(chapter)
        for one in self.declared:
            self._room.listen(one.key, self)
        super().__init__()

    @property
    def scene(self) -> Scene | None:
        """Nothing where the chapter asks nothing."""
        return self._scene(with_guesses=True)

    @property
    def sentence(self) -> str:
        """How many were guessed, and how many of them were near."""
        kept = [(one, self._room.answer(one.key)) for one in self.declared]
        guessed = [(one, answer) for one, answer in kept if answer is not None]
        if not self.declared or not guessed:
            return MINE("empty" if self.declared else "nothing", chapter=self.chapter, all=len(self.declared))
        offs = [compare(answer.form, answer.value, one.answer) for one, answer in guessed]
        ratios = [off.ratio for off in offs if off and off.ratio is not None]
        chosen = [off for off in offs if off and off.ratio is None]
        near = sum(max(ratio, 1 / ratio) <= 2 for ratio in ratios)
        counts = {"near": near, "numbers": len(ratios), "chosen": len(chosen)}
        right = sum(off.is_right for off in chosen)
        return MINE("sentence", count=len(guessed), all=len(self.declared), right=right, **counts)

    def _scene(self, *, with_guesses: bool) -> Scene | None:
        if not self.declared:
            return None
        known = [one for one in self.declared if self._is_known(one, with_guesses=with_guesses)]
        marks = [self._mark(one, with_guesses=with_guesses) for one in known or self.declared]
        said = "; ".join(": ".join(filter(None, [mark.text, mark.tooltip or mark.word])) for mark in marks)
        words = [MINE(name) for name in ("low", "truth", "high", "chosen")]
        return guesses_scene(marks, title=MINE("title", chapter=self.chapter), words=words, summary=f"{said}.")

    def _is_known(self, one: Declared, *, with_guesses: bool) -> bool:
        """It was asked here, or answered before: what comes later in the chapter is not listed yet."""
        return one.key in self._room.asked or (with_guesses and self._room.answer(one.key) is not None)

    def _mark(self, one: Declared, *, with_guesses: bool) -> GuessMark:
        kept = self._room.answer(one.key)
        text, is_number = self._text(one), isinstance(one.answer, float)
        if not with_guesses:
            return GuessMark(text=text, is_number=is_number)
        if kept is None or kept.value is None:
            word = SAYS("not_guessed" if kept is None else "no_idea")
            return GuessMark(text=text, word=word, is_number=is_number)
        off = compare(kept.form, kept.value, one.answer)
        if kept.form in ("choice", "order"):
            return GuessMark(text=text, word=MINE("right" if off.is_right else "wrong"), is_number=False)
        ratios = [value / one.answer if one.answer else 0 for value in _numbers(kept.value)]
        said = f"{told(kept.value, kept.unit)} / {told(one.answer, kept.unit)}"
        if min(ratios) <= 0:
            return GuessMark(text=text, word=MINE("right") if off.is_right else MINE("no_number", value=said))
        late = f" ({MINE('late')})" if kept.is_late else ""
        return GuessMark(text=text + late, ratios=tuple(ratios), tooltip=said)

    def _text(self, one: Declared) -> str:
        """The question as asked here, as noted, or in Chinese as declared; its key where it is unknown."""
        if language() == "zh" and one.zh:
            return one.zh
        if (asked := self._room.asked.get(one.key)) is not None:
            return asked.text.en
        kept = self._room.answer(one.key)
        return kept.text if kept is not None and kept.text else one.key

    def __repr__(self) -> str:
        return f"[guesses] chapter {self.chapter}: my guesses and the truth"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None, **kwargs: Any) -> dict[str, Any]:
        """A saved notebook keeps the questions on their axis, and nobody's guess."""
        shown = super()._repr_mimebundle_(include=include, exclude=exclude, **kwargs)
        with reading(png_language()):
            empty = self._scene(with_guesses=False)
        return bundle(shown, repr(self), png_of(empty) if empty else {})


def my_calibration(*, path: str | os.PathLike | None = None) -> MyCalibration:
    """How well I guess, by kind. path: of the progress file, if not the one in the home."""
    return MyCalibration(path=path)


class MyCalibration(_Picture):
    """What `my_calibration` returns: one row a kind, on the axis of `my_guesses`."""

    def __init__(self, *, path: str | os.PathLike | None = None) -> None:
        self._path = path
        super().__init__()

    @property
    def sentence(self) -> str:
        """ "traffic: typically 2 times high", a line for each kind."""
        found = by_kind(self._path)
        lines = [line for kind, one in found.items() for line in _said(kind, one)]
        is_far = any(one.far >= FAR for one in found.values())
        return " · ".join([*lines, *([SELF("then")] if is_far else [])]) or SELF("none")

    @property
    def scene(self) -> Scene | None:
        """Nothing as long as there is nothing to compare."""
        found = by_kind(self._path)
        marks = [GuessMark(text=SELF(kind), ratios=(one.times,)) for kind, one in found.items() if one.times]
        words = [MINE(name) for name in ("low", "truth", "high")]
        if not marks:
            return None
        return guesses_scene(marks, title=SELF("title"), words=words, summary=self.sentence)

    def __repr__(self) -> str:
        return "[guesses] how well I guess: memory, traffic, time, count"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None, **kwargs: Any) -> dict[str, Any]:
        """A saved notebook keeps what this is, and nothing of the learner."""
        shown = super()._repr_mimebundle_(include=include, exclude=exclude, **kwargs)
        with reading(png_language()):
            saved = with_sentence(None, SELF("none"))
        return bundle(shown, repr(self), png_of(saved))


def _said(kind: str, one: Calibration) -> list[str]:
    """The numbers of a kind, and its choices."""
    lines = []
    if one.times is not None:
        factor = max(one.times, 1 / one.times)
        name = "near" if factor < 1.1 else "high" if one.times > 1 else "low"
        sentence = SELF(name, kind=SELF(kind), times=f"{factor:.2g}")
        lines.append(SELF("of", sentence=sentence, count=one.num_numbers))
    if one.num_chosen:
        lines.append(SELF("right", kind=SELF(kind), right=one.num_right, count=one.num_chosen))
    return lines


def _numbers(value: Any) -> list[float]:
    return list(value) if isinstance(value, list) else [value]


def _declared_in(chapter: str) -> tuple[Declared, ...]:
    try:
        return declared_in(chapter)
    except ValueError:  # the tests of the files say so
        return ()
