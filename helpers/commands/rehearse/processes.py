"""Starts the ranks of a rehearsal, watches them from outside, and ends them whatever they do.

The engine (helpers/ranks) runs ranks for the notebooks, and its parts are used here. A zygote is a process that has
imported torch and from which ranks are forked. Here the ranks are forked in turn from two zygotes, in which Python
hashes strings differently, so that a set of strings has another order on every second rank. On a cluster each rank has
an order of its own. A `RankState` is what a rank has sent so far. `Watch` waits until the ranks are done, failed or
hang. Each rank gets a practice card, a simulated GPU.
"""

from __future__ import annotations

import glob
import os
from typing import Any

from helpers.observe.torchrun import free_port
from helpers.ranks.board.errors import RankError, causes
from helpers.ranks.board.report import Report as EngineReport
from helpers.ranks.board.watch import SETTLE_SECONDS, RankState, Watch
from helpers.ranks.nccl import NcclVerdict, verdicts_of
from helpers.ranks.processes import process
from helpers.ranks.processes.limits import available_memory, load_per_core
from helpers.ranks.processes.messages import pack_call
from helpers.ranks.processes.spec import hash_seed, process_seed, rank_spec, torchrun_variables

RANK = "helpers.commands.rehearse.on_rank"  # the module that the zygote has imported before it forks ranks
# File and function in which a rank waits for another launch of ranks by the script, or for the end of one.
BETWEEN_LAUNCHES = (os.path.join(os.path.dirname(__file__), "spawning.py"), "_wait_for")
END_LIMIT = 1.0  # seconds that an interrupted rank gets for its last notes
REFRESH_SECONDS = 0.4  # that the ranks get to say where they are
SECOND_ZYGOTE_BYTES = 1_000_000_000  # that must be free for a second zygote


def _run(task: dict[str, Any]) -> int:
    """Run the script on a rank. task: the fields of a ScriptTask. Returns the script's exit code."""
    from helpers.commands.rehearse import on_rank  # imports torch, which the process that watches does not need

    return on_rank.run(on_rank.ScriptTask(**task))


class RehearsalRank(RankState):
    """One rank. Its first message, that it is ready, does not end its task, since the script follows."""

    def take(self, message: tuple, now: float) -> None:
        """Takes a message of the rank. Its first item is the kind."""
        if message[0] != "ready":
            super().take(message, now)


class RehearsalProcesses(Watch):
    """The ranks of one rehearsal, `nproc` on each of `nnodes` nodes. Used in a `with`, at whose end they are killed.

    path, args: the script and its arguments. folder: of these ranks alone. memory: bytes that a card says it has.
    card_bytes: bytes that it can hold, which is less if this machine has less. seed: from which the ranks' random seeds
    and hash seeds are derived. same_order: why sets have one order on all ranks, "chosen" or "memory", or "".
    After `watch`: places, sentences that say where each rank is; deaths, sentences that say how and where each rank
    died whose process ended; exit_codes, of those ranks; causes, the ranks that failed by themselves; verdicts, what
    NCCL would have done.
    """

    def __init__(
        self, path: str, args: tuple[str, ...], *, nproc: int, nnodes: int, folder: str, card_bytes: int, memory: int,
        seed: int,
    ):  # fmt: skip
        self.folder, self.card_bytes = folder, card_bytes
        world, port = nproc * nnodes, free_port()
        task = {"path": path, "args": args, "folder": folder, "cwd": os.getcwd(), "memory": memory}
        task["gpus_of_node"] = nproc
        zygotes, self.same_order = _zygotes(world, hash_seed(seed))
        members = []
        for rank in range(world):
            # NODE_RANK is not torchrun's, but some scripts read it.
            variables = torchrun_variables(rank, world, per_node=nproc, port=port)
            variables |= {"NODE_RANK": variables["GROUP_RANK"], "TORCHELASTIC_RUN_ID": "rehearsal"}
            card = {"device": "card", "card_bytes": card_bytes}
            spec = rank_spec(rank, world, folder, seed=process_seed(seed, rank), variables=variables, **card)
            pid, conn = zygotes[rank % len(zygotes)].fork(spec)
            members.append(RehearsalRank(rank, conn, pid))
            conn.send(("call", pack_call(_run, [task], {}, num_ranks=world)))  # _run(task), without keyword arguments
        super().__init__(members)

    def is_stuck(self, state: RankState) -> bool:
        """The same of a rank that waits between two launches, which it does for ranks that are stuck themselves."""
        if _is_between_launches(state):
            return any(Watch.is_stuck(self, one) for one in self.unfinished)
        return super().is_stuck(state)

    def __enter__(self) -> RehearsalProcesses:
        return self

    def watch(self, limit: float) -> tuple[str, RankError | None]:
        """'ok', 'failed', 'hang', 'timeout' or 'interrupted', and the engine's sentence unless it is 'ok'."""
        try:
            verdict = self.wait_for_verdict(limit)
            if verdict == "failed":
                # Other ranks may fail too, later on a busy machine, and their errors belong to the report.
                self.settle_or_wait(SETTLE_SECONDS * load_per_core())
            if verdict != "ok":
                self.refresh(REFRESH_SECONDS)
        except KeyboardInterrupt:
            verdict = "interrupted"
        # Without the ranks that no function runs on now. cell=None: the ranks run a script and no cell of a notebook.
        busy = [state for state in self.states if not _is_between_launches(state)] or self.states
        report = EngineReport(busy, cell=None, folder=self.folder, world_size=len(self.states))
        report.exit_codes = process.exit_codes(self.states)
        error = None if verdict == "ok" else report.error(verdict, seconds=self.clock)
        self.places, self.deaths = report.all_places(), report.death_lines()
        self.exit_codes = report.exit_codes
        self.causes = causes(self.states)
        self.verdicts = _verdicts(self.folder)  # before the ranks end, while those that hang are still in their calls
        self.announce_end()
        self.settle(END_LIMIT)
        return verdict, error

    def __exit__(self, *_: Any) -> None:
        process.end_all(self.states)


def _is_between_launches(state: RankState) -> bool:
    return bool(state.where and state.where.frames) and state.where.frames[-1][::2] == BETWEEN_LAUNCHES


def _zygotes(world: int, second_hash_seed: int) -> tuple[list[process.ZygoteClient], str]:
    """The zygotes from which the ranks are forked in turn, and why there is only one, as RehearsalProcesses says."""
    if world == 1:
        return [process.zygote(RANK)], ""
    if process.is_hash_seed_chosen():
        return [process.zygote(RANK)], "chosen"
    if available_memory() < SECOND_ZYGOTE_BYTES:
        return [process.zygote(RANK)], "memory"
    process.zygote()  # starts at the same time as the second one
    try:
        process.zygote(hash_seed=second_hash_seed)
        first, second = process.zygote(RANK), process.zygote(RANK, hash_seed=second_hash_seed)
        second.wait_until_ready()
        return [first, second], ""
    except (RuntimeError, OSError):  # it did not start, for example for lack of memory
        return [process.zygote(RANK)], "memory"


def _verdicts(folder: str) -> list[NcclVerdict]:
    """What NCCL would have done, judged from the journals in which all ranks wrote down their operations."""
    worlds = sorted(glob.glob(os.path.join(folder, "world*")))
    return [verdict for world in worlds for verdict in verdicts_of(world, final=True)]  # final: nothing more follows
