"""Computes what the cells of chapter 12 reveal: the value beside the learner's guess, and a picture or lines of text.

fault_tolerance.py has the checkpoints and silent_corruption.py the wrong products. A generation is the time between
two starts of a job. `history` is what `helpers.elastic.mini_job.run` returns, and an account is the account of a `Job`.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Mapping, Sequence
from multiprocessing.context import BaseContext
from typing import Any

import torch

from helpers.draw import Axis, Part, Scene, curves_scene, parts_scene
from helpers.draw.chapters import fault_tolerance as pictures
from helpers.draw.waterfall import waterfall_scene
from helpers.elastic import Account, mini_job
from helpers.elastic.healing import train_replicas as train_replicas  # a cell imports it from here
from helpers.observe.equality import assert_equal
from helpers.observe.torchrun import RestartedJob
from helpers.predict.failures import LLAMA3

History = Sequence[tuple[float, list[tuple[int, int, float, float]], float, str, list[list[float]]]]
RESTART = {  # a part of a restart, and its colour
    "notice": "waiting",
    "end the old ranks": "other",
    "start Python, import torch": "data",
    "meet and connect": "communication",
    "build the model, load": "parameters",
    "do steps again": "backward",
}


# ---- stations A and B ----
def opening_scene() -> Scene:
    """The failures of Llama 3's training, by kind."""
    counts = dict(list(LLAMA3.items())[:5])
    counts[f"{len(LLAMA3) - 5} other kinds"] = sum(LLAMA3.values()) - sum(counts.values())
    rows = {name: [Part(text="", kind="communication", size=count)] for name, count in counts.items()}
    title = f"What stopped Llama 3: {sum(counts.values())} failures, by kind"
    return parts_scene(rows, ends={name: str(count) for name, count in counts.items()}, title=title)


def generation_lines(account: Account) -> tuple[str, str]:
    """What the agent did after a death, and a line per generation."""
    lines = [
        f"Generation {one.number}: {one.ranks} ranks, steps {one.first_step} to {one.last_step}, then {one.why}."
        for one in account.generations
    ]
    first, second = account.generations
    is_from_checkpoint = second.ranks == first.ranks and second.first_step <= first.last_step
    said = (
        "end the others, and start all four again"
        if is_from_checkpoint
        else "let the three others go on without rank 2"
    )
    return said, "\n\n".join(lines)


def account_scene(account: Account) -> Scene:
    """The loss by the clock, with the gap after each death."""
    lost = " and ".join(f"rank {rank}" for rank in account.generations[0].lost)
    title = "The loss by the clock: a dot for each step"
    return pictures.loss_over_time_scene(account.history, death=f"{lost} is lost", title=title)


def where_they_differ(apart: Sequence[int], account: Account) -> str:
    """Find the choice of 12.equal that fits to the steps in which two losses differ."""
    again = {step for step in account.losses if sum(one == step for _, one, *_ in account.history) > 1}
    if not apart:
        return "in none"
    return "in the steps done twice" if set(apart) <= again else "in all steps after the death"


def warm_processes() -> BaseContext:
    """A way to start processes that have imported torch already: they are forked from one that has."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # gloo says of each lost connection that it is lost
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["helpers.elastic.mini_job"])
    return context


def last_beats(history: History, seconds: float = 2.0) -> tuple[str, Scene]:
    """Find what the agent saw of a rank that hangs, as a choice of 12.hang, and draw all heartbeats."""
    _, beats, end, reason, times = history[0]
    start = min(arrived for _, step, _, arrived in beats if step)  # when the first rank is in its first step
    rows: dict[int, list[tuple[float, int, bool]]] = {rank: [] for rank in range(len(times))}
    for rank, step, _, arrived in beats:
        if arrived >= start:
            furthest = max((row[-1][1] for row in rows.values() if row), default=step)
            rows[rank].append((arrived - start, step, step >= furthest))
    recent = {rank: {step for at, step, _ in row if at >= end - start - seconds} for rank, row in rows.items()}
    is_last = [len(steps) == 1 for steps in recent.values()]
    said = "no heartbeat from rank 1" if not recent[1] else "heartbeats from all, and only rank 1 stays in its step"
    if all(is_last):
        said = "heartbeats from all, and all stay in their step"
    verdicts = {rank: "hung" if f"rank {rank} is hung" in reason else "waits" for rank in rows}
    title = "Heartbeats of three ranks: rank 1 hangs in step 17"
    return said, pictures.heartbeats_scene(rows, verdicts, now=round(end - start, 1), title=title)


def compared_with_one_process(folder: str, steps: int, num_ranks: int) -> str:
    """A line: the weights of every rank of a `mini_job`, and of one process that trained on the same rows."""
    model, optimizer = mini_job.new_job()
    for step in range(steps):
        optimizer.zero_grad()
        mini_job.loss_of(model, step).backward()
        optimizer.step()
    found = [torch.load(f"{folder}/weights{rank}.pt") for rank in range(num_ranks)]
    return assert_equal(model.state_dict(), found, rtol=1e-10)


def generations_of(account: Account, calm: Account, ends: Sequence[str]) -> Scene:
    """A bar per generation of a job, whose losses must equal the losses of an undisturbed job."""
    assert all(abs(loss - calm.losses[step]) < 1e-12 for step, loss in account.losses.items())
    rows = [
        (f"generation {one.number}: {one.ranks} ranks", one.first_step, one.last_step, why)
        for one, why in zip(account.generations, ends, strict=True)
    ]
    return pictures.generations_scene(rows, steps=40, every=10, title="One job, three generations")


# ---- stations C and D ----
def first_wrong_losses(runs: Mapping[str, tuple[list[float], list[float]]], stop: int) -> tuple[str, Scene]:
    """Find which runs have a wrong loss in the first step after the stop, as a choice of 12.first; draw all losses."""
    at_once = [name for name, (calm, losses) in runs.items() if losses[stop] != calm[stop]]
    assert all(losses != calm for calm, losses in runs.values())
    is_two = at_once == [*runs][:2]
    said = "sampler and random numbers" if is_two else "all five" if len(at_once) == 5 else f"{len(at_once)} of them"
    title = "One part forgotten: by how much the loss is wrong"
    return said, pictures.loss_differences_scene(runs, stopped=stop, title=title)


def interval_scene(shares: Mapping[str, Mapping[int, float]], best: int) -> Scene:
    """The shares of the time that are lost, in %, by the number of steps between two saves; first their sum."""
    total = next(iter(shares.values()))
    return curves_scene(
        {name: [(n, one) for n, one in points.items() if n % 2 == 0] for name, points in shares.items()},
        x=Axis(name="steps between two saves", ticks=(4, 12, 24, 36, 48)),
        y=Axis(name="% of the time lost", ticks=(0, 5, 10, 15, 20)),
        marks=[(best, total[best], f"least: {best} steps")],
        paints={"together": "ink", "work": "weight_grad", "saves": "optimizer"},
        title="Saves cost more when they are many, work done again when they are few",
    )


# ---- stations E to H ----
def restart_parts(history: History) -> dict[str, float]:
    """The seconds of each part of the first restart, from the last new step before it to the next new step."""
    (_, beats, end, _, _), (start, later, _, _, times) = history[:2]
    reached = max(step for _, step, _, _ in beats)
    last = min(at for _, step, _, at in beats if step == reached)
    begun, met, loaded, _ = (max(column) for column in zip(*times, strict=True))
    again = min(at for _, step, _, at in later if step >= reached)
    marks = [last, end, start, begun, met, loaded, again]
    return {name: max(0.0, b - a) for name, a, b in zip(RESTART, marks, marks[1:], strict=False)}


def restart_scene(cold: Mapping[str, float], warm: Mapping[str, float]) -> tuple[str, Scene, str]:
    """Find the longest part of a restart, as a choice of 12.longest; draw all parts, and a line on warm processes.

    The seconds until the agent notices are a limit that somebody chose, so they are not among the guess's choices.
    """
    title = f"A restart with new processes: {sum(cold.values()):.1f} s from the last step to the next new one"
    text = (
        f"With forked processes the restart takes {sum(warm.values()):.1f} s. The longest part of it is "
        f"*{max(warm, key=warm.__getitem__)}*, with {max(warm.values()):.1f} s."
    )
    longest = max((name for name in cold if name != "notice"), key=cold.__getitem__)
    return longest, waterfall_scene(cold, kinds=RESTART, title=title), text


def replica_returns(run: Any) -> tuple[str, Scene, str]:
    """Find from where a replica that comes back gets its weights, as a choice of 12.heal; a picture, and a line."""
    (healed,) = (one for one in run.rounds if one.behind)
    scene = pictures.healing_scene(run.rounds, title="Four replicas: which took part, and which was healed")
    text = (
        f"Before step {healed.step + 1}, replica {healed.source} heals replica {healed.behind[0]}. "
        f"The replicas, compared with one process on the same samples: {run.check_equal()}."
    )
    lives = healed.source not in healed.behind
    return "from a replica that lives" if lives else "from the newest checkpoint", scene, text


def node_returns(happened: RestartedJob, alone: Mapping[int, float]) -> tuple[str, str]:
    """Find which finished steps were done again when a node died and came back, as a choice of 12.return.

    Returns also a line per generation, and one on the losses.
    """
    equal = sum(abs(loss - alone[step]) < 1e-9 for step, loss in happened.losses.items())
    done = [step for one in happened.generations for step in range(one.after + 1, one.last_step + 1)]
    again = [str(step) for step in sorted({*done}) if done.count(step) > 1]
    lines = [
        f"Generation {one.number}: {one.ranks} rank{'s' * (one.ranks > 1)}, steps {one.after + 1} to {one.last_step}."
        for one in happened.generations
    ]
    lines.append(f"{equal} of {len(alone)} losses are those of one undisturbed process, up to rounding.")
    said = f"steps {' and '.join(again)}" if len(again) > 1 else f"only step {again[0]}" if again else "none"
    return said, "\n\n".join(lines)
