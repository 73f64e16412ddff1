"""Interview cards: what a card is. Plain frozen data; reading a bank file stands in `bank_file.py`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from helpers.learner.words import Words

LEVELS = ("junior", "senior", "staff")


def topic_of(chapter: str) -> str:
    """A chapter's name without its number: "ddp" for "03_ddp"; other names as they are."""
    return chapter.lstrip("0123456789_") or chapter


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A cell of a chapter notebook that shows the answer: the notebook's name without suffix, and a tag or cell id."""

    notebook: str
    anchor: str

    def __str__(self) -> str:
        return f"chapter {self.notebook}, cell “{self.anchor}”"


@dataclass(frozen=True, kw_only=True)
class Source:
    """A publication or a page of documentation that shows the answer, for what no cell of ours can run."""

    source: str
    url: str

    def __str__(self) -> str:
        return self.source


@dataclass(frozen=True, kw_only=True)
class Check:
    """A number in an answer, with the call that computes it.

    `call` is a dotted name in the package; `value` is what it must return (bytes, seconds or a
    ratio, as that function says); `says` is how the answer prints it, for example "64.2 MB"; `attribute`, when given,
    is read from what was returned.
    """

    call: str
    value: float
    says: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    attribute: str | None = None


@dataclass(frozen=True, kw_only=True)
class Choices:
    """The card as multiple choice: one right answer among wrong ones that people really give."""

    right: Words
    wrong: tuple[Words, ...]


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The card as "predict the number". `ask`: the question with everything needed to compute it; `says`: the number
    as printed, with its unit, the same as in one of the card's checks; `tolerance`: relative, 0.05 is 5 %;
    `how`: the computation, "4 × 8 × 2", "" where an answer has it."""

    ask: Words
    says: str
    tolerance: float = 0.05
    how: str = ""


@dataclass(frozen=True, kw_only=True)
class Card:
    """One question with its answer: the 30-second form in `answer`, with `longer` after it up to 3 minutes.

    archive: kept to look up, of what interviewers no longer ask; where it is new it comes last.
    """

    id: str
    chapter: str
    level: str
    question: Words
    answer: Words
    shown_by: Cell | Source
    longer: Words | None = None
    usual_mistake: Words | None = None
    follow_ups: tuple[Words, ...] = ()
    verify: tuple[Check, ...] = ()
    choices: Choices | None = None
    predict: Prediction | None = None
    archive: bool = False
    where: str = ""

    @property
    def topic(self) -> str:
        """What it is filtered by: the name of its file without the number, such as "ddp" or "communication"."""
        return topic_of(self.chapter)

    def full_answer(self, language: str) -> str:
        """The answer and its longer form in one string; `language` is "en" or "zh"."""
        texts = [self.answer] + ([self.longer] if self.longer else [])
        return "\n\n".join(text.in_(language) for text in texts)
