"""Whoever divides and drops the rest."""

TASK = "06.cut"
HINT = "layers_lost"


def cut(costs, num_stages):
    return [len(costs) // num_stages] * num_stages
