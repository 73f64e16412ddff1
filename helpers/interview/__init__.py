"""Asks interview questions: a bank of cards in two languages, a quiz, mock interviews, drills, rounds and dialogues.

`Quiz()` is one quiz, which `python -m helpers quiz` plays in a terminal. FSRS, a schedule for flash cards, says when a
card is asked again. `corner("03_ddp")` shows a chapter's cards in its notebook.

bank_file, cards            what a card is, read from bank/*.yaml; the numbers in its answer are computed by functions
answers, reviews, quiz      judging an answer, scheduling the next review, running a quiz
drills, mock, sheet         programs to write against the clock, the mock interview, and the sheet after it
round_items, round_attempt  debugging, review and design rounds
dialogues                   worked interviews, which a learner follows turn by turn
card_html, anki, napkin, reference_tables           cards and tables as HTML, an Anki deck, and a page to print
quiz_command, terminal, terminal_interviews         the command `quiz`, and what plays all of this in a terminal
"""

from helpers.interview.bank_file import load_all, load_bank
from helpers.interview.card_html import corner
from helpers.interview.quiz import Quiz

__all__ = ["Quiz", "corner", "load_all", "load_bank"]
