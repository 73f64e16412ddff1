"""Starts, hears and ends the processes of one generation, for the agent and for jobs that go on without a restart.

A generation is the set of processes that train together until one of them dies. The agent (agent.py) makes a `Crew` for
each. A `Crew` is a `Watch` of the engine (helpers/ranks/board): its `receive` takes the messages of the processes, its
`states` have what is known of each. The processes are forked from a zygote, one that has imported torch already.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psutil

from helpers.ranks.board.errors import causes
from helpers.ranks.board.watch import RankState, Watch
from helpers.ranks.processes import process
from helpers.ranks.processes.spec import BASE_SEED, process_seed, rank_spec

WORKER_MODULE = "helpers.elastic.worker"  # the processes are forked from one that has imported this
END_SECONDS = 5.0  # in which all killed processes are expected to be gone
SETTLE_SECONDS = 0.3  # time for the cause of a failure to arrive after a consequence of it did


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
        """Whether the process has used a core since the last call, or wants one, or waits for a disk."""
        with contextlib.suppress(psutil.Error):
            info = psutil.Process(self.pid)
            before, self.cpu_seconds = self.cpu_seconds, sum(info.cpu_times()[:2])  # user and system
            return self.cpu_seconds > before or info.status() in (psutil.STATUS_RUNNING, psutil.STATUS_DISK_SLEEP)
        return False


class Crew(Watch):
    """`count` processes that each do `work`, a function call packed by `pack_call`.

    folder: for their logs. on_report: see RankProcess. generation: the number of this crew in its job.
    """

    def __init__(
        self, work: bytes, count: int, folder: str, on_report: Callable[[str, tuple], None], *, generation: int = 0
    ):
        self.zygote, processes = process.zygote(WORKER_MODULE), []  # the zygote: a connection to that process
        for index in range(count):
            pid, conn = self.zygote.fork(worker_spec(index, folder, generation))
            processes.append(RankProcess(None, conn, pid, on_report=on_report))  # None: it has no rank yet
            conn.send(("call", work))
        super().__init__(processes)

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


def worker_spec(index: int, folder: str, generation: int) -> dict[str, Any]:
    """What the engine needs to fork a process that belongs to no process group yet.

    generation: how often a process with this index was started before. A new process draws other random numbers than
    the one in whose place it is, as after a restart on a cluster.
    """
    return rank_spec(index, 1, folder, seed=process_seed(BASE_SEED, index, generation))
