"""The interview: a bank of cards in English and Chinese, every number verified by a function, and the quiz over them.

`Quiz()` is one sitting; `python -m helpers quiz` is the same in a terminal. Cards come back when FSRS says so."""

from helpers.interview.bank_file import chapters, load_all, load_bank
from helpers.interview.cards import Card, Cell, Check, Choices, Prediction, Source
from helpers.interview.deck import in_order, select, topics
from helpers.interview.render import corner
from helpers.interview.reviews import Review, Reviews
from helpers.interview.session import Answer, Question, Quiz, Summary

__all__ = [
    "Answer",
    "Card",
    "Cell",
    "Check",
    "Choices",
    "Prediction",
    "Question",
    "Quiz",
    "Review",
    "Reviews",
    "Source",
    "Summary",
    "chapters",
    "corner",
    "in_order",
    "load_all",
    "load_bank",
    "select",
    "topics",
]
