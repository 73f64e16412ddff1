"""The command `python -m helpers hang -- train.py`: runs a training job and says which rank makes it hang, and where.

`watch_job` runs any script or command, which need not import this package; chapter 10 calls it too. Its steps:

1. `start_job` starts the processes of the job with our probe, a thread that writes reports into a folder (probe.py).
2. A `JobMonitor` reads the reports until the job ends, fails or hangs.
3. Every process adds details: its groups, and torch's flight-recorder dump, a list of the collectives that it issued.
4. `find_cause` decides from all this which rank is at fault.

`report_lines` writes the result for a terminal: the cause, where every rank is, what torch's own analyzer says, and the
stacks. A `Frame` is (file, line, function). `words` and `rank_words` hold the sentences: words(key, …) gives one in the
reader's language, and words[key] gives it in every language, as `Words`.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from helpers.commands.jobs import probe
from helpers.commands.jobs.flight_recorder import (
    Call,
    Divergence,
    TorchAnalysis,
    analyze_with_torch,
    calls_of,
    load_dump,
)
from helpers.commands.jobs.hang_cause import HangCause, JobState, PostedMessage, find_cause, lines_alone
from helpers.commands.jobs.launch import StartedJob, start_job, words
from helpers.commands.jobs.monitor import JobMonitor, ProcessState
from helpers.learner.words import Words
from helpers.learner.words.wrapping import complain
from helpers.ranks.board.report import describe_exit
from helpers.ranks.board.sites import Frame, describe, learner_frame, rank_names
from helpers.ranks.board.sites import words as rank_words

SETTLE_SECONDS = 5.0  # that the other ranks get to end after a first rank failed; torchrun gives them less
HUNG, REFUSED, INTERRUPTED = 3, 2, 130  # exit codes; in all other cases the command returns the job's own
_GPU_WORDS = ("cuda", "nvidia", "nccl")  # in an exception: the job may have failed for lack of a GPU
INNERMOST = 8  # frames in which a child process, such as a DataLoader's worker, must have a line of the user to be hung


@dataclass(frozen=True, kw_only=True)
class HangReport:
    """What became of a job.

    outcome: "ended", "failed" (the remaining processes were ended), "hang" or "interrupted".
    code: the job's exit code, None where the job was still running. state: what is known of all processes.
    torch: what torch's own analyzer says; None where no process left a flight-recorder dump.
    """

    outcome: str
    code: int | None
    state: JobState
    cause: HangCause
    torch: TorchAnalysis | None

    def __str__(self) -> str:
        return "\n".join(report_lines(self))

    @property
    def exit_code(self) -> int:
        return {"hang": HUNG, "interrupted": INTERRUPTED}.get(self.outcome, self.code or 0)


def watch_job(
    command: Sequence[str], *, nproc: int | None = None, limit: float = 30.0, env: Mapping[str, str] | None = None,
    probes: Mapping[str, str] | None = None,
) -> HangReport:  # fmt: skip
    """Starts a job and waits until it ends, hangs for `limit` seconds, or is interrupted.

    Of these seconds the monitor leaves out the time in which the job wanted a core and got none.

    command: a script with its arguments (on `nproc` ranks, by default 2), `-m module …`, or a command that starts the
    ranks itself, such as `torchrun …`. env: further environment variables. probes: module name -> path of a further
    file that every process loads. No process of the job is left when this returns.
    Raises ValueError, with a sentence for the user, for a command that cannot be started.
    """
    if not limit > 0:
        raise ValueError(words("limit", limit=limit))
    with start_job(command, nproc, env=env, probes=probes) as job:
        monitor = JobMonitor(job.folder)
        try:
            outcome = _wait(job, monitor, limit)
        except KeyboardInterrupt:
            outcome = "interrupted"
        exit_codes = job.exit_codes()
        if outcome != "ended":
            monitor.request_details(exit_codes)
        paths = {rank: monitor.folder / f"{p.report['pid']}.recorder" for rank, p in sorted(monitor.ranks.items())}
        loaded = {rank: dump for rank, path in paths.items() if "entries" in (dump := load_dump(path))}
        dumps = {rank: dump for rank, dump in loaded.items() if dump["entries"]}  # what torch's analyzer can read
        groups = {name: ranks for p in monitor.ranks.values() for name, ranks in p.report.get("groups", {}).items()}
        calls = {rank: calls_of(dump) for rank, dump in loaded.items()}
        processes = {"ranks": dict(monitor.ranks), "children": dict(monitor.children)}
        state = JobState(**processes, calls=calls, groups=groups, limit=limit)
        # The first exit code that is not 0; if there is none, 0 for a job that has ended.
        code = next((code for code in exit_codes.values() if code), 0 if outcome == "ended" else None)
        torch = analyze_with_torch(dumps, groups) if dumps else None
        return HangReport(outcome=outcome, code=code, state=state, cause=find_cause(state), torch=torch)


def _wait(job: StartedJob, monitor: JobMonitor, limit: float) -> str:
    """Waits for the end of the job or for a hang, and returns the outcome: "ended", "failed" or "hang"."""
    failed_at: float | None = None
    while True:
        exit_codes = job.exit_codes()
        monitor.read(exit_codes)
        if len(exit_codes) == len(job.processes):
            return "ended"
        if any(exit_codes.values()):
            failed_at = failed_at or time.monotonic()
            if time.monotonic() - failed_at > SETTLE_SECONDS:
                return "failed"
        if monitor.is_hanging(limit):
            return "hang"
        time.sleep(probe.INTERVAL)


# -- the command -----------------------------------------------------------------------------------------------------
def main(arguments: Sequence[str]) -> int:
    """Returns the job's own exit code, 3 where it hung, 2 where it could not be started, 130 after Ctrl-C."""
    options = parser(
        "hang",
        "Start a training job and watch it. If it hangs, say which rank diverged from the others, at "
        "which operation and line, with every rank's stack.",
    )
    options.add_argument("--pid", type=int, help="look into a process that hangs already, with py-spy")
    given = options.parse_args(arguments)
    try:
        if given.pid:
            print(stacks_of_process(given.pid), flush=True)
            return 0
        report = watch_job(given.command, nproc=given.nproc, limit=given.limit)
    except ValueError as problem:
        complain(words("nothing", problem=problem))
        return REFUSED
    print(report, flush=True)
    return report.exit_code


def parser(name: str, description: str) -> argparse.ArgumentParser:
    """The options that `hang` and `profile` share."""
    options = argparse.ArgumentParser(prog=f"python -m helpers {name}", description=description)
    options.add_argument("--nproc", type=int, help="ranks of a script (default: 2); torchrun sets it itself")
    options.add_argument("--limit", type=float, default=30.0, help="seconds without progress (default: 30)")
    options.add_argument("command", nargs="*", metavar="-- train.py", help="the job, after two dashes")
    return options


def stacks_of_process(pid: int) -> str:
    """The stack of every thread of a process that was started without us, from py-spy.

    Raises ValueError, with a sentence for the user, where there is no such process or py-spy cannot read it.
    """
    if not probe.is_alive(pid):
        raise ValueError(words("pid.none", pid=pid))
    if (py_spy := shutil.which("py-spy")) is None:
        raise ValueError(words("pid.absent", pid=pid))
    done = subprocess.run([py_spy, "dump", "--pid", str(pid)], capture_output=True, text=True)
    if done.returncode:
        raise ValueError(words("pid.failed", pid=pid, problem=(done.stderr.strip().splitlines() or ["?"])[-1]))
    return done.stdout


# -- the report in words ---------------------------------------------------------------------------------------------
def report_lines(report: HangReport) -> list[str]:
    """The report, line by line, in the reader's language."""
    state, cause = report.state, report.cause
    lines = [words(report.outcome, limit=state.limit)] if report.outcome in ("interrupted", "hang") else []
    if not state.ranks:  # no probe reported a rank, so no rank of the job is a Python process
        return [*lines, words("no_python", code=report.code or 0)]
    if report.outcome == "ended" and cause.kind == "ended":
        return [words("failed", code=report.code) if report.code else words("ended", limit=state.limit)]
    lines += [str(sentence) for sentence in _sentences(cause, state)]
    if report.torch is not None:
        lines += _torch_lines(report.torch)
    elif report.outcome == "hang":
        lines.append(words("torch.none"))
    if state.unfinished:
        lines += ["", words("stacks")]
    for rank, process in sorted(state.unfinished.items()):
        threads = {f" · {name}": [*map(tuple, stack)] for name, stack in process.report.get("threads", {}).items()}
        for name, stack in ({"": process.frames} | threads).items():  # "" is the main thread
            # The frames before the user's first line are the same everywhere; a thread without such a line is left out.
            start = next((i for i, frame in enumerate(stack) if learner_frame([frame])), None)
            if start is not None or not name:
                lines += ["", f"{rank_names([rank])}{name}"]
                lines += [f"  {path}:{line} {function}" for path, line, function in stack[start or 0 :]]
    return [*lines, "", words("unseen")]


def _sentences(cause: HangCause, state: JobState) -> list[Words]:
    """What is wrong, which other ranks raised or died, and where every rank is."""
    others = [*other_errors(cause, state), *other_deaths(cause, state)]
    return [*cause_sentences(cause, state), *others, *position_sentences(state)]


def cause_sentences(cause: HangCause, state: JobState) -> list[Words]:
    """What is wrong, and where the ranks diverge: the first collective that is not the same on all ranks.

    In a divergence, `number` counts that collective, `calls` has what each rank issued there, and `expected` is the
    call of the ranks that are not at fault. `first_number` and `first_calls` are the collective from which on the ranks
    call from different lines, which may be an earlier one.
    """
    if cause.kind == "parted":
        return _parted_sentences(cause, state)
    if cause.kind == "unanswered":
        return _unanswered_sentences(cause, state)
    if cause.kind == "raised":
        lines = _raised_sentences(state.ranks[cause.ranks[0]], state)
    elif cause.kind == "died":
        lines = [_death(state.ranks[cause.ranks[0]])]
    else:
        lines = [_verdict(cause, state)]
    return lines + (_divergence_sentences(cause, state) if cause.divergence else [])


def _verdict(cause: HangCause, state: JobState) -> Words:
    """The sentence of the kinds that have one. It uses some of the fields; (0,) fills a field that it does not use.

    "own" is the call of the ranks at fault, "theirs" and "call" are the call of the others.
    """
    kind, divergence, others = cause.kind, cause.divergence, state.ranks.keys() - set(cause.ranks)
    fields = {"ranks": rank_names(cause.ranks or (0,)), "count": len(cause.ranks), "place": _line(cause.line)}
    fields |= {
        "at": _line(cause.op_line),
        "limit": state.limit,
        "op": cause.op,
        "waiting": rank_names([cause.peer or 0]),
    }
    if cause.ranks:
        fields["how"] = describe_exit(state.ranks[cause.ranks[0]].exit_code)
    if divergence is not None:
        fields |= {"call": _call(divergence.expected, state), "theirs": _call_with_sizes(divergence.expected)}
        calls = (divergence.first_calls.get(rank) for rank in cause.ranks)
        fields["own"] = _call_with_sizes(next(filter(None, calls), divergence.expected))
    if kind == "finished" and len(cause.ranks) == len(others):  # a half is no majority
        kind, fields["others"] = "half", rank_names(others)
    elif kind in ("skipped", "finished") and divergence and set(cause.ranks) <= divergence.calls.keys():
        kind = "alone"  # the ranks at fault issued a collective that the others did not
    elif kind == "circle" and not cause.ranks:
        kind = "even"
    return words[f"verdict.{kind}"].format(**fields)


def _raised_sentences(process: ProcessState, state: JobState) -> list[Words]:
    """What a rank raised, with every rank that raised the same, and whether it lacked a GPU."""
    error = _error(process)
    same = [rank for rank, other in state.ranks.items() if other.failure and _error(other) == error]
    lines = [rank_words["raised"].format(ranks=rank_names(sorted(same)), text=error[0], place=_line(process.line))]
    if any(word in error[0].lower() for word in _GPU_WORDS) and not _has_gpu():
        lines.append(words["gpu"])
    return lines


def _divergence_sentences(cause: HangCause, state: JobState) -> list[Words]:
    """Where the collective was called that a rank has not issued, and since when the ranks call from other lines."""
    divergence, lines = cause.divergence, []
    if cause.kind not in ("differs", "groups"):  # the first sentence names both calls, or every rank has its own
        is_extra = cause.ranks == tuple(divergence.calls)  # only the ranks at fault issued it
        call = next(iter(divergence.calls.values())) if is_extra else divergence.expected
        lines.append(words["issued"].format(call=_call(call, state), place=_line(call.line)))
    if divergence.first_number < divergence.number:  # they call from other lines since then
        line, suspects = divergence.first_calls[divergence.suspects[0]].line, divergence.suspects
        fields = {"number": divergence.first_number, "ranks": rank_names(suspects), "count": len(suspects)}
        lines.append(words["since"].format(**fields, place=_line(line), other=_line(divergence.expected.line)))
    is_open = cause.kind in ("finished", "groups") and not divergence.has_majority  # no rank is known to be at fault
    return lines + (_only_sentences(divergence, state) if is_open else [])


def _parted_sentences(cause: HangCause, state: JobState) -> list[Words]:
    """Where the ranks part, what each side calls there, and who called from a line that only this side has reached."""
    divergence = cause.divergence
    calls, group = divergence.first_calls, _group(divergence.group, state)
    ranks_with: dict[Words | None, list[int]] = {}  # what they call there -> ranks; None: they have not come there
    for rank in sorted(divergence.sides):
        ranks_with.setdefault(_call_with_sizes(calls[rank]) if rank in calls else None, []).append(rank)
    lines = [words["verdict.parted"].format(number=divergence.first_number, group=group)]
    for own, ranks in ranks_with.items():
        text = words["side.calls" if own else "side.absent"]
        lines.append(text.format(ranks=rank_names(ranks), count=len(ranks), own=own))
    if divergence.first_number < divergence.number:
        lines.append(words["later"].format(number=divergence.number))
    return lines + _only_sentences(divergence, state)


def _only_sentences(divergence: Divergence, state: JobState) -> list[Words]:
    """Which side called from a line that the other has never reached; nothing where that is true of both."""
    places, lines = lines_alone(state, divergence), []
    for line in dict.fromkeys(places.values() if len(places) < len(divergence.sides) else ()):
        ranks = [rank for rank, place in places.items() if place == line]
        lines.append(words["only"].format(ranks=rank_names(ranks), count=len(ranks), place=_line(line)))
    return lines


def _unanswered_sentences(cause: HangCause, state: JobState) -> list[Words]:
    """Which message has no counterpart, and whether its peer posted one with another tag or group."""
    message = state.message_at(cause.peer)
    key, answers = (message.group, message.tag), state.answers(cause.peer, message)
    fields = {"rank": rank_names([cause.peer]), "place": _line(message.line), "number": message.number}
    fields |= {"peer": _peer(message), "answers": answers[key]}
    if cause.ranks and cause.ranks[0] not in state.ranks:
        return [words["message.nowhere"].format(**fields, last=max(state.ranks))]
    if not cause.ranks:
        return [words["message.any"].format(**fields)]
    lines = [words[f"message.{message.op}"].format(**fields)]
    for group, tag in state.strays(cause.peer, message)[:1]:
        fields |= {"tag": message.tag, "group": _group(message.group, state)}
        lines.append(words["message.stray"].format(**fields, other_tag=tag, other_group=_group(group, state)))
    return lines


def _death(process: ProcessState) -> Words:
    """How a rank died, and its last line, which is known from the crash report, the probe's last report, or not."""
    name = "noted" if process.crash else "seen" if process.line else "alone"
    fields = {"ranks": rank_names([process.rank]), "how": describe_exit(process.exit_code)}
    return rank_words[f"died.{name}"].format(**fields, place=_line(process.line))


def _error(process: ProcessState) -> tuple[str, Frame | None]:
    """The error that a rank raised, in words, and its line."""
    return f"{process.failure.type_name}: {process.failure.message}", process.line


def other_errors(cause: HangCause, state: JobState) -> list[Words]:
    """Where a rank raised: the errors of the other ranks, each once with all of its ranks and its line.

    An error that only follows from another rank's end, such as "Connection closed by peer", is left out.
    """
    if cause.kind != "raised":
        return []
    ranks_with: dict[tuple[str, Frame | None], list[int]] = {}  # (error, line) -> ranks
    for rank, process in sorted(state.ranks.items()):
        if process.failure and not process.failure.is_consequence:
            ranks_with.setdefault(_error(process), []).append(rank)
    ranks_with.pop(_error(state.ranks[cause.ranks[0]]), None)  # the first sentence names those
    raised = [{"ranks": rank_names(who), "text": text, "place": _line(at)} for (text, at), who in ranks_with.items()]
    return [rank_words["raised"].format(**fields) for fields in raised]


def other_deaths(cause: HangCause, state: JobState) -> list[Words]:
    """A sentence about each rank that died besides the cause.

    A rank that SIGTERM ended, or of which nobody knows how it ended, was probably ended by its launcher after another
    rank had failed.
    """
    blamed = cause.ranks if cause.kind == "died" else ()
    dead = [p for rank, p in sorted(state.ranks.items()) if p.has_died and rank not in blamed]
    return [_death(p) for p in dead if p.crash or p.exit_code not in (None, -signal.SIGTERM)]


def _call(call: Call, state: JobState) -> Words:
    """A collective with its number and its group, in words."""
    return words["call"].format(op=call.op, number=call.number, group=_group(call.group, state))


def _group(name: str, state: JobState) -> Words:
    """A process group with its ranks, in words."""
    if state.is_world(name):
        return words["everyone"]
    return words["group"].format(name=name, ranks=state.groups.get(name) or [words["unknown"]])


def _call_with_sizes(call: Call) -> Words:
    """A collective with the sizes of its tensors, if it has any, and its line."""
    return words["of" if any(call.sizes) else "at"].format(op=call.op, sizes=list(call.sizes), place=_line(call.line))


def _line(frame: Frame | None) -> Words:
    """A line of the user's code in words."""
    return describe(frame) if frame else rank_words["site.unknown"]


def position_sentences(state: JobState) -> list[Words]:
    """Where every rank is. Ranks at the same line share a sentence."""
    ranks_at: dict[tuple[Words, ...], list[int]] = {}  # what `_position` returns -> ranks
    lost = {rank for rank, process in state.ranks.items() if process.failure and process.failure.is_consequence}
    for rank in sorted(state.unfinished.keys() | lost):
        ranks_at.setdefault(_position(rank, state, has_lost=rank in lost), []).append(rank)
    lines = []
    for (text, op, place, note), ranks in ranks_at.items():
        lines.append(text.format(ranks=rank_names(ranks), count=len(ranks), ops=[op], peer=op, place=place) + note)
    finished = [rank for rank, process in state.ranks.items() if process.has_finished]
    if finished and ranks_at:
        lines.append(rank_words["had_finished"].format(ranks=rank_names(finished)))
    children = [child for of_rank in state.children.values() for child in of_rank]
    hung = [child for child in children if child.line and child.line in child.frames[-INNERMOST:]]
    lines += [words["worker"].format(ranks=rank_names([child.rank]), place=_line(child.line)) for child in hung]
    silent = [rank for rank, process in state.unfinished.items() if not process.report.get("has_details")]
    if silent:
        lines.append(words["silent"].format(ranks=rank_names(silent)))
    return lines


def _position(rank: int, state: JobState, *, has_lost: bool) -> tuple[Words, Words, Words, Words]:
    """Where a rank is: a sentence with braces, the operation or peer for it, the rank's line, and what follows.

    has_lost: whether it lost the connection to another rank and raised.
    """
    process, op, note = state.ranks[rank], state.waits_in(rank), Words.of("")
    text, what = rank_words["wait"], Words.of(op or "")
    message, call = state.message_at(rank), state.pending_call(rank)
    if has_lost:
        text = words["lost"]
    elif op is None:  # it does not wait for another rank
        text = rank_words["stand"] if process.is_asleep() else words["computes"]
        if process.report.get("polled"):
            polled = PostedMessage.from_report(process.report["polled"])
            note = words["polled"].format(op=polled.op, place=_line(polled.line))
    elif message:
        text, what = words[f"waits.{op}"], _peer(message)
        if message.line not in (None, process.line):
            note = words["posted"].format(place=_line(message.line))
    elif call and call.op == op:
        if not state.is_world(call.group):
            what = words["of_group"].format(op=op, group=_group(call.group, state))
        if call.line not in (None, process.line):  # an asynchronous collective
            note = words["called"].format(place=_line(call.line))
    if error := process.handled:
        note += words["handles"].format(error=error[0], place=_line(error[1]))
    if unmet := None if has_lost else state.unmet(rank):
        note += words[f"unmet.{unmet.op}"].format(peer=_peer(unmet), place=_line(unmet.line))
    return text, what, _line(process.line), note


def _peer(message: PostedMessage) -> Words:
    """The other rank of a message, in words."""
    return words["any"] if message.peer is None else rank_names([message.peer])


def _torch_lines(analysis: TorchAnalysis) -> list[str]:
    """What torch's analyzer says, and what gloo's dumps cannot tell it.

    If it names no rank, (0,) fills a field that the sentence does not use.
    """
    key = "torch.cannot" if analysis.problem else "torch.nothing" if analysis.number is None else "torch.says"
    return [words(key, **vars(analysis) | {"ranks": rank_names(analysis.ranks or (0,))}), words("torch.gloo")]


def _has_gpu() -> bool:
    from helpers.devices import accelerator

    return accelerator() is not None
