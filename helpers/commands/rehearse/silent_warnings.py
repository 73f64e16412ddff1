"""Turns what silent_data.py, silent_training.py and silent_gradients.py noted into warnings about wrong values.

None of them raises an error, and each is about something that a script which is right does not do.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from helpers.commands.rehearse.report import WARNING, Finding, words
from helpers.quantities.units import format_bytes
from helpers.ranks.board.sites import Frame, rank_names

MAX_NAMES = 4  # of parameters in one warning
# Kinds of notes that are a warning by themselves, without those of other ranks.
_ALONE = (
    "untrained", "same epoch", "one tensor", "no backward", "averaged twice", "averaged again", "local norm",
    "scaled norm", "long wait", "divided loss", "summed losses", "uneven losses", "sum of sums",
)  # fmt: skip
_APART = {"module": "apart", "unfrozen": "unfrozen", "gradient": "apart_by_hand"}  # why -> key of the sentence
Notes = Mapping[int, list[dict[str, Any]]]  # rank -> its notes
ByRank = dict[int, dict[str, Any]]  # rank -> one of its notes


def warnings_of(noted: Notes, nproc: int, memory: int) -> list[Finding]:
    """All warnings. nproc: ranks on each node; memory: bytes of each GPU."""
    found = []
    for what in _ALONE:
        for (site, _), by_rank in _grouped(noted, what, lambda note: (_site(note), note.get("name"))).items():
            note = next(iter(by_rank.values()))
            named = {"name": note.get("name"), "count": note.get("count")}
            named |= {"seconds": note.get("seconds"), "limit": note.get("limit")}
            found.append(_warning(what.replace(" ", "_"), by_rank, site, **named))
    rates = [*_rates(noted)]
    apart = [] if rates else [*_apart(noted)]  # other learning rates move the parameters apart
    found += [*_other_gpus(noted, nproc, memory), *apart, *_batches(noted), *rates, *_replicated(noted)]
    return [*found, *_norms(noted), *_buffers(noted), *_orders(noted), *_files(noted, nproc)]


def _grouped(noted: Notes, what: str, key) -> dict[Any, ByRank]:
    """key(note) -> rank -> its last such note, of the notes of one kind."""
    found: dict[Any, ByRank] = {}
    for rank, notes in noted.items():
        for note in notes:
            if note["what"] == what:
                found.setdefault(key(note), {})[rank] = note
    return found


def _first(by_rank: ByRank) -> dict[str, Any]:
    """The note of the lowest rank."""
    return by_rank[min(by_rank)]


def _differ(by_rank: ByRank, ranks: tuple[int, ...], key: str) -> bool:
    """Whether all of two ranks or more have noted a list under this key, and not the same one."""
    return len(by_rank) == len(ranks) > 1 and len({tuple(note[key]) for note in by_rank.values()}) > 1


def _place(note: Mapping[str, Any]) -> tuple:
    """Which launch and which of its optimizers or tensors, and over which ranks; alike on all of these."""
    return (note["launch"], note["place"]), tuple(note["ranks"])


def _site(note: Mapping[str, Any]) -> Frame:
    return tuple(note["site"])


def _warning(key: str, ranks: Iterable[int] | ByRank, *sites: Frame, **named: Any) -> Finding:
    """One warning about these ranks, at these lines, with the chain of calls if `ranks` has notes.

    key: of its sentence and of its cure.
    """
    chain = next(iter(ranks.values())).get("chain", []) if isinstance(ranks, dict) else []
    ranks = tuple(sorted(ranks))
    text = words[f"silent.{key}"].format(ranks=rank_names(ranks), **named)
    more = {"cure": words[f"silent_cure.{key}"], "chain": tuple(map(tuple, chain))}
    return Finding(kind=WARNING, ranks=ranks, sites=sites, words=text, **more)


def _other_gpus(noted: Notes, nproc: int, memory: int) -> Iterator[Finding]:
    """Ranks that put tensors on a GPU from which another rank of their node sends. They count there, too."""
    for rank, notes in noted.items():
        for note in (one for one in notes if one["what"] == "other gpu"):
            owners = [other for other in noted if other // nproc == rank // nproc and other != rank]
            wanted = {"what": "gpu", "name": note["name"], "launch": note["launch"]}
            owners = [one for one in owners if any(wanted.items() <= sent.items() for sent in noted[one])]
            if owners:
                peak = next((one["peak"] for one in noted[owners[0]] if one["what"] == "end"), 0) + note["bytes"]
                key = "full_gpu" if peak > memory else "other_gpu"
                sizes = {"bytes": format_bytes(note["bytes"]), "peak": format_bytes(peak)}
                yield _warning(key, [rank], _site(note), name=note["name"], memory=format_bytes(memory), **sizes)


def _apart(noted: Notes) -> Iterator[Finding]:
    """Parameters that ranks should keep equal: equal before the first step and not at the end, or never equal."""
    rows = _grouped(noted, "values", lambda note: (*_place(note), tuple(note["shape"]), note["why"]))
    found: dict[tuple, list[dict]] = {}  # (key of the sentence, ranks) -> a note of each parameter
    for (_, ranks, _, why), by_rank in rows.items():
        if not _differ(by_rank, ranks, "after"):
            continue
        if not _differ(by_rank, ranks, "before"):
            found.setdefault((_APART[why], ranks), []).append(_first(by_rank))
        elif why == "gradient" or _first(by_rank)["wrapped"]:
            key = "never_equal" if why == "gradient" else "changed"
            found.setdefault((key, ranks), []).append(_first(by_rank))
    for (key, ranks), notes in found.items():
        names = [note["name"] or f"{tuple(note['shape'])}" for note in notes]
        shown = names[:MAX_NAMES] + (["…"] if len(names) > MAX_NAMES else [])
        yield _warning(key, ranks, *map(tuple, notes[0]["sites"]), names=shown)


def _batches(noted: Notes) -> Iterator[Finding]:
    """Ranks of one data parallel group whose modules get the same in each step, and not the same step after step."""
    for ranks, by_rank in _grouped(noted, "batches", lambda note: tuple(note["ranks"])).items():
        note = _first(by_rank)
        is_complete = len(by_rank) == len(ranks) > 1 and len(set(note["numbers"])) > 1
        if is_complete and not _differ(by_rank, ranks, "numbers"):
            yield _warning("same_batches" if note["loaded"] else "same_inputs", ranks, *map(tuple, note["sites"]))


def _rates(noted: Notes) -> Iterator[Finding]:
    """Optimizers of one model that have other learning rates on some ranks."""
    for (_, ranks), by_rank in _grouped(noted, "rates", _place).items():
        if _differ(by_rank, ranks, "rates"):
            shown = [f"{rate[0]:g}" for rate in sorted({tuple(note["rates"]) for note in by_rank.values()})]
            yield _warning("rates", ranks, _site(_first(by_rank)), rates=shown)


def _replicated(noted: Notes) -> Iterator[Finding]:
    """The first tensor that is declared equal on all ranks and is not."""
    for (_, ranks), by_rank in _grouped(noted, "replicated", _place).items():
        sums = [note["sums"] for note in by_rank.values()]
        if len(by_rank) == len(ranks) and not all(_is_close(one, sums[0]) for one in sums):
            yield _warning("replicated", by_rank, _site(_first(by_rank)))
            return


def _norms(noted: Notes) -> Iterator[Finding]:
    """The first call of clip_grad_norm_ that all ranks make at one line, each with a norm of its own."""
    for _, by_rank in sorted(_grouped(noted, "own norm", lambda note: note["place"]).items()):
        sites = {_site(note) for note in by_rank.values()}
        if len(by_rank) == len(noted) > 1 and len(sites) == 1 and len({note["norm"] for note in by_rank.values()}) > 1:
            norms = [f"{note['norm']:.4g} (rank {rank})" for rank, note in sorted(by_rank.items())]
            yield _warning("own_norm", by_rank, *sites, norms=norms[:MAX_NAMES])
            return


def _buffers(noted: Notes) -> Iterator[Finding]:
    """Buffers that DDP does not broadcast and that differ at the end; those of one group are one warning."""
    names: dict[tuple, list[str]] = {}  # ranks -> names of buffers that differ
    rows = _grouped(noted, "buffers", lambda note: (note["name"], tuple(note["ranks"])))
    for (name, ranks), by_rank in rows.items():
        if _differ(by_rank, ranks, "after"):
            names.setdefault(ranks, []).append(name)
    for ranks, differ in names.items():
        yield _warning("buffers", ranks, _site(_first(rows[differ[0], ranks])), names=differ[:MAX_NAMES])


def _is_close(sums: list[float], others: list[float]) -> bool:
    """Whether two sums agree but for rounding."""
    return all(math.isclose(a, b, rel_tol=1e-3, abs_tol=1e-3) for a, b in zip(sums, others, strict=True))


def _orders(noted: Notes) -> Iterator[Finding]:
    """Samplers of one pass over the data that have other seeds or epochs on some ranks, and so mix their shares."""
    for _, by_rank in sorted(_grouped(noted, "order", lambda note: note["name"]).items()):
        if len({tuple(note["order"]) for note in by_rank.values()}) > 1:
            parts = [f"{note['order'][0]} + {note['order'][1]} (rank {rank})" for rank, note in sorted(by_rank.items())]
            yield _warning("order", by_rank, _site(_first(by_rank)), orders=parts[:MAX_NAMES])
            return


def _files(noted: Notes, nproc: int) -> Iterator[Finding]:
    """Files that several ranks of a node write, or that a rank reads although nothing orders it after the writing."""
    saved = _grouped(noted, "saved", lambda note: note["name"])
    for path, by_rank in saved.items():
        nodes = [rank // nproc for rank in by_rank]
        parts = [name for note in by_rank.values() for name in note["parts"]]
        if parts and len(by_rank) == 1:
            named = {"names": parts[:MAX_NAMES], "name": path.rpartition("/")[2]}
            yield _warning("part_saved", by_rank, _site(_first(by_rank)), **named)
        if len(nodes) > len(set(nodes)):
            yield _warning("same_file", by_rank, _site(_first(by_rank)), name=path.rpartition("/")[2])
    for path, readers in _grouped(noted, "loaded", lambda note: note["name"]).items():
        for writer, wrote in saved.get(path, {}).items():
            others = [rank for rank in readers if rank != writer and rank not in saved[path]]
            early = [rank for rank in others if not _are_ordered(readers[rank], wrote, {rank, writer})]
            if early:
                sites = _site(readers[early[0]]), _site(wrote)
                yield _warning("early_read", early, *sites, name=path.rpartition("/")[2], writer=writer)


def _are_ordered(read: Mapping[str, Any], wrote: Mapping[str, Any], both: set[int]) -> bool:
    """Whether a collective of a group of both ranks stands between the reading and the writing.

    The reading comes first where a script resumes from the file of an earlier run, which it overwrites later.
    """
    reads, writes = ({tuple(ranks): number for ranks, number in note["calls"]} for note in (read, wrote))
    return any(reads.get(one, 0) != writes.get(one, 0) for one in reads | writes if both.issubset(one))
