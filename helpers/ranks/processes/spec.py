"""Says what the process of a rank is told when it starts: its place among the ranks, its settings, and its random seed.

torchrun tells a process its place by environment variables. `torchrun_variables` writes them for the processes that
this course starts, and `launched` reads them in a process that torchrun, or one of our commands, has started.
`rank_spec` has everything for a rank that is forked from a zygote.

On a cluster each rank is a process that nobody seeded, so its random numbers are its own. Here the ranks are forks of
one process (zygote.py), and a fork begins with the states of its parent's random generators. Therefore each process is
told a seed of its own when it starts, and gives it to all of its generators (`seed_generators` in helpers/devices).

The file does not import torch.
"""

from __future__ import annotations

import functools
import hashlib
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from helpers.ranks.processes.limits import loopback

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


@dataclass(frozen=True, kw_only=True)
class LaunchedRank:
    """The place of a process that a launcher such as torchrun has started."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int


def launched() -> LaunchedRank | None:
    """The place that a launcher has told this process; None where none has."""
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        return None
    world_size = int(os.environ["WORLD_SIZE"])
    return LaunchedRank(
        rank=int(os.environ["RANK"]),
        local_rank=int(os.environ.get("LOCAL_RANK", 0)),
        world_size=world_size,
        local_world_size=int(os.environ.get("LOCAL_WORLD_SIZE", world_size)),
    )


def torchrun_variables(rank: int, world_size: int, *, per_node: int | None = None, port: int = 0) -> dict[str, str]:
    """The environment variables by which torchrun tells a process its place.

    per_node: ranks on each node; None if all are on one. port: at which the ranks meet on this machine; 0 leaves out
    where they meet.
    """
    per_node = per_node or world_size
    node, local_rank = divmod(rank, per_node)
    values = {"RANK": rank, "LOCAL_RANK": local_rank, "GROUP_RANK": node, "ROLE_RANK": rank}
    values |= {"WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": per_node, "ROLE_WORLD_SIZE": world_size}
    values |= {"GROUP_WORLD_SIZE": world_size // per_node}
    values |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port} if port else {}
    return {name: str(value) for name, value in values.items()}


def rank_spec(
    rank: int, world_size: int, folder: str, *, seed: int, variables: Mapping[str, str] | None = None, **settings: Any
) -> dict[str, Any]:
    """What a zygote is asked for to start one rank (worker.py explains the keys).

    folder: for its log. seed: of this process alone. variables: of its environment. settings: other keys. Without them
    the rank computes on the CPU, and makes its process groups itself.
    """
    own = {"GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", loopback()), "OMP_NUM_THREADS": "1"}
    spec = {"rank": rank, "world_size": world_size, "folder": folder, "seed": seed, "env": {**(variables or {}), **own}}
    return spec | {"generation": 0, "backend": "none", "device": "cpu", "local_device": 0} | settings
