"""Starts the processes of the ranks, runs tasks on them, and starts them again after a failure.

zygote    the process that has imported torch once, and from which every rank is forked
process   the notebook's connection to a zygote: it starts ranks, and hears how they ended
worker    the program that runs in each rank
pool      the processes of one `Ranks`: it gives them one task at a time, and recovers after a failure
messages  what goes between the notebook and a rank: packed functions, results, and printed text
limits    how many ranks, and of which device, this machine allows
spec      what the process of a rank is told when it starts: its place among the ranks, and its random seed

This file imports nothing, because the notebook needs some of these modules and a rank needs others.

Begin with pool.py, and then read worker.py.
"""
