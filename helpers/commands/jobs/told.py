"""A verdict in words: the sentence, where every rank is, what torch's own analyzer says, and the stacks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from helpers.commands.jobs.blame import Scene, Verdict
from helpers.commands.jobs.calls import Call
from helpers.learner.words import Words, book
from helpers.ranks.report import describe_exit
from helpers.ranks.sites import Frame, describe, learner_frame, rank_names
from helpers.ranks.sites import words as rank_words

if TYPE_CHECKING:
    from helpers.commands.jobs.hang import Found

say = book("jobs")
_GPU = ("cuda", "nvidia", "nccl")


def told(found: Found) -> list[str]:
    """Line by line, in the language that was chosen."""
    scene, verdict = found.scene, found.verdict
    lines = [say(found.how, limit=scene.limit)] if found.how in ("interrupted", "hang") else []
    if not scene.ranks:
        return [*lines, say("no_python", code=found.code or 0)]
    if found.how == "ended" and verdict.kind == "ended":
        return [say("failed", code=found.code) if found.code else say("ended", limit=scene.limit)]
    lines += [str(one) for one in (*sentences(verdict, scene), *places(scene))]
    if found.torch is not None:
        lines += _torch(found)
    elif found.how == "hang":
        lines.append(say("torch.none"))
    if scene.unfinished:
        lines += ["", say("stacks")]
    for rank, process in sorted(scene.unfinished.items()):
        threads = {f" · {name}": [*map(tuple, frames)] for name, frames in process.said.get("threads", {}).items()}
        for name, frames in ({"": process.frames} | threads).items():
            own = next((i for i, frame in enumerate(frames) if learner_frame([frame])), None)  # before it all are equal
            if own is not None or not name:
                lines += ["", f"{rank_names([rank])}{name}"]
                lines += [f"  {path}:{line} {called}" for path, line, called in frames[own or 0 :]]
    return lines


def sentences(verdict: Verdict, scene: Scene) -> list[Words]:
    """What is wrong, and where the ranks part."""
    kind, part = verdict.kind, verdict.parting
    process = scene.ranks[verdict.ranks[0]] if verdict.ranks else None
    named = {"ranks": rank_names(verdict.ranks or (0,)), "count": len(verdict.ranks), "place": _line(verdict.place)}
    named |= {"limit": scene.limit, "op": verdict.op, "peer": verdict.peer, "at": _line(verdict.at)}
    named |= {"how": describe_exit(process.code)} if process else {}
    if part is not None:
        named |= {"call": _call(part.usual, scene), "theirs": _of(part.usual)}
        named |= {"own": _of(next((part.lines[rank] for rank in verdict.ranks if rank in part.lines), part.usual))}
        kind = "alone" if kind in ("skipped", "finished") and set(verdict.ranks) <= part.calls.keys() else kind
    if kind == "raised":
        named["text"] = f"{process.failure.type_name}: {process.failure.message}"
        lines = [rank_words["raised"].format(**named)]
        lines += [say["gpu"]] if any(one in named["text"].lower() for one in _GPU) and not _has_gpu() else []
    elif kind == "died":
        name = "noted" if process.fault else "seen" if verdict.place else "alone"
        lines = [rank_words[f"died.{name}"].format(**named)]
    else:
        lines = [say[f"verdict.{kind}"].format(**named)]
    if part is not None and kind != "differs":
        call = next(iter(part.calls.values())) if verdict.ranks == tuple(part.calls) else part.usual
        lines.append(say["issued"].format(call=_call(call, scene), place=_line(call.line)))
    if part is not None and part.since < part.number:
        own = next(part.lines[rank].line for rank in part.odd)
        since = {"number": part.since, "ranks": rank_names(part.odd), "count": len(part.odd)}
        lines.append(say["since"].format(**since, place=_line(own), other=_line(part.usual.line)))
    return lines


def _call(call: Call, scene: Scene) -> Words:
    members = scene.groups[call.group]
    everyone = len(members) == len(scene.ranks)
    group = say["everyone"] if everyone else say["group"].format(name=call.group, ranks=members)
    return say["call"].format(op=call.op, number=call.number, group=group)


def _of(call: Call) -> Words:
    words = say["of"] if any(call.sizes) else say["at"]
    return words.format(op=call.op, sizes=list(call.sizes), place=_line(call.line))


def _line(frame: Frame | None) -> Words:
    return describe(frame) if frame else rank_words["site.unknown"]


def places(scene: Scene) -> list[Words]:
    """Where every rank is; equal places together."""
    found: dict[tuple[Words, str, Words], list[int]] = {}
    for rank, process in sorted(scene.unfinished.items()):
        op = scene.waits_in(rank)
        how = rank_words["wait"] if op else rank_words["stand"] if process.sleeps_for() else say["computes"]
        found.setdefault((how, op or "", _line(process.line)), []).append(rank)
    lines = [how.format(ranks=rank_names(r), count=len(r), ops=[op], place=at) for (how, op, at), r in found.items()]
    over = [rank for rank, one in scene.ranks.items() if one.has_finished]
    if over and scene.unfinished:
        lines.append(rank_words["had_finished"].format(ranks=rank_names(over)))
    hung = [one for more in scene.others.values() for one in more if one.line and one.line in one.frames[-8:]]
    lines += [say["worker"].format(ranks=rank_names([one.rank]), place=_line(one.line)) for one in hung]
    silent = [rank for rank, one in scene.unfinished.items() if not one.said.get("answered")]
    return lines + ([say["silent"].format(ranks=rank_names(silent))] if silent else [])


def _torch(found: Found) -> list[str]:
    """What torch's analyzer says, and what it cannot know."""
    said = found.torch
    if said.problem:
        return [say("torch.cannot", problem=said.problem), say("torch.gloo")]
    if said.number is None:
        return [say("torch.nothing"), say("torch.gloo")]
    return [say("torch.says", number=said.number, kind=said.kind, ranks=rank_names(said.ranks)), say("torch.gloo")]


def _has_gpu() -> bool:
    from helpers.devices import accelerator

    return accelerator() is not None
