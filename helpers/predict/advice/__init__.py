"""Which plan, and why.

fit.py      does a plan fit a GPU, and the smallest change that makes it fit (moves.py)
advise.py   which strategy for a model on a cluster: rules.py, strategies.py and reasons.py say why; page.py prints it
"""
