"""Provides the controls of every explorer as plain Python: dials, number boxes, buttons, steps, and how they stand.

A control knows its value and its texts, and nothing of how it is shown. In a notebook `explorer_view.py` makes an
ipywidget of each; a web page makes HTML inputs of `as_json`. `dial` makes a slider over named values, `choice` a list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any


class Control:
    """Base of all controls. description: its label. tooltip: what it means, in a few words; by default its label.

    disabled: it is shown, but the learner cannot use it. is_shown: False hides it. Both may be changed at any time.
    """

    kind = ""  # what `as_json` calls it; "" for what a page does not show

    def __init__(self, description: str = "", tooltip: str = "") -> None:
        self.description, self.tooltip = description, tooltip or description
        self.disabled, self.is_shown = False, True
        self._value: Any = None
        self._observers: list[Callable[[Control], object]] = []

    def observe(self, act: Callable[[Control], object]) -> None:
        """Call `act` with this control after each change of its value."""
        self._observers.append(act)

    @property
    def value(self) -> Any:
        """What the learner chose; None for a control without a value. Setting it raises ValueError for a bad one."""
        return self._value

    @value.setter
    def value(self, value: Any) -> None:
        checked = self._checked(value)
        if checked != self._value:
            self._value = checked
            for act in self._observers:
                act(self)

    def _checked(self, value: Any) -> Any:
        """The value as this control stores it. Raises ValueError for a value that it cannot have."""
        raise ValueError(f"the control {self.description!r} has no value")

    def set_json(self, value: Any) -> None:
        """Set what a page sends, which is of the kind that `as_json` gives as "value". Raises ValueError."""
        self.value = value

    def as_json(self) -> dict[str, Any]:
        """All that a page needs to show it, as plain JSON data."""
        return {
            "kind": self.kind,
            "label": self.description,
            "tooltip": self.tooltip,
            "options": [],
            "value": self.value,
            "min": None,
            "max": None,
            "disabled": self.disabled,
            "hidden": not self.is_shown,
        }


class Dial(Control):
    """One of several named values: a slider, a list or a row of buttons.

    options: values, or pairs (text, value). value: where it starts. style: "slider", "list" or "buttons". label: a
    function that gives the text of a value, for options that are no pairs. tooltips: of each option, for buttons.
    button_width: of each button, in pixels. Raises ValueError when `value` is not among the options.

    is_live: whether a slider draws while it is dragged; False where a picture takes long, so that only the value at
    which the slider is let go is drawn.
    """

    def __init__(
        self, options: Iterable[object], value: object, description: str = "", *, style: str = "slider",
        label: Callable = str, tooltip: str = "", tooltips: Sequence[str] = (), button_width: int = 150,
    ) -> None:  # fmt: skip
        super().__init__(description, tooltip)
        self.kind, self.tooltips, self.button_width, self.is_live = style, tuple(tooltips), button_width, True
        pairs = [option if isinstance(option, tuple) else (label(option), option) for option in options]
        if value not in [known for _, known in pairs]:
            names = ", ".join(name for name, _ in pairs)
            raise ValueError(f"the dial {description!r} would start at {value!r}; expected one of {names}")
        self.offer(pairs, value)

    def offer(self, options: Sequence[tuple[str, Any]], value: Any) -> None:
        """Offer other options, as pairs (text, value), and choose one. The observers of the dial are not called."""
        self.options = tuple(options)
        self._value = self._checked(value)

    def _checked(self, value: Any) -> Any:
        for _, known in self.options:
            if known == value:
                return known
        names = ", ".join(name for name, _ in self.options)
        raise ValueError(f"the dial {self.description!r} has no {value!r}; expected one of {names}")

    @property
    def index(self) -> int:
        """The place of the chosen option, from 0."""
        return [known for _, known in self.options].index(self.value)

    @property
    def label(self) -> str:
        """The text of the chosen option."""
        return self.options[self.index][0]

    def set_json(self, value: Any) -> None:
        """Choose the option at this place, from 0."""
        last = len(self.options) - 1
        if not _is_whole(value) or not 0 <= value <= last:
            raise ValueError(f"the dial {self.description!r} has options 0 to {last}, and not {value!r}")
        self.value = self.options[int(value)][1]

    def as_json(self) -> dict[str, Any]:
        """The value is the place of the chosen option."""
        return super().as_json() | {"options": [text for text, _ in self.options], "value": self.index}


def dial(
    options: Iterable[object], value: object, description: str, *, label: Callable = str, tooltip: str = ""
) -> Dial:
    """A slider over named values, which the arrow keys move. The arguments and errors are those of Dial."""
    return Dial(options, value, description, label=label, tooltip=tooltip)


def choice(
    options: Iterable[object], value: object, description: str, *, label: Callable = str, tooltip: str = ""
) -> Dial:
    """A drop-down list, for options without an order. The arguments and errors are those of Dial."""
    return Dial(options, value, description, style="list", label=label, tooltip=tooltip)


class NumberBox(Control):
    """A field for a whole number. The explorer says what is wrong with a number, so any is taken.

    min and max: where the arrows at the field stop; a number that is typed may lie beyond.
    """

    kind = "number"

    def __init__(self, value: int, description: str, *, min: int = 0, max: int = 1_000_000) -> None:
        super().__init__(description)
        self.min, self.max = min, max
        self._value = value

    def as_json(self) -> dict[str, Any]:
        """With the ends of the arrows."""
        return super().as_json() | {"min": self.min, "max": self.max}

    def _checked(self, value: Any) -> int:
        if not _is_whole(value):
            raise ValueError(f"{self.description}: {value!r} is no whole number")
        return int(value)


class Steps(Control):
    """The numbered steps of a picture, from 1: `value` is the one that is shown, `max` the last one.

    A view has buttons "previous", "next" and Play beside it. Nothing moves before the learner presses something. A
    value beyond the ends becomes the end.
    """

    kind = "steps"

    def __init__(self, description: str, tooltip: str) -> None:
        super().__init__(description, tooltip)
        self.min, self.max = 1, 1
        self._value = 1

    def fit(self, num_steps: int) -> None:
        """Set the last step. A value beyond it moves there; the observers are not called."""
        self.max = max(1, num_steps)
        self._value = self._checked(self._value)

    def _checked(self, value: Any) -> int:
        if not _is_whole(value):
            raise ValueError(f"{self.description}: {value!r} is no number of a step")
        return min(max(int(value), self.min), self.max)

    def as_json(self) -> dict[str, Any]:
        """With the first and the last step."""
        return super().as_json() | {"min": self.min, "max": self.max}

    def set_json(self, value: Any) -> None:
        """Show this step. Raises ValueError for a step that is not there."""
        if self._checked(value) != value:
            raise ValueError(f"{self.description}: there are steps 1 to {self.max}, and not {value!r}")
        self.value = value


class Button(Control):
    """A button that calls `act` without arguments. is_wide: its text is too long for a button of the usual width."""

    kind = "button"

    def __init__(
        self, act: Callable[[], object], description: str, *, tooltip: str = "", is_wide: bool = False
    ) -> None:
        super().__init__(description, tooltip)
        self._act, self.is_wide = act, is_wide

    def click(self) -> None:
        """Press it."""
        self._act()

    def set_json(self, value: Any) -> None:
        """Press it; the value means nothing."""
        self.click()


class Notice(Control):
    """A place among the controls for a message, such as what went wrong; `text` is "" where there is none."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""


class Picks(Control):
    """Makes each Rect of the picture that has a `pick` clickable. It is not seen itself.

    act: called with the `pick` of the Rect that was chosen with the mouse or the keyboard.
    """

    def __init__(self, act: Callable[[str], object]) -> None:
        super().__init__()
        self.act = act


class Group:
    """Controls that stand below each other, under a heading."""

    def __init__(self, heading: str, controls: Sequence[Control]) -> None:
        self.heading, self.controls = heading, tuple(controls)


def _is_whole(value: object) -> bool:
    """Whether this is a whole number; 3.0 is one, and True is none."""
    if isinstance(value, float):
        return value.is_integer()
    return isinstance(value, int) and not isinstance(value, bool)
