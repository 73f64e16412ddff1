"""Whoever calls the function and hands its result on: autograd does the rest, and keeps all of it."""

TASK = "05.checkpoint"
HINT = "never_recomputes"


def checkpoint(function, x, positions):
    return function(x, positions)
