"""What an answer is typed or pressed into; all of it works by keyboard."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ipywidgets

from helpers.learner.guesses import Question
from helpers.widgets import sitting_parts as parts
from helpers.widgets.guess_reading import SAYS


class Controls(ipywidgets.VBox):
    """One or two fields, radio buttons, or buttons that are pressed in order; then "my guess" and "no idea".

    on_answer: called with what was typed or chosen. on_none: called for "no idea".
    """

    def __init__(self, question: Question, *, on_answer: Callable[[Any], None], on_none: Callable[[], None]) -> None:
        self._question = question
        self.fields: list[ipywidgets.Text] = []
        self.pressed: list[int] = []
        self.send_button = parts.button(lambda: on_answer(self.given), style="primary")
        self.send_button.description = SAYS("guess")
        self.none_button = parts.button(on_none)
        self.none_button.description = SAYS("no_idea")
        self._on_answer = on_answer
        make = {"number": self._number, "between": self._between, "choice": self._choice, "order": self._order}
        super().__init__(make[question.form]())

    @property
    def given(self) -> Any:
        """What stands in the controls now."""
        if self._question.form == "choice":
            return self.radio.value
        if self._question.form == "order":
            return [self._question.options[place].en for place in self.pressed]
        texts = [field.value for field in self.fields]
        return texts if self._question.form == "between" else texts[0]

    def _number(self) -> list[ipywidgets.Widget]:
        return [parts.row(self._field("placeholder"), self._unit(), self.send_button, self.none_button)]

    def _between(self) -> list[ipywidgets.Widget]:
        low, high = self._field("lowest"), self._field("highest")
        between = ipywidgets.HTML(SAYS("between_and"))
        return [parts.row(low, between, high, self._unit(), self.send_button, self.none_button)]

    def _choice(self) -> list[ipywidgets.Widget]:
        pairs = [(one.in_(), one.en) for one in self._question.options]
        self.radio = ipywidgets.RadioButtons(options=pairs, value=None, layout={"width": "auto", "margin": "2px 14px"})
        return [self.radio, parts.row(self.send_button, self.none_button)]

    def _order(self) -> list[ipywidgets.Widget]:
        self.items = [
            parts.button(lambda place=place: self._press(place)) for place in range(len(self._question.options))
        ]
        self.again_button = parts.button(self._start_again)
        self.again_button.description = SAYS("start_again")
        how = ipywidgets.HTML(f'<p class="rr-first">{SAYS("in_order")}</p>')
        below = parts.row(self.send_button, self.again_button, self.none_button)
        self._name_items()
        return [how, parts.row(*self.items), below]

    def _press(self, place: int) -> None:
        if place not in self.pressed:
            self.pressed.append(place)
        self._name_items()
        left = [item for item in self.items if not item.disabled]
        (left[0] if left else self.send_button).focus()

    def _start_again(self) -> None:
        self.pressed.clear()
        self._name_items()
        self.items[0].focus()

    def _name_items(self) -> None:
        for place, item in enumerate(self.items):
            text = self._question.options[place].in_()
            item.disabled = place in self.pressed
            item.description = f"{self.pressed.index(place) + 1} · {text}" if item.disabled else text

    def _field(self, placeholder: str) -> ipywidgets.Text:
        field = ipywidgets.Text(placeholder=SAYS(placeholder), layout=ipywidgets.Layout(width="150px"))
        field.on_msg(lambda _, content, __: content.get("event") == "submit" and self._on_answer(self.given))
        self.fields.append(field)
        return field

    def _unit(self) -> ipywidgets.HTML:
        return ipywidgets.HTML(f'<span style="margin-right:14px">{self._question.unit}</span>')
