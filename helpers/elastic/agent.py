"""The agent: starts a generation, listens to it, and after a death starts the next one, until the job is done."""

from __future__ import annotations

import itertools
import json
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch.distributed as dist

from helpers.compose.checkpoint import newest
from helpers.compose.checkpoint.keeping import checkpoints
from helpers.elastic.account import Account, Generation
from helpers.elastic.chaos import Kill
from helpers.elastic.crew import MEMBER, Crew, Member
from helpers.elastic.heartbeat import heard
from helpers.elastic.member import train
from helpers.elastic.regrouping import regroup
from helpers.elastic.settings import Settings, say
from helpers.elastic.verdicts import MAX_GAP, Listener, verdict
from helpers.learner.words import Words
from helpers.ranks import process
from helpers.ranks.limits import folder_prefix
from helpers.ranks.sites import rank_names
from helpers.ranks.transport import pack_call, unpack
from helpers.specs import Plan

TICK = 0.05  # seconds between two looks at the heartbeats
UNMET = 60.0  # seconds until all ranks have begun a step
Ending = tuple[str, list[int], Words]  # how a generation ended, which ranks it cost, and both in words


class Agent:
    """Runs in a thread of the notebook's kernel, as torchrun's agent is a process beside its ranks."""

    def __init__(self, settings: Settings):
        self.settings, self.plan, self.problem, self.weights = settings, settings.plan, None, {}
        self.history: list[tuple[int, int, float, float]] = []
        self.generations: list[Generation] = []
        self.unsaved: dict[int, str] = {}
        self.crew: Crew | None = None
        self.news, self.stopping, self.over = threading.Condition(), threading.Event(), threading.Event()
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.num_orders, self.scratch = 0, None
        self.thread = threading.Thread(target=self._run, daemon=True, name="elastic agent")

    # -- what the job asks -----------------------------------------------------------------------------------------
    @property
    def account(self) -> Account:
        told = dict(generations=tuple(self.generations), unsaved=dict(self.unsaved), weights=self.weights)
        return Account(history=tuple(self.history), **told)

    def order(self, kill: Kill) -> None:
        self.store.set(f"order{self.num_orders}", json.dumps(asdict(kill)))
        self.num_orders += 1

    def trains(self) -> bool:
        """Whether the present generation has finished a step."""
        return self.crew is not None and bool(self.history) and self.history[-1][0] == len(self.generations)

    def wait_until_it_trains(self) -> None:
        with self.news:
            self.news.wait_for(lambda: self.over.is_set() or self.trains())
        if self.over.is_set():
            raise ValueError(say("kill.over"))

    def pid(self, rank: int) -> int:
        """Of a rank of the present generation. ProcessLookupError where that has ended in this moment."""
        if (crew := self.crew) is None or rank not in crew.ranks:
            raise ProcessLookupError
        return crew.ranks[rank].pid

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
        told, alive, why = self.settings, self.settings.ranks + self.settings.spares, None
        self.started = time.monotonic()
        for number in itertools.count():
            plan = regroup(told.plan, alive, told.batch)
            if plan is None or plan.world_size < told.min_ranks:
                raise RuntimeError(say("few" if alive else "none", alive=alive, least=told.min_ranks, why=why))
            if number > told.max_restarts:
                raise RuntimeError(say("restarts", most=told.max_restarts, why=why))
            self.plan = plan
            with self._crew(number, plan, alive) as (crew, resumed):
                how, lost, why = self._watch(crew, number)
            last = max((step for generation, step, *_ in self.history if generation == number), default=resumed)
            steps = dict(first_step=resumed + 1, last_step=last)
            ended = Generation(number=number, ranks=plan.world_size, **steps, why=why, how=how, lost=tuple(lost))
            with self.news:
                self.generations.append(ended)
                self.news.notify_all()
            if how in ("done", "stopped"):
                return
            alive -= len(lost)

    @contextmanager
    def _crew(self, number: int, plan: Plan, count: int) -> Iterator[tuple[Crew, int]]:
        """The processes, and after how many steps they begin."""
        scratch = Path(self.scratch)
        folder = self.settings.folder or scratch / "checkpoints"
        folder.mkdir(parents=True, exist_ok=True)
        found = newest(folder)
        resumed = found.steps if found else 0
        if not number and resumed >= self.settings.steps:
            raise ValueError(say("beyond", folder=folder, there=resumed))
        for path in (path for steps, path in checkpoints(folder).items() if steps > resumed):
            path.rename(path.with_name(path.name + ".damaged"))  # or the save of that step would find it there
        where = dict(port=self.store.port, folder=folder, boards=scratch / f"boards{number}")
        what = (self.settings, number, plan)
        work = pack_call(train, what, where | {"resume": found and found.folder}, num_ranks=count)
        self.crew = crew = Crew(work, count, self.scratch, partial(self._told, number))
        try:
            yield crew, resumed
        finally:
            self.crew = None
            crew.end()

    def _told(self, number: int, what: str, row: tuple) -> None:
        with self.news:
            if what == "unsaved":
                self.unsaved.update([row])
            else:
                step, loss, at = row
                self.history.append((number, step, loss, at - self.started))
            self.news.notify_all()

    def _watch(self, crew: Crew, number: int) -> Ending:
        listener, beats = Listener(), dist.PrefixStore(f"generation {number}", self.store)
        while not self.stopping.is_set():
            crew.receive(TICK)
            if lost := crew.lost():
                return self._ended(crew, lost)
            if crew.is_done:
                self.weights = unpack(crew.ranks[0].value)
                return "done", [], say["done"]
            if found := self._judge(crew, listener, beats, self.trains()):
                how = "hung" if "hung" in found.values() else "silent"
                return how, sorted(found), say[how].format(ranks=rank_names(found))
            if not listener.beats and crew.clock > UNMET:
                return "unmet", [], say["unmet"].format(seconds=UNMET)
        return "stopped", [], say["stopped"]

    @staticmethod
    def _judge(crew: Crew, listener: Listener, beats: dist.Store, trains: bool) -> dict[int, str]:
        """The ranks that are hung or dead. Nobody is judged before all are in a step, since they wait for each other,
        nor after its work: then its heart stops, too."""
        said = {rank: heard(beats, rank) for rank, member in crew.ranks.items() if not member.done}
        if not said or any(beat is None or not (beat.step or trains) for beat in said.values()):
            return {}
        for rank, beat in said.items():
            silent = rank in listener.signs and listener.signs[rank].silent > MAX_GAP
            listener.listen(rank, beat, time.monotonic(), works=silent and crew.ranks[rank].works())
        signs = {rank: listener.signs[rank] for rank in said}
        return {rank: what for rank, what in verdict(signs).items() if what in ("hung", "dead")}

    @staticmethod
    def _ended(crew: Crew, lost: list[Member]) -> Ending:
        ranks, failure = sorted(member.rank for member in lost if member.rank is not None), lost[0].failure
        if failure:
            text = Words.of(f"{failure.type_name}: ") + failure.words
            return "raised", ranks, say["raised"].format(ranks=rank_names(ranks), text=text)
        code = crew.zygote.exit_status(lost[0].pid)
        name = signal.Signals(-code).name if code is not None and code < 0 else str(code)
        return "died", ranks, say["died"].format(ranks=rank_names(ranks), name=name)
