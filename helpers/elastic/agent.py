"""Runs an elastic job: starts a generation of processes, watches it, and after a death starts the next one.

A generation is the set of processes that train together until one of them dies or all are done. The agent of a `Job`
(job.py) runs in a thread of the notebook's process, while torchrun's agent is a process of its own. It starts a `Crew`,
the processes of a generation, reads their heartbeats from a key-value store (heartbeat.py), and ends them all
when one has died or hangs. Then it finds a plan (how the model is spread over ranks) for the processes that are left,
and starts the next generation from the newest checkpoint.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import psutil
import torch.distributed as dist

from helpers.compose.checkpoint import newest
from helpers.compose.checkpoint.saving import checkpoint_folders
from helpers.elastic.account import Account, Generation
from helpers.elastic.chaos import Kill
from helpers.elastic.heartbeat import MAX_GAP, Listener, last_beat, verdict
from helpers.elastic.rendezvous import regroup
from helpers.elastic.settings import ElasticSettings, words
from helpers.elastic.worker import run_generation
from helpers.learner.words import Words
from helpers.ranks.board.errors import causes, has_runnable_thread
from helpers.ranks.board.sites import rank_names
from helpers.ranks.board.watch import RankState, Watch
from helpers.ranks.processes import process
from helpers.ranks.processes.limits import folder_prefix
from helpers.ranks.processes.messages import pack_call, unpack
from helpers.ranks.processes.spec import BASE_SEED, process_seed, rank_spec
from helpers.specs import Plan

WORKER_MODULE = "helpers.elastic.worker"  # the processes are forked from one that has imported this
END_SECONDS = 5.0  # in which all killed processes are expected to be gone
SETTLE_SECONDS = 0.3  # time for the cause of a failure to arrive after a consequence of it did
POLL_SECONDS = 0.05  # between two looks at the heartbeats
FIRST_STEP_TIMEOUT = 60.0  # seconds until all ranks must have begun a step
# How a generation ended: "done", "stopped" (the job was closed), "died", "raised", "hung", "silent" (a rank sent no
# heartbeat) or "unmet" (not all ranks began a step in time); the ranks that it cost; and why, as a sentence in every
# language.
Ending = tuple[str, list[int], Words]


@dataclass
class RankProcess(RankState):
    """One process, with what is known of it. rank: None until the rendezvous has given it one, and for a spare.

    A spare is a process that got no rank, and waits until a later generation needs it.
    """

    # Called with the kind and the content of each report: "step", a finished step, or "unsaved", a failed checkpoint.
    on_report: Callable[[str, tuple], None] | None = None
    has_joined: bool = False  # whether the rendezvous has answered it
    cpu_seconds: float = 0.0  # of user and system time, as of the last call of is_working

    def take(self, message: tuple, now: float) -> None:
        """Handles a message of the process. RankState knows those that every rank sends, such as "done"."""
        match message:
            case ("rank", rank):
                self.rank, self.has_joined = rank, True
            case ("step" | "unsaved" as kind, row):
                self.on_report(kind, row)
            case ("ready", _):
                pass  # the process is forked, and its work follows
            case _:
                super().take(message, now)

    @property
    def is_spare(self) -> bool:
        return self.has_joined and self.rank is None

    def is_working(self) -> bool:
        """Whether the process has used a core since the last call, or one of its threads wants one or waits for a disk.

        All threads are asked, since on a busy machine the thread of the heartbeats may wait for a core while the main
        thread sleeps.
        """
        with contextlib.suppress(psutil.Error):
            info = psutil.Process(self.pid)
            before, self.cpu_seconds = self.cpu_seconds, sum(info.cpu_times()[:2])  # user and system
            return self.cpu_seconds > before or has_runnable_thread(self.pid)
        return False


class Crew(Watch):
    """The processes of one generation.

    It is a `Watch` of the engine (helpers/ranks/board): its `receive` takes the messages of the processes, its `states`
    have what is known of each. They are forked from a zygote, a process that has imported torch already.

    folder: for their logs. on_report: see RankProcess; None where the processes report nothing.
    """

    def __init__(self, folder: str, on_report: Callable[[str, tuple], None] | None = None):
        super().__init__([])
        self.folder, self.on_report = folder, on_report

    def start(self, work: bytes, index: int, generation: int, rank: int | None = None) -> None:
        """Starts a process that does `work`, a function call packed by `pack_call`. It is in no process group yet.

        generation: how often a process with this index was started before. A new process draws other random numbers
        than the one in whose place it is, as after a restart on a cluster. rank: None if the rendezvous will give it.
        """
        spec = rank_spec(index, 1, self.folder, seed=process_seed(BASE_SEED, index, generation))
        pid, conn = process.zygote(WORKER_MODULE).fork(spec)
        self.states.append(RankProcess(rank, conn, pid, on_report=self.on_report))
        conn.send(("call", work))

    @property
    def ranks(self) -> dict[int, RankProcess]:
        return {state.rank: state for state in self.states if state.rank is not None}

    @property
    def is_done(self) -> bool:
        return all(state.done or state.is_spare for state in self.states)

    def lost(self) -> list[RankProcess]:
        """The processes that ended before their work was done and are to blame for it. Spares do not count.

        A process that died is to blame. Of those that raised, only the ones whose error is no consequence: an error
        such as "connection closed by peer" only says that another process left.
        """
        end = self.clock + SETTLE_SECONDS
        # `failed` are those that died or raised; one with a value has done its work before.
        while failed := [state for state in self.failed if not state.is_spare and state.value is None]:
            to_blame = [state for state in failed if not state.failure] or causes(failed)
            if to_blame or self.clock >= end:
                return to_blame or failed[:1]  # where no cause came in time, one consequence stands for it
            self.receive(0.02)
        return []

    def end(self) -> None:
        """Kills all processes, and returns when the last one is gone."""
        process.end_all(self.states, END_SECONDS)


class Agent:
    """One job.

    plan: of the present generation. problem: the error that made the job give up, or None. weights: of the trained
    model, once it is done. changed: is notified after each step and generation. has_ended: is set when the job is done
    or has given up.
    """

    def __init__(self, settings: ElasticSettings):
        self.settings, self.plan, self.problem, self.weights = settings, settings.plan, None, {}
        self.history: list[tuple[int, int, float, float]] = []  # (generation, step, loss, seconds since the start)
        self.generations: list[Generation] = []  # those that have ended
        self.unsaved: dict[int, str] = {}  # step -> why its checkpoint failed
        self.crew: Crew | None = None  # the processes of the present generation
        self.changed, self.stop_requested, self.has_ended = threading.Condition(), threading.Event(), threading.Event()
        # Port 0 means any free one.
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.num_kills, self.temp_folder = 0, None  # num_kills: how many planned deaths are in the store
        self.thread = threading.Thread(target=self._run, daemon=True, name="elastic agent")

    # -- what Job calls ------------------------------------------------------------------------------------------------
    @property
    def account(self) -> Account:
        """The result so far."""
        fields = dict(generations=tuple(self.generations), unsaved=dict(self.unsaved), weights=self.weights)
        return Account(history=tuple(self.history), **fields)

    def schedule_kill(self, kill: Kill) -> None:
        """Puts a kill into the store, where the ranks find it."""
        self.store.set(f"kill{self.num_kills}", json.dumps(asdict(kill)))
        self.num_kills += 1

    def is_training(self) -> bool:
        """Whether the present generation, whose number is that of the ended ones, has finished a step."""
        return self.crew is not None and bool(self.history) and self.history[-1][0] == len(self.generations)

    def wait_until_training(self) -> None:
        """Waits until a generation has finished a step. Raises ValueError where the job ends before."""
        with self.changed:
            self.changed.wait_for(lambda: self.has_ended.is_set() or self.is_training())
        if self.has_ended.is_set():
            raise ValueError(words("kill.over"))

    def pid(self, rank: int) -> int:
        """The process of a rank of the present generation. Raises ProcessLookupError if that has just ended."""
        if (crew := self.crew) is None or rank not in crew.ranks:
            raise ProcessLookupError
        return crew.ranks[rank].pid

    def close(self) -> None:
        """Ends all processes and removes the temporary folder."""
        self.stop_requested.set()
        if self.thread.is_alive():
            self.thread.join()
        if self.temp_folder is not None:
            shutil.rmtree(self.temp_folder, ignore_errors=True)
            process.zygote(WORKER_MODULE).remove_later(self.temp_folder, wanted=False)
            self.temp_folder = None

    # -- the agent's thread --------------------------------------------------------------------------------------------
    def _run(self) -> None:
        """Run by the thread: make the folder, and run generations until the job ends."""
        try:
            self.temp_folder = tempfile.mkdtemp(prefix=folder_prefix())
            process.zygote(WORKER_MODULE).remove_later(self.temp_folder)  # if this process dies without doing so
            self._run_generations()
        except Exception as problem:  # nobody would see it in this thread, so Job.wait raises it
            self.problem = problem
        finally:
            self.has_ended.set()
            with self.changed:
                self.changed.notify_all()

    def _run_generations(self) -> None:
        """Raises RuntimeError where too few processes are left, or after too many restarts."""
        settings = self.settings
        # How many processes are left, and why the last generation ended.
        alive, why = settings.ranks + settings.spares, None
        self.started = time.monotonic()
        for number in itertools.count():
            plan = regroup(settings.plan, alive, settings.batch)
            if plan is None or plan.world_size < settings.min_ranks:
                raise RuntimeError(words("few" if alive else "none", alive=alive, least=settings.min_ranks, why=why))
            if number > settings.max_restarts:
                raise RuntimeError(words("restarts", most=settings.max_restarts, why=why))
            self.plan = plan
            # resumed: the steps that the checkpoint has.
            with self._started_crew(number, plan, alive) as (crew, resumed):
                how, lost, why = self._watch(crew, number)
            # The last step that this generation finished.
            last = max((step for generation, step, *_ in self.history if generation == number), default=resumed)
            steps = dict(first_step=resumed + 1, last_step=last)
            ended = Generation(number=number, ranks=plan.world_size, **steps, why=why, how=how, lost=tuple(lost))
            with self.changed:
                self.generations.append(ended)
                self.changed.notify_all()
            if how in ("done", "stopped"):
                return
            alive -= len(lost)

    @contextmanager
    def _started_crew(self, number: int, plan: Plan, count: int) -> Iterator[tuple[Crew, int]]:
        """Starts the `count` processes of a generation. Inside this context they run; afterwards they are ended.

        Yields the crew, and the number of steps in the checkpoint from which it goes on.
        """
        temp_folder = Path(self.temp_folder)
        folder = self.settings.folder or temp_folder / "checkpoints"
        folder.mkdir(parents=True, exist_ok=True)
        found = newest(folder)
        resumed = found.steps if found else 0
        if not number and resumed >= self.settings.steps:
            raise ValueError(words("beyond", folder=folder, there=resumed))
        # Later checkpoints than the newest good one are damaged. The save of the same step must not find them there.
        for path in (path for steps, path in checkpoint_folders(folder).items() if steps > resumed):
            path.rename(path.with_name(path.name + ".damaged"))
        options = dict(port=self.store.port, folder=folder, boards=temp_folder / f"boards{number}")
        options["resume"] = found and found.folder  # None without a checkpoint
        work = pack_call(run_generation, (self.settings, number, plan), options, num_ranks=count)
        self.crew = crew = Crew(self.temp_folder, partial(self._on_report, number))
        try:
            for index in range(count):
                crew.start(work, index, number)
            yield crew, resumed
        finally:
            self.crew = None
            crew.end()

    def _on_report(self, number: int, kind: str, row: tuple) -> None:
        """Records a finished step, or a checkpoint that failed, of generation `number`."""
        with self.changed:
            if kind == "unsaved":
                self.unsaved.update([row])  # row: (step, why)
            else:
                step, loss, at = row
                self.history.append((number, step, loss, at - self.started))
            self.changed.notify_all()

    def _watch(self, crew: Crew, number: int) -> Ending:
        """Waits until a generation ends."""
        # A Listener remembers when each rank's last heartbeat came, and when the rank last made progress.
        listener, beats = Listener(), dist.PrefixStore(f"generation {number}", self.store)
        while not self.stop_requested.is_set():
            crew.receive(POLL_SECONDS)  # handles messages of the processes, for at most this time
            if lost := crew.lost():
                return self._failure(lost)
            if crew.is_done:
                self.weights = unpack(crew.ranks[0].value)
                return "done", [], words["done"]
            if found := self._hung_or_dead(crew, listener, beats, self.is_training()):
                how = "hung" if "hung" in found.values() else "silent"
                return how, sorted(found), words[how].format(ranks=rank_names(found))
            # As long as one rank has not begun a step, no heartbeat of any rank is judged or remembered.
            if not listener.beats and crew.clock > FIRST_STEP_TIMEOUT:
                return "unmet", [], words["unmet"].format(seconds=FIRST_STEP_TIMEOUT)
        return "stopped", [], words["stopped"]

    @staticmethod
    def _hung_or_dead(crew: Crew, listener: Listener, beats: dist.Store, is_training: bool) -> dict[int, str]:
        """The ranks that are hung or dead according to their heartbeats.

        No rank is judged before all are in a step, since they wait for each other until then, and none after its work
        is done, since its heartbeat then stops as well.
        """
        last = {rank: last_beat(beats, rank) for rank, state in crew.ranks.items() if not state.done}
        # A beat with step 0 comes from a rank that has not begun its first step.
        if not last or any(beat is None or not (beat.step or is_training) for beat in last.values()):
            return {}
        for rank, beat in last.items():
            # Only of a rank without recent beats the system is asked whether its process uses a core.
            is_silent = rank in listener.statuses and listener.statuses[rank].silent > MAX_GAP
            listener.listen(rank, beat, time.monotonic(), is_working=is_silent and crew.ranks[rank].is_working())
        verdicts = verdict({rank: listener.statuses[rank] for rank in last})
        return {rank: word for rank, word in verdicts.items() if word in ("hung", "dead")}

    @staticmethod
    def _failure(lost: list[RankProcess]) -> Ending:
        """The ending of a generation in which these processes raised or died."""
        # A process that ended before the rendezvous has no rank.
        ranks, failure = sorted(state.rank for state in lost if state.rank is not None), lost[0].failure
        if failure:
            text = Words.of(f"{failure.type_name}: ") + failure.words
            return "raised", ranks, words["raised"].format(ranks=rank_names(ranks), text=text)
        codes = [process.exit_status(state.pid) for state in lost]
        names = [signal.Signals(-code).name if code is not None and code < 0 else str(code) for code in codes]
        return "died", ranks, words["died"].format(ranks=rank_names(ranks), names=[*dict.fromkeys(names)])
