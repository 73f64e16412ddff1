"""Finds what goes wrong in a training loop without an error, and says it in a sentence.

Every rank makes a `Watchdog` when its model is wrapped, and calls it between backward and the optimizer:

    loss.backward()
    print(*watchdog.step(loss), sep="\\n")
    optimizer.step()

Call faulthandler.cancel_dump_traceback_later() after the loop, or the end of the job is taken for a hang. Random state
and memory are those of the CPU; for a job on GPUs, read those of torch.cuda instead. The file imports no other file of
this course, so that it can be copied into a project.

It finds: parameters that the optimizer does not hold; a loss or a gradient that is inf or NaN; a step that sends
gradients more than once; replicas whose weights differ; gradients that were summed and not averaged; ranks that read
the same batch or draw the same dropout masks; a rank for which the others wait; memory that grows; a hang.
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
    """The sum of a tensor's bits, read as integers, modulo 2**32.

    Equal tensors have equal sums on every machine, because integers are added without rounding.
    """
    bits = tensor.detach().reshape(-1).view(torch.int32 if tensor.element_size() >= 4 else torch.int8)
    return bits.sum(dtype=torch.int32).item()


class Watchdog:
    """Watches one rank, and compares the ranks of `group` every few steps.

    equal(name): whether all ranks must hold this parameter alike. By default it is `bool`, which is true for any name.
    DTensors are sharded and never compared. every: after how many steps the ranks exchange a row of numbers, so that
    all judge the same table. Where no step comes for `patience` seconds, Python writes the stack of each thread to
    `stacks`, an open file or a file descriptor such as 2, stderr. It reads the stacks without holding the GIL, so a
    process that was only slow and runs on meanwhile may crash: make patience longer than any step. `findings` maps the
    kind of each finding, such as "weights", to its sentence.
    """

    def __init__(self, model: nn.Module, optimizer, group=None, *, equal=bool, every=10, patience=300.0, stacks=2):
        self.model, self.group, self.every = getattr(model, "module", model), group, every  # .module: without DDP
        self.wait = partial(faulthandler.dump_traceback_later, patience, file=stacks)  # a call starts the time anew
        self.parameters = {name: one for name, one in self.model.named_parameters() if one.requires_grad}
        self.replicated = {
            name: one for name, one in self.parameters.items() if equal(name) and not hasattr(one, "to_local")
        }  # only a DTensor has to_local
        # syncs: how often the present step sent gradients. step_end: when the last step ended; None once the forward
        # after it has run, so that only the first micro-batch of a step is timed.
        self.findings, self.new_findings, self.steps, self.syncs, self.step_end = {}, [], 0, 0, None
        # Since the last exchange: milliseconds from the end of a step to the end of the next forward, and the norm of
        # the largest parameter's gradient before it is averaged. mb_per_step: at the last 5 exchanges, this process's
        # memory divided by `every`, so that the difference of two exchanges is the growth per step.
        self.local_ms, self.mb_per_step, self.local_norm = [], [], 0.0
        model.register_forward_hook(self._after_forward, with_kwargs=True)
        # Where no parameter is replicated, a 0 stands for the largest one, so that each row has the same numbers.
        self.largest = max(self.replicated.values(), key=Tensor.numel, default=torch.zeros(1, requires_grad=True))
        self.largest.register_hook(self._before_sync)
        stepped = {id(one) for group in optimizer.param_groups for one in group["params"]}
        missing = [name for name, one in self.parameters.items() if id(one) not in stepped]
        sentence = "the optimizer does not hold {0[0]}: make it once the model is wrapped or cut"
        self._report("optimizer", missing, sentence)
        self.wait()

    def step(self, loss: Tensor) -> list[str]:
        """Check one step, and return the sentences that are new. loss: this rank's own, of its last micro-batch."""
        self.steps += 1
        # The sentence shows the loss, which is inf or nan then, and the first layer, since {{0[0]}} becomes {0[0]}.
        not_finite = [] if loss.isfinite() else [*self._not_finite_layers(), "the loss itself"]
        self._report(
            "nan", not_finite, f"the loss of step {self.steps} is {loss:.0f}; what is first like this: {{0[0]}}"
        )
        self._report("no_sync", self.syncs > 1, f"gradients went out {self.syncs} times per step; take no_sync()")
        if self.steps % self.every == 0:
            self._judge(*self._exchange_numbers(loss))
            self.local_ms, self.local_norm = [], 0.0
        self.syncs, self.step_end, new, self.new_findings = 0, time.perf_counter(), self.new_findings, []
        self.wait()
        return new

    def _report(self, kind: str, found: object, sentence: str) -> None:
        """Add a finding, once per kind, if `found` is true.

        `found` fills the braces of the sentence, so {0[0]} is the first entry of a list and {0} a number.
        """
        if found and kind not in self.findings:
            self.findings[kind] = sentence.format(found)
            self.new_findings.append(self.findings[kind])

    def _after_forward(self, model: nn.Module, args: tuple, kwargs: dict, output: object) -> None:
        """Measure the time from the end of the last step to here. In it no rank waits for another, unlike in backward.

        DDP's require_backward_grad_sync is False under no_sync, so `syncs` counts the backwards that send gradients.
        """
        self.inputs = args, kwargs
        self.syncs += torch.is_grad_enabled() and getattr(model, "require_backward_grad_sync", False)
        self.local_ms += [] if self.step_end is None else [1000 * (time.perf_counter() - self.step_end)]
        self.step_end = None

    def _before_sync(self, gradient: Tensor) -> None:
        """Measure the largest parameter's gradient before it is averaged.

        The norms of micro-batches add up, because the norm of the summed gradient is at most the sum of their norms.
        """
        if (self.steps + 1) % self.every == 0:  # the numbers are exchanged at the end of this step
            self.local_norm += gradient.norm().item()

    @torch.no_grad()
    def _not_finite_layers(self) -> list[str]:
        """The layers whose outputs are not finite, the first one first.

        One more forward on the last inputs finds them, so that no hook slows down a step while all is well.
        """
        is_finite = {}

        def check(name: str, layer: nn.Module, inputs: tuple, out: object) -> None:
            is_finite[name or "the model"] = not isinstance(out, Tensor) or out.isfinite().all()

        hooks = [layer.register_forward_hook(partial(check, name)) for name, layer in self.model.named_modules()]
        self.model(*self.inputs[0], **self.inputs[1])
        for hook in hooks:
            hook.remove()
        return [name for name, finite in is_finite.items() if not finite]

    def _exchange_numbers(self, loss: Tensor) -> tuple[list[list[float]], Tensor]:
        """Seven numbers, each a list over ranks, in the order in which `_judge` unpacks them, and then the checksums.

        The checksums of the replicated parameters are a tensor (ranks, parameters).
        """
        mean_ms, longest_ms = sum(self.local_ms) / max(len(self.local_ms), 1), max(self.local_ms, default=0.0)
        row = [loss.item(), mean_ms, longest_ms, self.local_norm]
        for gradients in (self.largest.grad,), (one.grad for one in self.replicated.values()):
            row.append(nn.utils.get_total_norm(one for one in gradients if one is not None).item())
        # The random state is bytes; as int64, `checksum` reads it by four bytes and not by one.
        row += [checksum(torch.get_rng_state().view(torch.int64)), *map(checksum, self.replicated.values())]
        row = torch.tensor(row, dtype=torch.float64, device=loss.device)
        table = row.new_empty(dist.get_world_size(self.group), len(row))
        dist.all_gather(list(table), row, self.group)  # fills the table, since its rows are views
        return table[:, :7].T.tolist(), table[:, 7:]

    def _judge(self, numbers: list[list[float]], sums: Tensor) -> None:
        """Report what the numbers of all ranks show. sums: checksums of the replicated parameters."""
        losses, mean_ms, longest_ms, local_norms, synced_norms, norms, random_states = numbers
        differs = (sums != sums[0]).any(0)
        names = [name for name, is_different in zip(self.replicated, differs, strict=True) if is_different]
        self._report("weights", names, "ranks hold different weights where they must be equal, first in {0[0]}")
        # `not … <` is also true for NaN.
        self._report("gradient", not sum(norms) < float("inf"), "the loss is a number, and its gradient is none")
        # A mean is no longer than the longest of its gradients; 1 % is for rounding.
        longest, synced = max(local_norms), synced_norms[0]  # once averaged, it is the same on all ranks
        sentence = f"a gradient is {synced:.2g} long and was at most {longest:.2g} on a rank alone: no mean, a sum"
        self._report("sum", 0 < 1.01 * longest < synced, sentence)
        are_replicas = len(losses) > 1 and len(self.replicated) == len(self.parameters)  # each with a batch of its own
        self._report("batch", are_replicas and len(set(losses)) == 1, "all ranks have one loss: they read one batch")
        has_dropout = any(part.training and part.p for part in self.model.modules() if isinstance(part, nn.Dropout))
        self._report(
            "dropout",
            are_replicas and has_dropout and len(set(random_states)) == 1,
            "all ranks draw the same dropout masks",
        )
        slowest, median = mean_ms.index(max(mean_ms)), sorted(mean_ms)[(len(mean_ms) - 1) // 2]
        ms, most = mean_ms[slowest], longest_ms[slowest]
        sentence = f"the others wait for rank {slowest}: {ms:.0f} ms before backward, {most:.0f} at most"
        self._report("late", ms > max(2 * median, median + 5), sentence)  # over twice the median, and over 5 ms more
        self.mb_per_step = [*self.mb_per_step[-4:], psutil.Process().memory_info().rss / 1e6 / self.every]
        growth = torch.tensor(self.mb_per_step).diff()  # four differences, in MB per step; memory must grow in each
        self._report("memory", (growth > 0.1).sum() == 4 and growth.mean(), "memory grows by {0:.2f} MB per step")
