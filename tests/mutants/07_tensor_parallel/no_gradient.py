"""Whoever returns a detached copy, to be on the safe side."""

TASK = "07.identity_all_reduce"
HINT = "no_gradient"


def identity_all_reduce(x):
    return x.detach().clone()
