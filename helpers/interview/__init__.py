"""The interview bank: one YAML file a chapter, cards in English and Chinese, every number verified by a function."""

from helpers.interview.bank_file import chapters, load_all, load_bank
from helpers.interview.cards import Card, Cell, Check, Choices, Prediction, Source, Text
from helpers.interview.render import corner

__all__ = [
    "Card",
    "Cell",
    "Check",
    "Choices",
    "Prediction",
    "Source",
    "Text",
    "chapters",
    "corner",
    "load_all",
    "load_bank",
]
