"""Derives the seed from which a process draws its random numbers, so that no two ranks draw the same ones.

On a cluster each rank is a process that nobody seeded, so its random numbers are its own. Here the ranks are forks of
one process (zygote.py), and a fork begins with the states of its parent's random generators. Therefore each process is
told a seed of its own when it starts, and gives it to all of its generators (`seed_generators` in helpers/devices).

The file does not import torch.
"""

from __future__ import annotations

import functools
import hashlib
import secrets

NUM_HASH_SEEDS = 1000  # among which `hash_seed` chooses
BASE_SEED = 0  # of live ranks and elastic jobs. It is fixed, so that the saved outputs of a notebook come out again.


def process_seed(base: int, *numbers: int) -> int:
    """The seed of one process, below 2**63. numbers: what tells it apart from the others, such as its rank.

    It is a hash, because close seeds, such as 1 and 2, would let two bases share the seeds of their processes.
    """
    text = " ".join(map(str, (base, *numbers)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def hash_seed(base: int) -> int:
    """What PYTHONHASHSEED is in a second zygote: it depends on the last three digits of the base alone.

    Python takes its hash seed only when it starts, so each other hash seed costs the start of a zygote.
    """
    return 1 + base % NUM_HASH_SEEDS


def drawn_seed() -> int:
    """A base seed, drawn anew in each call. In one process all of them have one `hash_seed`."""
    return secrets.randbelow(1000) * NUM_HASH_SEEDS + _last_digits()


@functools.cache
def _last_digits() -> int:
    return secrets.randbelow(NUM_HASH_SEEDS)
