"""`python -m helpers train --plan dp=2,tp=2,pp=2`: the Trainer on live ranks, or on torchrun's.

cli.py        main
options.py    the command line, and what a resumed run takes over; no torch
fits.py       whether model, data, plan and checkpoint fit together, before a rank starts
on_ranks.py   what each rank does: start, step, save
stop.py       Ctrl-C and SIGTERM, which end a run after a step
chaos.py      --chaos: who dies when, and the account of it
loop.py       the loop that all of them follow, and what is left when one fails
screen.py     the progress line, and the report at the end
"""
