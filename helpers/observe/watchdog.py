"""A watchdog for a training loop: what goes wrong without an error, in sentences.

Every rank makes one when its model is wrapped, and asks it between backward and the optimizer. Generator and memory are
those of the CPU; for a GPU take those of torch.cuda. After the loop call faulthandler.cancel_dump_traceback_later().

    loss.backward()
    print(*watchdog.step(loss), sep="\\n")
    optimizer.step()
"""

from __future__ import annotations

import faulthandler
import time
from functools import partial

import psutil
import torch
import torch.distributed as dist
from torch import Tensor, nn


def checksum(tensor: Tensor) -> int:
    """The sum of its bits, read as whole numbers, modulo 2**32: equal tensors have equal sums, whatever the order."""
    bits = tensor.detach().reshape(-1).view(torch.int32 if tensor.element_size() >= 4 else torch.int8)
    return bits.sum(dtype=torch.int32).item()


class Watchdog:
    """equal: of a name, whether all ranks of `group` hold that parameter alike; without it, all that is not sharded.
    Now and then each rank gives a row of numbers, and all judge the same table. Where no step comes for `patience`
    seconds, Python writes to `stacks`, a file or its number, where each thread stands, and without its lock: a
    process that runs on meanwhile may die of it. Make patience longer than any step. findings: kind to sentence."""

    def __init__(self, model: nn.Module, optimizer, group=None, *, equal=bool, every=10, patience=300.0, stacks=2):
        self.inner, self.group, self.every = getattr(model, "module", model), group, every
        self.wait = partial(faulthandler.dump_traceback_later, patience, file=stacks)
        self.named = {name: one for name, one in self.inner.named_parameters() if one.requires_grad}
        self.equal = {name: one for name, one in self.named.items() if equal(name) and not hasattr(one, "to_local")}
        self.findings, self.new, self.steps, self.passes, self.since = {}, [], 0, 0, None
        self.own, self.memory, self.alone = [], [], 0.0
        model.register_forward_hook(self._after_forward, with_kwargs=True)
        self.large = max(self.equal.values(), key=Tensor.numel, default=torch.zeros(1, requires_grad=True))
        self.large.register_hook(self._before_sync)
        held = {id(one) for part in optimizer.param_groups for one in part["params"]}
        lost = [name for name, one in self.named.items() if id(one) not in held]
        self._find("optimizer", lost, "the optimizer does not hold {0[0]}: make it once the model is wrapped or cut")
        self.wait()

    def step(self, loss: Tensor) -> list[str]:
        """loss: of this rank alone, of its last micro-batch. Returns what is new."""
        self.steps += 1
        bad = [] if loss.isfinite() else [*self._layers_not_finite(), "the loss itself"]
        self._find("nan", bad, f"the loss of step {self.steps} is {loss:.0f}; what is first like this: {{0[0]}}")
        self._find("no_sync", self.passes > 1, f"gradients went out {self.passes} times per step; take no_sync()")
        if self.steps % self.every == 0:
            self._judge(*self._gathered(loss))
            self.own, self.alone = [], 0.0
        self.passes, self.since, new, self.new = 0, time.perf_counter(), self.new, []
        self.wait()
        return new

    def _find(self, kind: str, found: object, sentence: str) -> None:
        if found and kind not in self.findings:
            self.findings[kind] = sentence.format(found)
            self.new.append(self.findings[kind])

    def _after_forward(self, model: nn.Module, args: tuple, kwargs: dict, output: object) -> None:
        """From the optimizer's step to here a rank's time is its own; in backward all wait for each other."""
        self.batch = args, kwargs
        self.passes += torch.is_grad_enabled() and getattr(model, "require_backward_grad_sync", False)
        self.own += [] if self.since is None else [1000 * (time.perf_counter() - self.since)]
        self.since = None

    def _before_sync(self, gradient: Tensor) -> None:
        """The gradient of the largest parameter as this rank alone has it."""
        if (self.steps + 1) % self.every == 0:
            self.alone += gradient.norm().item()

    @torch.no_grad()
    def _layers_not_finite(self) -> list[str]:
        """The same batch once more with an eye on each layer: it costs nothing while all is well."""
        seen = {}

        def look(name: str, layer: nn.Module, given: tuple, out: object) -> None:
            seen[name or "the model"] = not isinstance(out, Tensor) or out.isfinite().all()

        eyes = [layer.register_forward_hook(partial(look, name)) for name, layer in self.inner.named_modules()]
        self.inner(*self.batch[0], **self.batch[1])
        for eye in eyes:
            eye.remove()
        return [name for name, is_finite in seen.items() if not is_finite]

    def _gathered(self, loss: Tensor) -> tuple[list[list[float]], Tensor]:
        """Seven numbers, each a list over ranks; and checksums, (ranks, parameters)."""
        mine = [loss.item(), sum(self.own) / max(len(self.own), 1), max(self.own, default=0.0), self.alone]
        for gradients in (self.large.grad,), (one.grad for one in self.equal.values()):
            mine.append(nn.utils.get_total_norm(one for one in gradients if one is not None).item())
        mine += [checksum(torch.get_rng_state().view(torch.int64)), *map(checksum, self.equal.values())]
        mine = torch.tensor(mine, dtype=torch.float64, device=loss.device)
        table = mine.new_empty(dist.get_world_size(self.group), len(mine))
        dist.all_gather(list(table), mine, self.group)
        return table[:, :7].T.tolist(), table[:, 7:]

    def _judge(self, numbers: list[list[float]], sums: Tensor) -> None:
        losses, own, longest, alone, large, norms, states = numbers
        odd = [name for name, is_odd in zip(self.equal, (sums != sums[0]).any(0), strict=True) if is_odd]
        self._find("weights", odd, "ranks hold different weights where they must be equal, first in {0[0]}")
        self._find("gradient", not sum(norms) < float("inf"), "the loss is a number, and its gradient is none")
        said = f"a gradient is {large[0]:.2g} long and was at most {max(alone):.2g} on a rank alone: no mean, a sum"
        self._find("sum", 0 < 1.01 * max(alone) < large[0], said)
        are_replicas = len(losses) > 1 and len(self.equal) == len(self.named)  # each with a batch of its own
        self._find("batch", are_replicas and len(set(losses)) == 1, "all ranks have one loss: they read one batch")
        drops = any(part.training * part.p for part in self.inner.modules() if isinstance(part, nn.Dropout))
        self._find("dropout", are_replicas and drops and len(set(states)) == 1, "all ranks draw the same dropout masks")
        late, usual = own.index(max(own)), sorted(own)[(len(own) - 1) // 2]
        said = f"the others wait for rank {late}: {own[late]:.0f} ms before backward, {longest[late]:.0f} at most"
        self._find("late", own[late] > max(2 * usual, usual + 5), said)
        self.memory = [*self.memory[-4:], psutil.Process().memory_info().rss / 1e6 / self.every]
        grown = torch.tensor(self.memory).diff()
        self._find("memory", (grown > 0.1).sum() == 4 and grown.mean(), "memory grows by {0:.2f} MB per step")
