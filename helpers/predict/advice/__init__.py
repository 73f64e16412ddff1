"""Which plan, and why.

fit.py        does a plan fit a GPU, and the smallest change that makes it fit (moves.py)
advise.py     the planner: searches (search.py, others.py), ranks and warns (ranking.py), says what else (saying.py)
criticise.py  a plan of your own beside the planner's; typed.py reads it from "tp=8,pp=4"
rules.py      what the rules of thumb would say
page.py       all of it as text, table and page; cli.py: `python -m helpers plan`
"""

from helpers.predict.advice.advise import Advice, advise
from helpers.predict.advice.criticise import Criticism, criticise
from helpers.predict.advice.work import Ranked

__all__ = ["Advice", "Criticism", "Ranked", "advise", "criticise"]
