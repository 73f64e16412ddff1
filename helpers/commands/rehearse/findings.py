"""Turns what the ranks of a rehearsal left into findings, mistakes and warnings, of which causes come first.

A rehearsal runs a script for GPUs on practice cards, simulated GPUs in each rank's process. What it leaves:

failure    the exception with which a rank's script ended (`Failure`, with message, frames and time). Its `wire_kind`
           is "mismatch" if the course's process-group backend, the wire, raised it for collectives that differ
verdict    what NCCL would have done, judged from a journal of all communication; it has the fields of a Finding
           (but the `verdict` of a RehearsalOutcome is one word about how the whole run ended)
note       what a rank wrote down, as {"what": kind, …} with the kinds "exit", "end", "gpu", "guess", "not rehearsed"

A finding is a mistake in the script, or a warning. A failure that only shows a limit of the rehearsal itself becomes
the `problem` of the report instead. `words[key]` is a sentence in every language, as `Words`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from helpers.commands.rehearse.limits import (
    is_course_code,
    is_limit,
    is_no_mistake,
    is_own_fault,
    is_sparse,
    killed_below,
)
from helpers.commands.rehearse.processes import RehearsalProcesses
from helpers.commands.rehearse.report import NOTE, WARNING, Finding, words
from helpers.commands.rehearse.silent_warnings import warnings_of
from helpers.learner.words import Words
from helpers.quantities.units import format_bytes
from helpers.ranks.board.errors import Failure, RankError
from helpers.ranks.board.sites import describe, is_library, learner_frame, rank_names
from helpers.ranks.nccl.verdicts import words as nccl_words

FULL = "OutOfMemoryError"  # the type of the exception of a card that is full
# Functions of torch that only call the next one, so their frames say nothing.
_PASSING = ("_call_impl", "_wrapped_call_impl", "wrapper", "inner", "decorate_context")
_CURES = {  # part of a message of torch -> the key of the cure
    "in forked subprocess": "fork",
    "Expected to have finished reduction in the prior iteration": "unused",
    "Expected to mark a variable ready only once": "marked_twice",
    "is not part of group": "root",
    "got mixed torch.Tensor and DTensor": "mixed",
    "Default process group has not been initialized": "too_early",
    'Unexpected key(s) in state_dict: "module.': "prefix",
    "found at least two devices": "constant",
    "must NOT be specified on non-": "one_side",
}
_NUMBERED = re.compile(r"\b(cuda|[Rr]ank)[: ]\d+")
_WORKER_FRAMES = re.compile(r'File "(.+?)", line (\d+), in (\S+)')
MAX_LIBRARY_FRAMES = 3  # that a chain of calls shows below the script's own line
MAX_MESSAGE = 300  # characters of torch's message


@dataclass(frozen=True, kw_only=True)
class RehearsalOutcome:
    """What a rehearsal left.

    verdict: "ok", "failed", "hang", "timeout" or "interrupted". error: the sentence about it, None if it is "ok".
    noted: rank -> its notes. nproc: ranks on each node. memory: bytes that each card was meant to have; it can hold
    `processes.card_bytes`, which is less if this machine has less memory. Of `processes`, `states` has what each rank
    sent, and `causes` the states of the ranks that failed by themselves and not because another rank had ended.
    """

    processes: RehearsalProcesses
    verdict: str
    error: RankError | None
    noted: dict[int, list[dict[str, Any]]]
    nproc: int
    memory: int

    @property
    def is_short(self) -> bool:
        """Whether this machine has less memory than the cards were meant to have."""
        return self.processes.card_bytes < self.memory

    @property
    def exits(self) -> dict[int, dict]:
        """Rank -> the note of a script that called sys.exit with an error code."""
        return self.last_notes("exit")

    @property
    def ended(self) -> str:
        """How the run ended, as RehearsalReport.ended."""
        return "exit" if self.exits else "ended" if self.verdict == "ok" else self.verdict

    def last_notes(self, what: str) -> dict[int, dict]:
        """Rank -> its last note of this kind, for the ranks that have one."""
        return {rank: note for rank, notes in self.noted.items() for note in notes if note["what"] == what}


def findings_of(outcome: RehearsalOutcome) -> tuple[Finding, ...]:
    """All findings, with the one that ended the run first."""
    failures = _failures(outcome)
    verdicts = [Finding(**vars(one)) for one in outcome.processes.verdicts]
    if any(one.cure == nccl_words["cure.groups"] for one in verdicts):  # it says the same of a call of new_group
        failures = [one for one in failures if one.cure != nccl_words["cure.groups"]]
    verdicts = [one for one in verdicts if not any(_is_same(one, other) for other in failures)]
    if outcome.exits or outcome.processes.causes or any(state.dead for state in outcome.processes.states):
        verdicts = [one for one in verdicts if one.kind != "hangs"]  # the ranks wait for one that has ended
    found = [*failures, *verdicts, *_shared_gpus(outcome)]
    if not any(one.is_mistake for one in found):  # otherwise wrong values may be its consequence
        found += warnings_of(outcome.noted, outcome.nproc, outcome.memory)
    if outcome.verdict == "hang" and not outcome.exits and not any(one.is_mistake for one in found):
        found.append(_hang(outcome))
    if outcome.verdict == "ok":
        found = [one if _has_own_line(one) else _as_note(one) for one in found]
    return tuple(_each_once(found))


def _has_own_line(finding: Finding) -> bool:
    """Whether the script takes part in it. A race that a library's own stream begins is the library's."""
    of_library = [is_library(site[0]) for site in finding.sites]
    return not any(of_library) if finding.kind == "race" else not of_library or not all(of_library)


def _as_note(finding: Finding) -> Finding:
    """What a library does by itself, in a script that ran to its end, is no mistake of the script."""
    return replace(finding, kind=NOTE, words=Words.of("\n").join([words["in_library"], finding.words]))


def _each_once(found: list[Finding]) -> list[Finding]:
    """Findings of one kind that say the same are one, with the ranks and the lines of all."""
    merged: dict[tuple, Finding] = {}  # (kind, text) -> finding
    for one in found:
        key = one.kind, str(one.words)
        if key in merged:
            first = merged[key]
            ranks, sites = sorted({*first.ranks, *one.ranks}), dict.fromkeys([*first.sites, *one.sites])
            one = replace(first, ranks=tuple(ranks), sites=tuple(sites))
        merged[key] = one
    return [*merged.values()]


def _is_same(verdict: Finding, failure: Finding) -> bool:
    """Whether a verdict is about an error that a rank has raised already."""
    return verdict.kind == failure.kind and verdict.sites[:1] == failure.sites[:1]


def _failures(outcome: RehearsalOutcome) -> list[Finding]:
    """The mistakes that ranks raised by themselves. Ranks with the same message at the same line share a finding."""
    by_message: dict[tuple, dict[int, Failure]] = {}  # (type, message, line) -> rank -> its failure
    for state in outcome.processes.causes:
        failure = _from_worker(state.failure)
        if is_no_mistake(failure) or (failure.type_name == FULL and outcome.is_short):
            continue
        # What differs from rank to rank is left out: the numbers of the GPU and of the rank, the bytes of a full card,
        # and the lines of a mismatch, at which the ranks by nature call different collectives.
        message = "" if failure.type_name == FULL else _NUMBERED.sub(r"\1", with_cudas_names(str(failure.words)))
        key = failure.type_name, message, learner_frame(failure.frames)
        if failure.wire_kind == "mismatch":  # autograd may have given it another type
            key = "", message, None
        by_message.setdefault(key, {})[state.rank] = failure
    return [_failure(outcome, failures) for failures in by_message.values()]


def _failure(outcome: RehearsalOutcome, failures: dict[int, Failure]) -> Finding:
    """One mistake that these ranks raised. failures: rank -> its failure."""
    failure = failures[min(failures)]  # of the lowest rank; which rank raised first changes from run to run
    line_of_learner = learner_frame(failure.frames)
    # The calls in the script, then the innermost calls of a library below its last line.
    chain = [frame for frame in failure.frames if not is_library(frame[0]) and not is_course_code(frame[0])]
    if line_of_learner in failure.frames:
        inside = failure.frames[failure.frames.index(line_of_learner) + 1 :]
        called = [frame for frame in inside if is_library(frame[0]) and frame[2] not in _PASSING]
        chain += called[-MAX_LIBRARY_FRAMES:]
    kind, cure = ("out of memory", words["full"]) if failure.type_name == FULL else ("error", None)
    text = failure.words.map(with_cudas_names)
    if any(frame[2] == "new_group" for one in failures.values() for frame in one.frames if one.wire_kind == "mismatch"):
        cure = nccl_words["cure.groups"]
    elif failure.wire_kind == "mismatch":  # the ranks issued different collectives, which NCCL would not notice
        cure = words["shapes"] if _is_one_operation(failure.message) else nccl_words["cure.differ"]
        kind, text = "unnoticed", Words.of("\n").join([text, words["unnoticed"]])
    else:
        text = Words.of(f"{failure.type_name}: ") + text
    lines = dict.fromkeys(line for one in failures.values() if (line := learner_frame(one.frames)))
    for sign, key in _CURES.items():
        if sign in failure.message:
            cure = words[key]
    if "invalid device ordinal" in failure.message:  # the script took a number of a GPU that the node does not have
        cure = words["local"].format(count=outcome.nproc)
    where = {"ranks": tuple(sorted(failures)), "sites": tuple(lines), "chain": tuple(chain)}
    return Finding(kind=kind, words=text, cure=cure, **where)


def _is_one_operation(message: str) -> bool:
    """Whether all ranks in the engine's message about a mismatch call the same operation, with other tensors."""
    return len(set(re.findall(r" calls? (\w+)", message))) == 1


def _from_worker(failure: Failure) -> Failure:
    """The failure; or, if a DataLoader's worker passed it on, the one in the worker, with the worker's frames.

    torch makes one message of it: "Caught RuntimeError in DataLoader worker process 0.", the traceback, and the error.
    """
    if not re.match(r"Caught \w+ in DataLoader worker process", failure.message):
        return failure
    *_, said = failure.message.strip().splitlines()
    name, _, message = said.partition(": ")
    frames = [(path, int(line), function) for path, line, function in _WORKER_FRAMES.findall(failure.message)]
    return replace(failure, type_name=name, message=message, words=Words.of(message), frames=failure.frames + frames)


def with_cudas_names(text: str) -> str:
    """The message of an error with CUDA's names in place of the card's, and without what differs from rank to rank.

    redirect/tensors.py translates the errors that a card raises itself. This is for those that torch's C++ raises.
    """
    names = {"card:0": "cuda", "card out of memory": "CUDA out of memory", "torch.card": "torch.cuda"}
    for cards, cudas in names.items():
        text = text.replace(cards, cudas)
    text = text.replace("helpers.ranks.wire.wire.Wire", "torch.distributed.distributed_c10d.ProcessGroup")
    return re.sub(r" object at 0x[0-9a-f]+", " object", text)  # an address differs from rank to rank


def _hang(outcome: RehearsalOutcome) -> Finding:
    """The finding about ranks that hang although NCCL's rules say nothing, so that they would hang under gloo, too."""
    # The ranks that waited. Most of them have been ended by an error since.
    waited = [state for state in outcome.processes.states if state.where and (state.failure or not state.done)]
    lines = dict.fromkeys(line for state in waited if (line := learner_frame(state.where.frames)))
    culprit = outcome.error.rank
    ranks = tuple(state.rank for state in waited) if culprit is None else (culprit,)
    return Finding(kind="hangs", ranks=ranks, sites=tuple(lines), words=outcome.error.words)


def _shared_gpus(outcome: RehearsalOutcome) -> list[Finding]:
    """Ranks of one node that use one GPU, and ranks for which torch has guessed a GPU that they do not use."""
    found = []
    for notes in _shared(outcome):
        ranks, last = tuple(notes), notes[max(notes)]
        text = words["duplicate"].format(ranks=rank_names(ranks), gpu=last["name"])
        cure = words["constant" if last.get("was_set") else "set_device"]  # was_set: the script chose a device
        found.append(Finding(kind="error", ranks=ranks, sites=(tuple(last["site"]),), words=text, cure=cure))
    wrong = {
        rank: guess for rank, guess in outcome.last_notes("guess").items() if _is_wrong(guess, outcome.noted[rank])
    }
    if wrong and not found:
        ranks, first = tuple(sorted(wrong)), wrong[min(wrong)]
        text = words["guessed"].format(ranks=rank_names(ranks), gpu=first["name"], op=first["op"])
        more = {"words": text, "cure": words["device_id"]}
        found.append(Finding(kind=WARNING, ranks=ranks, sites=(tuple(first["site"]),), **more))
    return found


def _is_wrong(guess: dict[str, Any], notes: list[dict[str, Any]]) -> bool:
    """Whether a rank's tensors are on another GPU than the one that torch has guessed for it."""
    used = [note["name"] for note in notes if note["what"] == "gpu" and note["launch"] == guess["launch"]]
    return bool(used) and guess["name"] not in used


def _shared(outcome: RehearsalOutcome) -> list[dict[int, dict]]:
    """For each GPU of a node from which two ranks or more send: rank -> its note "gpu", whose "name" is the GPU."""
    found: dict[tuple[int, int, int], dict[int, dict]] = {}  # (launch, node, GPU) -> rank -> its note
    for rank, notes in outcome.noted.items():
        for note in notes:
            if note["what"] == "gpu":
                found.setdefault((note["launch"], rank // outcome.nproc, note["name"]), {})[rank] = note
    return [notes for notes in found.values() if len(notes) > 1]


def headline(outcome: RehearsalOutcome, found: tuple[Finding, ...]) -> Words:
    """How it ended, in one line."""
    states = outcome.processes.states
    failed = tuple(state.rank for state in states if state.failure or state.dead)
    blamed = next((one.ranks for one in found if one.is_mistake), failed)
    failed = tuple(sorted({*blamed, *(state.rank for state in states if state.dead)}))
    # (0,) is for the sentences that name no rank.
    named = {"count": len(states), "ranks": rank_names(failed or (0,)), "seconds": outcome.processes.clock}
    named["code"] = next((note["code"] for note in outcome.exits.values()), 0)
    return words[f"ended.{outcome.ended}"].format(**named)


def problem(outcome: RehearsalOutcome, found: tuple[Finding, ...]) -> Words | None:
    """Why the rehearsal cannot say anything, if the reason is not a mistake in the script; otherwise None."""
    if any(one.is_mistake for one in found):
        return None
    if outcome.exits:
        rank, note = next(iter(outcome.exits.items()))
        printed = "".join(outcome.processes.states[rank].text).strip().splitlines() or ["-"]
        return words["problem.exit"].format(code=note["code"], said=printed[-1], ranks=rank_names(outcome.exits))
    for state in outcome.processes.causes:
        failure, name = state.failure, state.failure.type_name
        if name == "ModuleNotFoundError":
            return words["problem.module"].format(said=failure.message)
        if name == "NotRehearsed":
            return failure.words
        if is_limit(failure):
            line = learner_frame(failure.frames)
            message = next(filter(None, failure.message.splitlines()), name)[:MAX_MESSAGE]
            return words["problem.limit"].format(said=message, place=describe(line) if line else "?")
        if is_own_fault(failure):
            return words["problem.own"].format(said=f"{name}: {failure.message}", place=describe(failure.frames[-1]))
        if is_sparse(failure):
            return words["stops"].format(what=words["not.sparse"])
        if name == FULL:  # this machine's memory ended before the card's, otherwise it would be a mistake
            held, asked = format_bytes(outcome.processes.card_bytes), format_bytes(outcome.memory)
            return words["short"].format(held=held, memory=asked)
    killed = killed_below(outcome.processes.exit_codes)
    if killed and not outcome.processes.causes:
        return words["problem.killed"].format(ranks=rank_names(killed))
    if outcome.verdict in ("timeout", "interrupted"):
        return Words.of("\n").join(outcome.processes.places)
    return None if outcome.verdict == "ok" else outcome.error.words


def missing(outcome: RehearsalOutcome) -> tuple[Words, ...]:
    """What the script uses and no rehearsal can try."""
    names = {note["name"] for notes in outcome.noted.values() for note in notes if note["what"] == "not rehearsed"}
    return tuple(words[f"not.{name}"] for name in sorted(names))
