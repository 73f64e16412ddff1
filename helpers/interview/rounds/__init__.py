"""Rounds as interviews have them: debugging and review (mark the lines, say why), design (a plan, then follow-ups).

items.py    what is asked, from marked.yaml, design.yaml and helpers.commands.broken_jobs: a new entry there is a new round
scene.py    the model and the cluster of a design round, and the numbers that predictors compute of them
plans.py    a plan as it is typed
sitting.py  one round against the clock: marks, answers, points
sheet.py    what came of it, and the model answer
kept.py     points and seconds in the progress file; `quiz --round` lists the best
screen.py   `python -m helpers quiz --round debugging`; helpers.widgets.RoundView is the same in a notebook
"""

from helpers.interview.rounds.items import ROUNDS, Design, Marked, Place, Question, rounds
from helpers.interview.rounds.sitting import Designing, Marking, choose, sitting

__all__ = [
    "ROUNDS",
    "Design",
    "Designing",
    "Marked",
    "Marking",
    "Place",
    "Question",
    "choose",
    "rounds",
    "sitting",
]
