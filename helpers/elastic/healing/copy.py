"""A copy of the model in a process of its own, which goes on when others die, and heals those that come back."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.optim import AdamW

from helpers.elastic.healing.lighthouse import Round
from helpers.learner.words import book
from helpers.workloads import GPT, GPTConfig, characters, token_loss

ROWS, TOKENS = 16, 16  # of a global batch
TEXT = characters(4_000)
SHARES, MOMENTS = ("fewer", "all"), ("meet", "sum", "after")
say = book("healing")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """share: "fewer", where a dead copy's rows are left out, or "all", where the survivors share them.

    kill: a copy to the step in which it dies. moment: before the copies "meet", before the "sum", or "after" it.
    limit: seconds after which a member is given up that never connects, or neither sends nor closes its connection.
    """

    copies: int = 4
    steps: int = 12
    kill: dict[int, int] = field(default_factory=dict)
    back: dict[int, int] = field(default_factory=dict)
    share: str = "fewer"
    moment: str = "sum"
    limit: float = 10.0

    def __post_init__(self) -> None:
        whole = [self.copies, self.steps]
        for pairs in (self.kill, self.back):
            if not isinstance(pairs, dict) or not isinstance(self.limit, (int, float)):
                raise ValueError(say("kinds", kill=repr(self.kill), back=repr(self.back), limit=repr(self.limit)))
            whole += [*pairs, *pairs.values()]
        if any(type(one) is not int for one in whole):
            raise ValueError(say("whole", given=repr(next(one for one in whole if type(one) is not int))))
        known = self.share in SHARES and self.moment in MOMENTS
        if not (known and 1 <= self.copies <= ROWS and self.steps > 0 and self.limit > 0):
            raise ValueError(say("settings", rows=ROWS, shares=list(SHARES), moments=list(MOMENTS), **vars(self)))
        for copy, step in self.kill.items():
            if copy not in range(self.copies) or step not in range(self.steps):
                raise ValueError(say("kill", copy=copy, step=step, last=self.copies - 1, end=self.steps - 1))
            if all(self.kill.get(c, self.steps) <= step < self.back.get(c, self.steps) for c in range(self.copies)):
                raise ValueError(say("nobody", step=step))
        for copy, step in self.back.items():
            if not self.kill.get(copy, self.steps) < step < self.steps:
                raise ValueError(say("back", copy=copy, step=step, kill=str(self.kill)))


def fresh(seed: int) -> tuple[GPT, AdamW]:
    """A model that nobody has trained, and its optimizer."""
    torch.manual_seed(seed)
    model = GPT(GPTConfig.tiny(context=TOKENS)).double()
    return model, AdamW(model.parameters(), lr=3e-3, eps=1e-6)


def batch_of(rows: Tensor, step: int) -> tuple[Tensor, Tensor]:
    """These rows of a step's global batch: inputs and targets."""
    inputs, targets = TEXT.batch(step, ROWS, TOKENS)
    return inputs[rows], targets[rows]


def rows_of(copy: int, told: Round, settings: Settings) -> Tensor:
    """Which rows of the global batch this copy computes."""
    if settings.share == "all":
        return torch.arange(ROWS).tensor_split(len(told.members))[told.members.index(copy)]
    return torch.arange(ROWS).tensor_split(settings.copies)[copy]


class Copy:
    """`life`: the process's name at the lighthouse. `die`: is told where the copy is; for tests and lessons."""

    def __init__(self, number: int, life: str, store: dist.Store, settings: Settings, die: Callable[[str, int], None]):
        self.number, self.life, self.store, self.settings, self.die = number, life, store, settings, die
        seed = int(life.partition(".")[2])  # who comes back begins with other weights: healing replaces all
        self.model, self.optimizer = fresh(seed)
        self.steps, self.group, self.met = 0, None, -1

    def go_on(self) -> dict[str, Tensor]:
        """Until all steps are done; then the weights."""
        report, error = None, ""
        while True:
            told = self.ask(report, error)
            try:
                self.meet(told)
                self.heal(told)
                if told.step == self.settings.steps:
                    return self.model.state_dict()
                report, error = self.step(told), ""
            except RuntimeError as lost:  # gloo's: "Connection closed by peer"
                report, error = None, str(lost)
                self.group, self.met = None, -1  # closes our connections, so the neighbours need not wait for us

    def ask(self, report: dict | None, error: str) -> Round:
        told = {"steps": self.steps, "report": report, "error": error}
        self.store.set(f"{self.life}/ask", json.dumps(told))
        answer = json.loads(self.store.get(f"{self.life}/told"))
        self.store.delete_key(f"{self.life}/told")
        return Round(**{key: tuple(value) if isinstance(value, list) else value for key, value in answer.items()})

    def meet(self, told: Round) -> None:
        """Connect to the members of the quorum, unless we are. No key of an earlier group is met again."""
        self.die("meet", told.step)
        if self.met != told.group:
            store = dist.PrefixStore(f"group{told.group}", self.store)
            place = told.members.index(self.number)
            self.group = dist.ProcessGroupGloo(store, place, len(told.members), timedelta(seconds=self.settings.limit))
            self.met = told.group

    def heal(self, told: Round) -> None:
        """Weights, the optimizer's state and the step, broadcast by one that has them. The step comes last: who is cut
        off in between is still behind."""
        if not told.behind:
            return
        root, file = told.members.index(told.source), io.BytesIO()
        torch.save([self.model.state_dict(), self.optimizer.state_dict()], file)
        own = torch.frombuffer(file.getbuffer(), dtype=torch.uint8)
        size = torch.tensor([len(own)])
        self.group.broadcast(size, root).wait()
        live = own if self.number == told.source else torch.empty(int(size), dtype=torch.uint8)
        self.group.broadcast(live, root).wait()
        if self.number in told.behind:
            model, optimizer = torch.load(io.BytesIO(live.numpy().tobytes()))
            self.model.load_state_dict(model)
            self.optimizer.load_state_dict(optimizer)
            self.steps = told.step

    def add_up(self, message: Tensor) -> None:
        """In place, over all members. RuntimeError where one of them is gone."""
        self.group.allreduce(message).wait()

    def step(self, told: Round) -> dict:
        """One step of all members: the sum of their gradients over the number of samples that they have together."""
        samples = sum(len(rows_of(copy, told, self.settings)) for copy in told.members)
        rows = rows_of(self.number, told, self.settings)
        inputs, targets = batch_of(rows, told.step)
        loss = token_loss(self.model(inputs), targets) * len(rows) / samples
        self.optimizer.zero_grad()
        loss.backward()
        parameters = list(self.model.parameters())
        message = torch.cat([parameters_to_vector(one.grad for one in parameters), loss.detach()[None]])  # (P + 1,)
        self.die("sum", told.step)
        self.add_up(message)
        self.die("after", told.step)
        vector_to_parameters(message[:-1], [one.grad for one in parameters])
        self.optimizer.step()
        self.steps += 1
        weights = parameters_to_vector(parameters).detach().numpy().tobytes()
        return {"loss": message[-1].item(), "samples": samples, "digest": hashlib.sha256(weights).hexdigest()}
