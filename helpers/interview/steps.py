"""Defines the steps of which every conversation with the learner consists, and the questions and replies in them.

A quiz, a mock interview, a round, a drill and a dialogue are each a `Talk`, whose `steps()` is a generator. It yields
what is to be asked, told and shown, and it receives a `Reply` for each `Ask`:

    reply = yield Ask(form="number", question="How many MB does each rank send?", unit="MB", prompt="Your number:")
    yield Tell(text="Right: it is 64.2 MB.", style="right")
    yield Show(sheet)

A talk knows no screen. Three players do: `play_in_terminal` (terminal.py), `helpers.widgets.talk_view.TalkView` in a
notebook, and `tools/book/static/quiz.js` in a page of the web edition. A step has only plain data, which `as_json`
writes for the page, where Python is in another process.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from helpers.learner.words import book

FORMS = (  # of an Ask -> the value of its Reply
    "ready",  # none: the learner presses a key or a button when they are ready
    "pause",  # none: the same, but a player that scrolls need not wait if there is nothing new to read
    "choice",  # the value of one of the options, which are "a", "b", ...
    "rating",  # the value of one of the options, with which the learner judges their own answer
    "number",  # a text with a number, in the question's unit if it has none
    "text",  # a text
    "notes",  # the learner's own answer, which may stay empty because it can also be spoken
    "lines",  # none to hand in; with the action "mark" a pair of line and reason, with "unmark" a line
    "agree",  # the values of those options with which the learner agrees
    "code",  # the function or class that the learner has written
)
FINISH = "finish"  # the action with which the learner ends the talk; every Ask understands it
labels = book("sitting")  # the words on buttons, by name: learner/words/sitting.yaml


@dataclass(frozen=True, kw_only=True)
class TextPart:
    """A labelled part of a question or an answer, which each player lays out as it likes.

    name: what the part is, such as "usual_mistake". text, items: paragraphs or a list, in which `code` and **bold** are
    marked. rows: a table, of which the first is the head if `has_head`. link: an address. is_folded: whether it is
    shown only when the learner asks for it.
    """

    name: str
    text: str = ""
    label: str = ""
    items: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    has_head: bool = False
    link: str = ""
    is_folded: bool = False

    @property
    def texts(self) -> tuple[str, ...]:
        """The text, or the items of the list."""
        return self.items or (self.text,)


@dataclass(frozen=True, kw_only=True)
class Option:
    """Something to choose: the value that is replied, and what the learner reads.

    details: paragraphs to read before one chooses.
    """

    value: str
    label: str
    details: str = ""


@dataclass(frozen=True, kw_only=True)
class ClockState:
    """A clock: its limit in seconds, and when it began and ended, in seconds since 1970; None: not yet."""

    limit: float
    began: float | None = None
    ended: float | None = None


@dataclass(frozen=True, kw_only=True)
class Ask:
    """A question, with everything that the learner sees while they answer it.

    form: one of FORMS. heading: texts above the question, such as its number and topic. context: paragraphs on what the
    question is about. question: its text. parts: what belongs to it, such as the answer while it is rated. prompt: what
    a person who types is told. submit: the word on the button that sends the reply. options: of the forms "choice",
    "rating" and "agree". unit: of a number. actions: replies that are no answer, such as "skip". code: the program to
    mark or to complete. name: what the learner's code must define. fixed: numbers of the lines that cannot be marked.
    marks: line -> reason, as marked so far. problem: why the reply before could not be read.
    """

    form: str
    heading: tuple[str, ...] = ()
    context: str = ""
    question: str = ""
    parts: tuple[TextPart, ...] = ()
    prompt: str = ""
    submit: str = ""
    options: tuple[Option, ...] = ()
    unit: str = ""
    actions: tuple[Option, ...] = ()
    code: str = ""
    name: str = ""
    fixed: tuple[int, ...] = ()
    marks: dict[int, str] = field(default_factory=dict)
    problem: str = ""
    clock: ClockState | None = None

    def has_action(self, name: str) -> bool:
        return any(action.value == name for action in self.actions)


@dataclass(frozen=True, kw_only=True, repr=False)
class Tell:
    """Something to read. Nothing is replied.

    style: "right" or "wrong" for a verdict, "problem" for what went wrong with a file, "intro" for what begins a talk,
    "bold", or "". parts: what stands below the text. output: what the learner's code printed. heading: of a new
    section; ("",) has no words.
    """

    text: str = ""
    style: str = ""
    parts: tuple[TextPart, ...] = ()
    output: str = ""
    heading: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether this is the verdict that an answer is right."""
        return self.style == "right"

    def __repr__(self) -> str:
        return "\n".join(filter(None, (self.output, self.text)))


@dataclass(frozen=True, kw_only=True)
class Show:
    """A document to read, and perhaps to keep: it has `text` and `_repr_html_()`, and if `can_save`, `save(path)`."""

    document: Any
    can_save: bool = True


@dataclass(frozen=True)
class Reply:
    """The reply to an Ask: a value, of the kind that FORMS says, or the name of an action, perhaps with a value."""

    value: Any = ""
    action: str = ""


Step = Ask | Tell | Show
Steps = Generator[Step, Reply | None, Any]


class Finished(Exception):
    """The learner has ended the talk early."""


class Talk:
    """A conversation with the learner in one language. kind: "quiz", "mock", "round", "drill" or "dialogue".

    What the learner has done is kept in the object. So if a generator ended with an error, `steps()` can be called
    again, and it goes on where the talk was.
    """

    kind = ""
    language: str

    def steps(self) -> Steps:
        """Yields each step, and receives a Reply for each Ask, until the talk is over."""
        raise NotImplementedError

    def ask(self, step: Ask) -> Steps:
        """Ask, and return the reply. Raises Finished if the learner ends the talk."""
        reply = yield step
        if reply.action == FINISH:
            raise Finished
        return reply

    def ask_until_read(self, step: Ask, read: Callable[[Any], Any]) -> Steps:
        """Ask until `read` can read a value, and return what it returns; None if the learner takes an action instead.

        The sentence of a ValueError is the `problem` of the question when it is asked again.
        """
        while True:
            reply = yield from self.ask(step)
            if reply.action:
                return None
            try:
                return read(reply.value)
            except ValueError as error:
                step = replace(step, problem=str(error))

    def ask_to_begin(self, intro: str) -> Steps:
        """Tell what is coming, and ask whether the learner is ready, because a clock begins."""
        yield Tell(text=intro, style="intro")
        prompt, submit = labels("ready", self.language), labels("begin", self.language)
        yield from self.ask(Ask(form="ready", prompt=prompt, submit=submit))

    def action(self, name: str, label: str = "") -> Option:
        """An action with the word of its button. label: the key of that word, the name of the action if not given."""
        return Option(value=name, label=labels(label or name, self.language))

    @property
    def finish_action(self) -> Option:
        """The action to end a talk that has a sheet before it is complete."""
        return self.action(FINISH, "mock.finish")


def as_json(step: Step) -> dict[str, Any]:
    """A step as data for `json.dumps`: its fields, and its class under "step". A document is text and HTML."""
    if isinstance(step, Show):
        content = {"text": step.document.text, "html": step.document._repr_html_(), "can_save": step.can_save}
        return {"step": "Show", **content}
    return {"step": type(step).__name__, **asdict(step)}
