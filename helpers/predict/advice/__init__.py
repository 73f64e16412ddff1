"""Recommends a parallel training plan for a model on a cluster, and says why.

`advise` returns an Advice with the best plans, each a PlanEstimate (a plan with its memory and step). `criticise`
returns a Criticism of a plan that the reader wrote.

fit.py        whether a plan fits a GPU, and the smallest change that makes it fit
advise.py     the planner: it searches (search.py), orders the plans and says which cannot be told apart (choice.py),
              explains and warns (ranking.py), and cites a rule of thumb (rules.py)
other_training.py   the plans of offload, of adapters and of networks for images
plans.py      the records that these files share
criticise.py  compares a plan that the reader wrote with the planner's
summary.py    the result as text for a terminal; page.py: as tables and as a page to print
cli.py        the command `python -m helpers plan`

Begin with fit.py, and then read advise.py.
"""

from helpers.predict.advice.advise import Advice, advise
from helpers.predict.advice.criticise import Criticism, criticise
from helpers.predict.advice.plans import PlanEstimate

__all__ = ["Advice", "Criticism", "PlanEstimate", "advise", "criticise"]
