"""Turns what the ranks of a rehearsal left into findings: failures, NCCL's verdicts and habits. Causes come first."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from helpers.commands.rehearse.processes import RehearsalProcesses
from helpers.commands.rehearse.report import WARNING, Finding, words
from helpers.learner.words import Words
from helpers.quantities.units import format_bytes
from helpers.ranks.errors import Failure, RankError
from helpers.ranks.nccl.verdicts import words as nccl_words
from helpers.ranks.sites import Frame, describe, is_engine, is_library, is_package, learner_frame, rank_names

FULL = "OutOfMemoryError"
_LIMITS = (  # in C++'s words
    "incompatible tensor type", "Could not run '", "PrivateUse1", "not linked with support for cuda",
    "NestedTensorImpl", "data is not allocated yet", "Torch not compiled with CUDA",
    "without ATen_cuda", "_C' has no attribute '_cuda",
)  # fmt: skip
_PASSING = ("_call_impl", "_wrapped_call_impl", "wrapper", "inner", "decorate_context")  # frames that only call on


@dataclass(frozen=True, kw_only=True)
class RehearsalOutcome:
    """What a rehearsal left. noted: notes by rank. memory: bytes that each card was meant to have."""

    processes: RehearsalProcesses
    verdict: str
    error: RankError | None
    noted: dict[int, list[dict[str, Any]]]
    nproc: int
    folder: str
    memory: int
    exits: dict[int, dict] = field(init=False)

    @property
    def is_short(self) -> bool:
        """Whether this machine's memory ends before the cards'."""
        return self.processes.card_bytes < self.memory

    def __post_init__(self) -> None:
        exits = {rank: line for rank, lines in self.noted.items() for line in lines if line["what"] == "exit"}
        object.__setattr__(self, "exits", exits)

    @property
    def ended(self) -> str:
        return "exit" if self.exits else "ended" if self.verdict == "ok" else self.verdict

    def lines(self, what: str) -> dict[int, dict]:
        """The last line of a kind, by rank."""
        return {rank: line for rank, lines in self.noted.items() for line in lines if line["what"] == what}


def findings_of(outcome: RehearsalOutcome) -> tuple[Finding, ...]:
    """All findings, with the one that ended the run first."""
    failures = _failures(outcome)
    verdicts = [Finding(**vars(one)) for one in outcome.processes.verdicts]
    verdicts = [one for one in verdicts if not any(_is_same(one, other) for other in failures)]
    if outcome.exits or outcome.processes.causes or any(state.dead for state in outcome.processes.states):
        verdicts = [one for one in verdicts if one.kind != "hangs"]  # they wait for the one that is gone
    found = [*failures, *verdicts, *_shared_gpus(outcome)]
    if outcome.verdict == "hang" and not outcome.exits and not any(one.is_mistake for one in found):
        found.append(_hang(outcome))
    return tuple(found)


def _is_same(verdict: Finding, failure: Finding) -> bool:
    """Whether NCCL's judge tells of an error that a rank has raised already."""
    return verdict.kind == failure.kind and verdict.sites[:1] == failure.sites[:1]


def _failures(outcome: RehearsalOutcome) -> list[Finding]:
    """What ranks raised by themselves; equal ones together."""
    alike: dict[tuple, dict[int, Failure]] = {}
    for state in outcome.processes.causes:
        failure = state.failure
        if _is_ours(failure):
            continue
        message = re.sub(r"cuda:\d+", "cuda", str(failure.words))
        if failure.type_name == FULL:
            if outcome.is_short:
                continue
            message = ""
        line = None if failure.wire_kind == "mismatch" else learner_frame(failure.frames)
        alike.setdefault((failure.type_name, message, line), {})[state.rank] = failure
    return [_failure(outcome, failures) for failures in alike.values()]


def _failure(outcome: RehearsalOutcome, failures: dict[int, Failure]) -> Finding:
    """One mistake that these ranks raised."""
    failure = failures[min(failures)]  # whose ranks are first is a matter of luck
    line_of_learner = learner_frame(failure.frames)
    chain = [frame for frame in failure.frames if not is_library(frame[0]) and not _is_below(frame[0])]
    if line_of_learner in failure.frames:
        inside = failure.frames[failure.frames.index(line_of_learner) + 1 :]
        chain += [frame for frame in inside if is_library(frame[0]) and frame[2] not in _PASSING][-3:]
    kind, cure = ("out of memory", words["full"]) if failure.type_name == FULL else ("error", None)
    text = failure.words.map(in_cudas_words)
    if failure.wire_kind == "mismatch":
        kind, cure, text = "unnoticed", nccl_words["cure.differ"], Words.of("\n").join([text, words["unnoticed"]])
    else:
        text = Words.of(f"{failure.type_name}: ") + text
    lines = dict.fromkeys(line for one in failures.values() if (line := learner_frame(one.frames)))
    if "invalid device ordinal" in failure.message:
        cure = words["local"].format(count=outcome.nproc)
    where = {"ranks": tuple(sorted(failures)), "sites": tuple(lines), "chain": tuple(chain)}
    return Finding(kind=kind, words=text, cure=cure, **where)


def _is_ours(failure: Failure) -> bool:
    """Whether a failure is no mistake that a GPU would find."""
    known = failure.type_name in ("KeyboardInterrupt", "ModuleNotFoundError", "NotRehearsed")
    return known or _is_sparse(failure) or _is_own_fault(failure) or _is_limit(failure)


def _is_sparse(failure: Failure) -> bool:
    return failure.type_name == "NotImplementedError" and "practice card holds dense" in failure.message


def _is_below(path: str) -> bool:
    return is_engine(path) or is_package(path) or path.startswith("<")


def _is_limit(failure: Failure) -> bool:
    """Whether torch wants something of the card that no device made in Python has."""
    return any(sign in failure.message for sign in _LIMITS)


def _is_own_fault(failure: Failure) -> bool:
    """Whether the rehearsal's own code has failed, and not the script."""
    if not failure.frames or not _is_below(failure.frames[-1][0]):
        return False
    broken = ("AttributeError", "NameError", "KeyError", "ImportError", "UnboundLocalError", "JSONDecodeError")
    return failure.type_name in broken or failure.type_name == "TypeError" and " argument" in failure.message


def in_cudas_words(text: str) -> str:
    for ours, theirs in (
        ("card:0", "cuda"),
        ("card out of memory", "CUDA out of memory"),
        ("torch.card", "torch.cuda"),
    ):
        text = text.replace(ours, theirs)
    return text


def _hang(outcome: RehearsalOutcome) -> Finding:
    """Ranks that hang, under gloo as well."""
    sites: list[Frame] = []
    for state in outcome.processes.states:
        line_of_learner = learner_frame(state.where.frames) if state.where and not state.done else None
        if line_of_learner and line_of_learner not in sites:
            sites.append(line_of_learner)
    rank = () if outcome.error.rank is None else (outcome.error.rank,)
    return Finding(kind="hangs", ranks=rank, sites=tuple(sites), words=outcome.error.words)


def _shared_gpus(outcome: RehearsalOutcome) -> list[Finding]:
    """Ranks of one node that use one GPU: in their tensors' collectives, or where torch has to guess the GPU."""
    made = []
    for what in ("gpu", "guess"):
        for lines in _shared(outcome, what).values():
            ranks, last = tuple(lines), lines[max(lines)]
            if any(set(ranks) <= set(one.ranks) for one in made):
                continue
            was_set = last.get("was_set", False)
            named = {"ranks": rank_names(ranks), "gpu": last["name"], "op": last.get("op")}
            text = words["duplicate" if what == "gpu" else "guessed"].format(**named)
            cure = words["constant" if was_set else "set_device"]
            kind = "error" if what == "gpu" else WARNING
            made.append(Finding(kind=kind, ranks=ranks, sites=(tuple(last["site"]),), words=text, cure=cure))
    return made


def _shared(outcome: RehearsalOutcome, what: str) -> dict[tuple[int, int], dict[int, dict]]:
    """(node, GPU) -> rank -> its note, where two ranks or more share a GPU."""
    found: dict[tuple[int, int], dict[int, dict]] = {}
    for rank, lines in outcome.noted.items():
        for line in lines:
            if line["what"] == what:
                found.setdefault((rank // outcome.nproc, line["name"]), {})[rank] = line
    return {place: lines for place, lines in found.items() if len(lines) > 1}


def headline(outcome: RehearsalOutcome, found: tuple[Finding, ...]) -> Words:
    """How it ended, in one line."""
    num = len(outcome.processes.states)
    first = next((one for one in found if one.is_mistake), None)
    failed = (
        first.ranks if first else tuple(state.rank for state in outcome.processes.states if state.failure or state.dead)
    )
    named = {"count": num, "ranks": rank_names(failed or (0,)), "seconds": outcome.processes.clock}
    named["code"] = next((line["code"] for line in outcome.exits.values()), 0)
    return words[f"ended.{outcome.ended}"].format(**named)


def problem(outcome: RehearsalOutcome, found: tuple[Finding, ...]) -> Words | None:
    """Why the rehearsal cannot say anything, if the reason is not a mistake in the script; otherwise None."""
    if any(one.is_mistake for one in found):
        return None
    if outcome.exits:
        rank, line = next(iter(outcome.exits.items()))
        message = "".join(outcome.processes.states[rank].text).strip().splitlines()[-1:] or ["-"]
        return words["problem.exit"].format(code=line["code"], said=message[0], ranks=rank_names(outcome.exits))
    for state in outcome.processes.causes:
        name = state.failure.type_name
        if name == "ModuleNotFoundError":
            return words["problem.module"].format(said=state.failure.message)
        if name == "NotRehearsed":
            return state.failure.words
        if _is_limit(state.failure):
            line = learner_frame(state.failure.frames)
            message = state.failure.message.splitlines()[0][:300]
            return words["problem.limit"].format(said=message, place=describe(line) if line else "?")
        if _is_own_fault(state.failure):
            return words["problem.own"].format(
                said=f"{name}: {state.failure.message}", place=describe(state.failure.frames[-1])
            )
        if _is_sparse(state.failure):
            return words["stops"].format(what=words["not.sparse"])
        if name == FULL:
            held, asked = (format_bytes(n) for n in (outcome.processes.card_bytes, outcome.memory))
            return words["short"].format(held=held, memory=asked)
    if outcome.verdict in ("timeout", "interrupted"):
        return Words.of("\n").join(outcome.processes.places)
    return None if outcome.verdict == "ok" else outcome.error.words


def missing(outcome: RehearsalOutcome) -> tuple[Words, ...]:
    """What the script uses and no rehearsal can try."""
    names = {line["name"] for lines in outcome.noted.values() for line in lines if line["what"] == "not rehearsed"}
    return tuple(words[f"not.{name}"] for name in sorted(names))
