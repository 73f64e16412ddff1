"""A hash of what must tell them apart: equal words give equal numbers, in every process."""

import zlib

TASK = "09.seeds"
AXES = {"whole_weights": "pp", "cut_weights": "pp tp", "whole_dropout": "dp pp", "cut_dropout": "dp pp tp"}


def number(*words):
    text = " ".join(map(str, words)).encode()
    return zlib.crc32(text) << 31 | zlib.adler32(text) & 0x7FFFFFFF


def seeds(seed, place, sizes):
    return {kind: number(kind, seed, *[place[axis] for axis in axes.split()]) for kind, axes in AXES.items()}
