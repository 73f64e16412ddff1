"""Implements `python -m helpers train`: trains a small GPT by any plan, on live ranks or on torchrun's ranks.

    python -m helpers train --plan dp=2,tp=2,pp=2 --steps 50

cli.py        the entry point: reads the options, starts the ranks, runs the loop
options.py    the command line, and the options that a resumed run takes over; imports no torch
checks.py     checks that model, data, plan and checkpoint fit together, before any rank starts
on_ranks.py   what each rank does: start, step, save
signals.py    ends a run after the present step on Ctrl-C and SIGTERM
chaos.py      --chaos: which rank is killed in which step, and what the deaths cost
loop.py       the training loop, and what it reports when ranks fail
screen.py     prints the progress line, and the report at the end

Begin with loop.py, and then read on_ranks.py.
"""
