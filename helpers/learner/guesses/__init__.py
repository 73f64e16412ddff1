"""What a chapter asks before it shows: the declared answers, what the learner guessed, and how far off that was.

NN_topic.yaml     the answers of a chapter, key -> answer and the Chinese words; `answers.py` says how they are written
Question          one question: its form, kind, unit and options
kept              the first answers, from the progress file
compare           how far an answer is from the truth

`helpers.widgets.guess` asks and `helpers.widgets.reveal` shows. Nothing here draws, and nothing here needs torch.
"""

from helpers.learner.guesses.answers import Declared, all_declared, declared, declared_in
from helpers.learner.guesses.far import Off, agrees, compare, told
from helpers.learner.guesses.notes import Kept, first, is_off, is_unattended, kept, note
from helpers.learner.guesses.question import FORMS, KINDS, Question, key_of, make_question

__all__ = [
    "FORMS",
    "KINDS",
    "Declared",
    "Kept",
    "Off",
    "Question",
    "agrees",
    "all_declared",
    "compare",
    "declared",
    "declared_in",
    "first",
    "is_off",
    "is_unattended",
    "kept",
    "key_of",
    "make_question",
    "note",
    "told",
]
