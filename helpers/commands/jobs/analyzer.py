"""torch's own analyzer of flight recorders (`torchfrtrace`) on what the ranks left.

On gloo three things are put right or left out: the first group stands there under the name '' (renamed), the others
lack their ranks (the processes told them), and messages from rank to rank are not recorded.
"""

from __future__ import annotations

import argparse
import copy
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Opinion:
    """What it found first. ranks: those it names; problem: why it could not tell, in its words."""

    number: int | None = None
    ranks: tuple[int, ...] = ()
    kind: str = ""
    problem: str = ""


def opinion(dumps: Mapping[int, Mapping[str, Any]], groups: Mapping[str, Sequence[int]]) -> Opinion:
    """dumps: by rank. groups: name -> global ranks, as the processes know them."""
    logging.disable(logging.CRITICAL)  # it says all that it does
    try:
        from torch.distributed.flight_recorder.components.builder import build_db

        options = {"verbose": False, "just_print_entries": False, "allow_incomplete_ranks": True, "mismatch_cap": 10}
        mended = {f"rank{rank}": _mended(rank, dump, groups) for rank, dump in dumps.items()}
        found = build_db(mended, argparse.Namespace(**options), next(iter(dumps.values()))["version"]).collectives
    except Exception as error:  # its own words are the answer
        return Opinion(problem=f"{type(error).__name__}: {error}")
    finally:
        logging.disable(logging.NOTSET)
    for one in found:
        if one.missing_ranks:
            return Opinion(number=one.collective_seq_id, ranks=tuple(sorted(one.missing_ranks)), kind="missing")
        if differ := one.mismatch_collectives:
            kind = next(iter(differ.values())).type_of_mismatch.state.name.lower().replace("_", " ")
            return Opinion(number=one.collective_seq_id, ranks=tuple(sorted(differ)), kind=kind)
    return Opinion()


def _mended(rank: int, dump: Mapping[str, Any], groups: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """The dump as the analyzer expects it: groups by the names that the entries use, with their ranks."""
    entries = [one for one in dump["entries"] if not one["is_p2p"] and one["process_group"][0] in groups]
    named = {name: {"name": name, "desc": desc, "ranks": str(list(groups[name]))}
             for name, desc in (one["process_group"] for one in entries)}  # fmt: skip
    return {**dump, "rank": rank, "entries": copy.deepcopy(entries), "pg_config": named}
