"""Megatron's way: an offset for what is cut, a stage and a copy that are far apart."""

TASK = "09.seeds"


def seeds(seed, place, sizes):
    far = 1_000_003
    stage = seed + far * sizes["dp"] * place["pp"]
    copy = stage + far * place["dp"]
    offset = 2718 + place["tp"]
    return {
        "whole_weights": stage,
        "cut_weights": stage + offset,
        "whole_dropout": copy,
        "cut_dropout": copy + offset,
    }
