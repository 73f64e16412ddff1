"""Asks interview questions: a bank of cards in two languages, a quiz, mock interviews, drills, rounds and dialogues.

`Quiz()` is one quiz, which `python -m helpers quiz` plays in a terminal. FSRS, a schedule for flash cards, says when a
card is asked again. `corner("03_ddp")` shows a chapter's cards in its notebook. A quiz, a mock interview, a round, a
drill and a dialogue are conversations: generators of steps, which know no screen. Three players show them: one in a
terminal, `helpers.widgets.talk_view` in a notebook, and `tools/book/static/quiz.js` in a web page. All of this needs
pure Python alone, so that it can also run in a browser. PyYAML reads the bank, and fsrs is imported once a card has
been answered. What needs more (an Anki deck, torch, a lock for a file) imports it when it is used.

bank_file, cards            what a card is, read from bank/*.yaml; the numbers in its answer are computed by functions
answers, reviews            judging an answer, scheduling the next review
steps                       what a conversation can ask, tell and show, and what is replied
quiz, mock, drills          conversations: the quiz, the mock interview, programs to write against the clock
round_items, round_attempt  conversations: debugging, review and design rounds
dialogues, dialogue_talk    conversations: worked interviews, which a learner follows turn by turn
terminal, quiz_command      the player in a terminal, and the command `quiz`, which starts it
sheet, card_html, anki, napkin, reference_tables   documents, as text, HTML or an Anki deck

It exists so that a learner can practise the questions of an interview where the course teaches the answers. Begin with
cards.py, the records, and then read quiz.py.
"""

from helpers.interview.bank_file import load_all, load_bank
from helpers.interview.card_html import corner
from helpers.interview.quiz import Quiz

__all__ = ["Quiz", "corner", "load_all", "load_bank"]
