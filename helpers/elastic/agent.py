"""The agent: starts a generation, listens to it, and after a death starts the next one, until the job is done."""

from __future__ import annotations

import itertools
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch.distributed as dist

from helpers.elastic.account import Account, Generation
from helpers.elastic.chaos import Kill
from helpers.elastic.crew import MEMBER, Crew, Member
from helpers.elastic.heartbeat import heard
from helpers.elastic.member import LIMIT, Orders, Task, newest, train
from helpers.elastic.regroup import regroup
from helpers.elastic.verdict import MAX_GAP, Listener, verdict
from helpers.ranks import process
from helpers.ranks.limits import folder_prefix
from helpers.ranks.sites import names_of
from helpers.ranks.transport import pack_call
from helpers.specs import Plan
from helpers.words import Words, book

say = book("elastic")
TICK = 0.05  # seconds between two looks at the heartbeats


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a Job was asked for."""

    plan: Plan
    spares: int
    steps: int
    save_every: int
    min_ranks: int
    max_restarts: int
    batch: int
    seed: int
    pace: float
    folder: Path | None


class Agent:
    """Runs in a thread of the notebook's kernel, as torchrun's agent is a process beside its ranks."""

    def __init__(self, settings: Settings):
        self.settings, self.problem = settings, None
        self.history: list[tuple[int, int, float, float]] = []
        self.generations: list[Generation] = []
        self.weights: dict = {}
        self.crew: Crew | None = None
        self.news, self.stopping, self.over = threading.Condition(), threading.Event(), threading.Event()
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.num_orders, self.scratch = 0, None
        self.thread = threading.Thread(target=self._run, daemon=True, name="elastic agent")

    # -- what the job asks -----------------------------------------------------------------------------------------
    @property
    def account(self) -> Account:
        return Account(history=tuple(self.history), generations=tuple(self.generations), weights=dict(self.weights))

    def order(self, kill: Kill) -> None:
        Orders.give(self.store, self.num_orders, kill)
        self.num_orders += 1

    def close(self) -> None:
        self.stopping.set()
        if self.thread.is_alive():
            self.thread.join()
        if self.scratch is not None:
            shutil.rmtree(self.scratch, ignore_errors=True)
            process.zygote(MEMBER).folder(self.scratch, keep=False)
            self.scratch = None

    # -- its thread ------------------------------------------------------------------------------------------------
    def _run(self) -> None:
        try:
            self.scratch = tempfile.mkdtemp(prefix=folder_prefix())
            process.zygote(MEMBER).folder(self.scratch, keep=True)
            self._generations()
        except Exception as problem:  # nobody would see it in this thread: `wait` raises it
            self.problem = problem
        finally:
            self.over.set()
            with self.news:
                self.news.notify_all()

    def _generations(self) -> None:
        told, alive = self.settings, self.settings.plan.world_size + self.settings.spares
        self.started = time.monotonic()
        for number in itertools.count():
            plan = regroup(told.plan, alive, told.batch)
            if plan is None or plan.world_size < told.min_ranks:
                raise RuntimeError(say("few", alive=alive, least=told.min_ranks, why=self.generations[-1].why))
            if number > told.max_restarts:
                raise RuntimeError(say("restarts", most=told.max_restarts, why=self.generations[-1].why))
            with self._crew(number, plan, alive) as crew:
                how, lost, why = self._watch(crew, number)
            self._note(number, plan, how, lost, why)
            if how in ("done", "stopped"):
                return
            alive -= len(lost)

    @contextmanager
    def _crew(self, number: int, plan: Plan, count: int) -> Iterator[Crew]:
        told, scratch = self.settings, Path(self.scratch)
        checkpoints = told.folder or scratch / "checkpoints"
        checkpoints.mkdir(parents=True, exist_ok=True)
        task = Task(
            generation=number, plan=plan, port=self.store.port, steps=told.steps, save_every=told.save_every,
            batch=told.batch, seed=told.seed, pace=told.pace, checkpoints=checkpoints, resume=newest(checkpoints),
            boards=scratch / f"boards{number}",
        )  # fmt: skip
        work = pack_call(train, (task,), {}, num_ranks=count)
        self.resumed = int(task.resume.name.rpartition("_")[2]) if task.resume else 0
        crew = Crew(work, count, self.scratch, partial(self._step, number))
        try:
            self.crew = crew
            yield crew
        finally:
            self.crew = None
            crew.end()

    def _step(self, number: int, row: tuple[int, float, float]) -> None:
        step, loss, at = row
        with self.news:
            self.history.append((number, step, loss, at - self.started))
            self.news.notify_all()

    def _watch(self, crew: Crew, number: int) -> tuple[str, list[int], Words]:
        """Until it ends: how, which ranks it cost, and the same in words."""
        listener, beats = Listener(), dist.PrefixStore(f"generation {number}", self.store)
        clock, last = 0.0, time.monotonic()
        while not self.stopping.is_set():
            crew.receive(TICK)
            now = time.monotonic()
            clock, last = clock + min(now - last, MAX_GAP), now
            if lost := crew.lost():
                return self._ended(crew, lost)
            if crew.is_done:
                self.weights = crew.ranks[0].value
                return "done", [], say["done"]
            if found := self._judge(crew, listener, beats):
                how = "hung" if "hung" in found.values() else "silent"
                return how, sorted(found), say[how].format(ranks=names_of(found))
            if not listener.beats and clock > 2 * LIMIT:
                return "unmet", [], say["unmet"].format(seconds=2 * LIMIT)
        return "stopped", [], say["stopped"]

    def _judge(self, crew: Crew, listener: Listener, beats: dist.Store) -> dict[int, str]:
        """The ranks that are hung or dead. Nobody is judged before all are in a step: they wait for each other."""
        said = {rank: heard(beats, rank) for rank in crew.ranks}
        if not said or any(beat is None or not beat.step for beat in said.values()):
            return {}
        for rank, beat in said.items():
            silent = rank in listener.signs and listener.signs[rank].silent > MAX_GAP
            works = bool(silent) and crew.ranks[rank].works()
            listener.listen(rank, beat, time.monotonic(), works=works)
        return {rank: what for rank, what in verdict(listener.signs).items() if what in ("hung", "dead")}

    @staticmethod
    def _ended(crew: Crew, lost: list[Member]) -> tuple[str, list[int], Words]:
        ranks = sorted(member.rank for member in lost if member.rank is not None)
        if lost[0].failure:
            failure = lost[0].failure
            text = Words.of(f"{failure.type_name}: ") + failure.words
            return "raised", ranks, say["raised"].format(ranks=names_of(ranks), text=text)
        code = crew.exit_code(lost[0])
        name = signal.Signals(-code).name if code is not None and code < 0 else str(code)
        return "died", ranks, say["died"].format(ranks=names_of(ranks), name=name)

    def _note(self, number: int, plan: Plan, how: str, lost: list[int], why: Words) -> None:
        steps = [step for generation, step, *_ in self.history if generation == number]
        first = self.resumed + 1
        last = max(steps, default=self.resumed)
        row = Generation(
            number=number, ranks=plan.world_size, first_step=first, last_step=last, why=why, how=how, lost=tuple(lost)
        )
        with self.news:
            self.generations.append(row)
            self.news.notify_all()
