"""A hash of what must tell them apart: equal words give equal numbers, in every process."""

import random

TASK = "09.seeds"
AXES = {"whole_weights": "pp", "cut_weights": "pp tp", "whole_dropout": "dp pp", "cut_dropout": "dp pp tp"}


def number(*words):
    return random.Random(" ".join(map(str, words))).getrandbits(62)


def seeds(seed, place, sizes):
    return {kind: number(kind, seed, *[place[axis] for axis in axes.split()]) for kind, axes in AXES.items()}
