"""Trains replicas of a model that go on without a restart when one dies, and heal it when it returns.

Each replica is a full copy of the model in a process of its own, and the replicas sum their gradients (data
parallelism). `train_replicas` starts, kills and restarts the processes, as chapter 12 of the course shows it. Each
process runs a `Replica`. Before every step the replicas ask the lighthouse (lighthouse.py), which answers all of them
with a `QuorumRound`: which replicas take part in the next step (its members), and which of them are behind. A replica
that is behind is healed: it receives the state of another one. `ReplicaRun.check_equal` proves that nothing was lost.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import signal
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.optim import AdamW

from helpers.elastic.agent import Crew
from helpers.elastic.lighthouse import Lighthouse, QuorumRound, words
from helpers.observe.equality import assert_equal
from helpers.ranks.processes.limits import folder_prefix
from helpers.ranks.processes.messages import pack_call, unpack
from helpers.workloads import GPT, GPTConfig, characters, token_loss, train_alone

ROWS, TOKENS = 16, 16  # sequences of a global batch, and their length
TEXT = characters(4_000)  # the training data
SHARES, MOMENTS = ("fewer", "all"), ("meet", "sum", "after")  # see ReplicaSettings
# Names of parameters -> absolute tolerance of `check_equal`. A key's bias adds the same to all scores of a query, which
# the softmax ignores. So its gradient is zero in theory, and only rounding errors move it.
TOLERANCES = {"*key.bias": 1e-9}
POLL_SECONDS = 0.002  # between two looks into the store
OnMoment = Callable[[str, int], None]  # called with one of MOMENTS and the step


@dataclass(frozen=True, kw_only=True)
class ReplicaSettings:
    """The settings of a run. Raises ValueError, with a sentence for the user, for impossible ones."""

    copies: int = 4  # replicas
    steps: int = 12
    kill: dict[int, int] = field(default_factory=dict)  # replica -> the step (from 0) in which it dies
    back: dict[int, int] = field(default_factory=dict)  # replica -> how many steps are done when it is started again
    share: str = "fewer"  # the rows of a dead replica are left out; or "all": the survivors share them
    # When a replica dies: before the replicas "meet" (connect), before the "sum" of gradients, or "after" the sum.
    moment: str = "sum"
    # Seconds after which a member counts as gone that neither connects, nor sends, nor closes its connection.
    limit: float = 10.0

    def __post_init__(self) -> None:
        integers = [self.copies, self.steps]
        for pairs in (self.kill, self.back):
            if not isinstance(pairs, dict) or not isinstance(self.limit, (int, float)):
                raise ValueError(words("kinds", kill=repr(self.kill), back=repr(self.back), limit=repr(self.limit)))
            integers += [*pairs, *pairs.values()]
        if wrong := [value for value in integers if type(value) is not int]:
            raise ValueError(words("whole", given=repr(wrong[0])))
        is_known = self.share in SHARES and self.moment in MOMENTS
        if not (is_known and 1 <= self.copies <= ROWS and self.steps > 0 and self.limit > 0):
            raise ValueError(words("settings", rows=ROWS, shares=list(SHARES), moments=list(MOMENTS), **vars(self)))
        for replica, step in self.kill.items():
            if replica not in range(self.copies) or step not in range(self.steps):
                raise ValueError(words("kill", copy=replica, step=step, last=self.copies - 1, end=self.steps - 1))
            # Whether every replica is dead in this step; one without an entry is never killed, or never comes back.
            if all(self.kill.get(r, self.steps) <= step < self.back.get(r, self.steps) for r in range(self.copies)):
                raise ValueError(words("nobody", step=step))
        for replica, step in self.back.items():
            if not self.kill.get(replica, self.steps) < step < self.steps:
                raise ValueError(words("back", copy=replica, step=step, kill=str(self.kill)))


def new_model(seed: int) -> tuple[GPT, AdamW]:
    """An untrained model in float64 and its optimizer."""
    torch.manual_seed(seed)
    model = GPT(GPTConfig.tiny(context=TOKENS)).double()
    # An eps above the default, 1e-8, lets Adam magnify the rounding errors of tiny gradients less.
    return model, AdamW(model.parameters(), lr=3e-3, eps=1e-6)


def batch_of(rows: Tensor, step: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets of these rows of a step's global batch."""
    inputs, targets = TEXT.batch(step, ROWS, TOKENS)
    return inputs[rows], targets[rows]


def rows_of(replica: int, quorum: QuorumRound, settings: ReplicaSettings) -> Tensor:
    """Which rows of the global batch this replica computes in a round, by the setting `share`."""
    if settings.share == "all":
        return torch.arange(ROWS).tensor_split(len(quorum.members))[quorum.members.index(replica)]
    return torch.arange(ROWS).tensor_split(settings.copies)[replica]


# -- in each process -------------------------------------------------------------------------------------------------
class Replica:
    """One replica of the model. It asks for a round, connects, is healed or heals, and steps, until all is done.

    number: of the replica. name: of the process, "2.0" for the first process of replica 2, "2.1" for the next. store:
    the lighthouse's key-value store, through which requests and answers go. on_moment: is called with (moment, step) at
    each of MOMENTS, and may kill the process.
    """

    def __init__(self, number: int, name: str, store: dist.Store, settings: ReplicaSettings, on_moment: OnMoment):
        self.number, self.process_name, self.store = number, name, store
        self.settings, self.on_moment = settings, on_moment
        # A replica that comes back begins with other weights, which proves that healing replaces all of them.
        self.model, self.optimizer = new_model(seed=int(name.partition(".")[2]))
        self.steps = 0  # done so far
        self.group, self.group_number = None, -1  # the members' process group, and the round that made it (-1: none)

    def train(self) -> dict[str, Tensor]:
        """Trains until all steps are done and returns the weights."""
        report, error = None, ""
        while True:
            quorum = self.request_round(report, error)
            try:
                self.connect(quorum)
                self.heal(quorum)
                if quorum.step == self.settings.steps:
                    return self.model.state_dict()
                report, error = self.step(quorum), ""
            except RuntimeError as lost:  # gloo's: "Connection closed by peer"
                report, error = None, str(lost)
                # This destroys the group and closes its connections, so that no other replica waits for this one.
                self.group, self.group_number = None, -1

    def request_round(self, report: dict | None, error: str) -> QuorumRound:
        """Asks the lighthouse and waits for its answer. report: what `step` returned; None if it raised `error`."""
        request = {"steps": self.steps, "report": report, "error": error}
        self.store.set(f"{self.process_name}/request", json.dumps(request))
        answer = self.store.get(f"{self.process_name}/round")
        self.store.delete_key(f"{self.process_name}/round")
        return msgspec.json.decode(answer, type=QuorumRound)

    def connect(self, quorum: QuorumRound) -> None:
        """Makes a process group of the quorum's members, unless this replica is in it."""
        self.on_moment("meet", quorum.step)
        if self.group_number != quorum.group:
            store = dist.PrefixStore(f"group{quorum.group}", self.store)  # no keys are shared with earlier groups
            rank, size = quorum.members.index(self.number), len(quorum.members)
            self.group = dist.ProcessGroupGloo(store, rank, size, timedelta(seconds=self.settings.limit))
            self.group_number = quorum.group

    def heal(self, quorum: QuorumRound) -> None:
        """Broadcasts weights, optimizer state and step from the source to the members that are behind.

        The step is set last, so that a replica whose healing was cut off is still behind.
        """
        if not quorum.behind:
            return
        root, file = quorum.members.index(quorum.source), io.BytesIO()
        torch.save([self.model.state_dict(), self.optimizer.state_dict()], file)
        local_state = torch.frombuffer(file.getbuffer(), dtype=torch.uint8)  # as bytes in a tensor
        size = torch.tensor([len(local_state)])
        self.group.broadcast(size, root).wait()
        state = local_state if self.number == quorum.source else torch.empty(int(size), dtype=torch.uint8)
        self.group.broadcast(state, root).wait()
        if self.number in quorum.behind:
            model, optimizer = torch.load(io.BytesIO(state.numpy().tobytes()), weights_only=True)
            self.model.load_state_dict(model)
            self.optimizer.load_state_dict(optimizer)
            self.steps = quorum.step

    def all_reduce(self, message: Tensor) -> None:
        """Adds up over all members, in place. Raises RuntimeError where one of them is gone."""
        self.group.allreduce(message).wait()

    def step(self, quorum: QuorumRound) -> dict:
        """One step of all members with the mean gradient over all their samples. Returns the report for the lighthouse.

        One message sums the gradients of all parameters and, as its last element, the loss.
        """
        num_samples = sum(len(rows_of(replica, quorum, self.settings)) for replica in quorum.members)
        rows = rows_of(self.number, quorum, self.settings)
        inputs, targets = batch_of(rows, quorum.step)
        loss = token_loss(self.model(inputs), targets) * len(rows) / num_samples
        self.optimizer.zero_grad()
        loss.backward()
        parameters = list(self.model.parameters())
        message = torch.cat([parameters_to_vector(one.grad for one in parameters), loss.detach()[None]])  # (P + 1,)
        self.on_moment("sum", quorum.step)
        self.all_reduce(message)
        self.on_moment("after", quorum.step)
        vector_to_parameters(message[:-1], [one.grad for one in parameters])
        self.optimizer.step()
        self.steps += 1
        weights = parameters_to_vector(parameters).detach().numpy().tobytes()
        return {"loss": message[-1].item(), "samples": num_samples, "digest": hashlib.sha256(weights).hexdigest()}


def run_replica(port: int, number: int, process_name: str, settings: ReplicaSettings) -> dict[str, Tensor]:
    """Runs in a process: is a replica until the end, or until the settings kill it. port: of the lighthouse's store."""

    def on_moment(moment: str, step: int) -> None:
        # Only the first process of a replica (".0") dies, and not the one that comes back.
        if moment == settings.moment and process_name.endswith(".0") and settings.kill.get(number) == step:
            os.kill(os.getpid(), signal.SIGKILL)

    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    return Replica(number, process_name, store, settings, on_moment).train()


# -- in the notebook -------------------------------------------------------------------------------------------------
@dataclass
class ReplicaRun:
    """The result of a run.

    rounds: each quorum and what came of it. weights: the weights of each replica that is alive at the end.
    """

    settings: ReplicaSettings
    rounds: tuple[QuorumRound, ...]
    weights: dict[int, dict[str, Tensor]]

    @property
    def losses(self) -> list[float]:
        """The loss of each step that was done, over all its samples."""
        return [one.loss for one in self.rounds if one.done]

    def check_equal(self) -> str:
        """Compares the run with one process that trained on exactly the same samples, and returns a sentence.

        All losses and the final weights must be equal, and the replicas' weights after each step. Raises
        AssertionError, which says where they are not.
        """
        for one in self.rounds:
            assert len(set(one.digests)) <= 1, f"after step {one.step + 1} the replicas' weights differ: {one}"
        losses, weights = trained_alone(self.rounds, self.settings)
        found = [{"losses": torch.tensor(self.losses, dtype=torch.float64)} | own for own in self.weights.values()]
        return assert_equal({"losses": losses} | weights, found, rtol=1e-10, atol=TOLERANCES)


def trained_alone(rounds: Sequence[QuorumRound], settings: ReplicaSettings) -> tuple[Tensor, dict[str, Tensor]]:
    """Losses and weights of one process that trains on the samples of each step that was done."""
    model, optimizer = new_model(seed=0)
    done = [one for one in rounds if one.done]
    batches = (batch_of(torch.cat([rows_of(r, one, settings) for r in one.members]), one.step) for one in done)
    losses = torch.tensor([*train_alone(model, optimizer, batches)], dtype=torch.float64)
    return losses, model.state_dict()


def train_replicas(**options) -> ReplicaRun:
    """Trains replicas of which some die and come back: `train_replicas(copies=4, steps=12, kill={2: 4}, back={2: 8})`.

    Here replica 2 is killed (SIGKILL) in its fifth step, and the others go on with that step at once. When 8 steps are
    done, it is started anew and healed. options: see ReplicaSettings, which raises ValueError for wrong ones.
    """
    settings, lighthouse = ReplicaSettings(**options), Lighthouse()
    with tempfile.TemporaryDirectory(prefix=folder_prefix()) as folder:
        crew = ReplicaCrew(settings, lighthouse, folder)
        try:
            for replica in range(settings.copies):
                crew.start_replica(replica)
            while crew.live_processes():
                crew.poll_once()
        finally:
            crew.end()
    # The round after the last step only tells the replicas that all steps are done.
    rounds = tuple(one for one in lighthouse.rounds if one.step < settings.steps)
    return ReplicaRun(settings, rounds, {one.rank: unpack(one.value) for one in crew.states if one.value is not None})


class ReplicaCrew(Crew):
    """One process per replica. For helpers.ranks each is alone in its world, so a death ends no other process."""

    def __init__(self, settings: ReplicaSettings, lighthouse: Lighthouse, folder: str):
        super().__init__(folder)
        self.settings, self.lighthouse = settings, lighthouse
        self.process_names: dict[int, str] = {}  # replica -> name of its present process

    def start_replica(self, replica: int) -> None:
        """Starts the first process of a replica, or the next one after a death."""
        num_before = sum(state.rank == replica for state in self.states)
        name = self.process_names[replica] = f"{replica}.{num_before}"
        arguments = (self.lighthouse.store.port, replica, name, self.settings)
        self.start(pack_call(run_replica, arguments, {}, num_ranks=1), replica, num_before, rank=replica)

    def live_processes(self) -> dict[int, str]:
        """Replica -> process name, of those that have not ended. Raises RuntimeError where one raised an exception."""
        if raised := next((state.failure for state in self.states if state.failure), None):
            raise RuntimeError(raised.traceback)
        return {state.rank: self.process_names[state.rank] for state in self.unfinished}

    def poll_once(self) -> None:
        """Starts the replicas that come back now, and answers when all live replicas have asked."""
        self.receive(POLL_SECONDS)
        for replica, name in self.live_processes().items():
            self.lighthouse.read_request(replica, name)
        requests = self.lighthouse.requests
        steps = max((request["steps"] for request in requests.values()), default=0)
        for replica in self.settings.back.keys() - self.live_processes().keys():
            if self.settings.back[replica] == steps:
                self.start_replica(replica)
        if (live := self.live_processes()) and live.keys() == requests.keys():
            self.lighthouse.answer(live)
