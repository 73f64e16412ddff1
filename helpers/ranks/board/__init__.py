"""Compares what the ranks do, recognises failures, and says what happened. It knows neither the wire nor the processes.

board       the shared memory in which the ranks of a group write down their operations
watch       waits for the ranks' answers, and recognises a hang
report      the message about a failure: which rank failed, how, where, and what the others do
errors      RankError, and the records in which a rank reports its state
sites       names lines of code and ranks in sentences
interrupts  decides when Ctrl-C may end a wait

This file imports nothing, so that a rank, which writes to a board, does not load what the notebook needs.

It exists because a hang can only be explained by comparing what each rank does. Begin with board.py.
"""
