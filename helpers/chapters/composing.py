"""Runs chapter 09: one model under many plans, compared with one process, what each axis sends, and what goes wrong.

A `Plan` says how ranks are divided: dp replicas, tp shards of each layer, pp stages; `Trainer` trains a model under
one. A `Training` says what is trained, and `training.under(Strategy, **options)` how: a strategy is a subclass of
`OneProcess`, which is built on each rank with the model and the training. `training.run()` returns losses, norms and
weights by name; `ranks.run(f)` calls f on every rank of a pool of processes, and returns the list of results.
`assert_equal` compares such results, and returns a line such as "equal: 54 tensors x 4 ranks, …". It is given
KEY_BIAS_ROUNDING, the tolerance for the gradient of attention's key bias, which is rounding noise only.

What goes wrong: an optimizer that is made too early, a mean over the wrong group, the norms of single ranks, one seed
for all tensor parallel ranks, tensor parallelism over the slow link. The notebook calls functions that take or start
`ranks`. Those with "On a rank" run on each rank, the others in one process. composing_cells.py draws what they return.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import AdamW

from helpers.compose import Plan, Trainer
from helpers.compose.three_dimensions import process_groups
from helpers.observe.comms import record_comms
from helpers.observe.equality import Tensors, assert_equal
from helpers.observe.timeline import record_timeline
from helpers.observe.training import KEY_BIAS_ROUNDING, OneProcess, Training, check_predicted
from helpers.parallel.shared.placement import placements_of
from helpers.parallel.tensor_parallel import shard_tensor_parallel, vocab_parallel_cross_entropy
from helpers.predict.traffic.axes import axis_traffic
from helpers.ranks import Ranks
from helpers.records import AxisTraffic, CommEvent, Timeline, traffic_by_axis
from helpers.specs import Link, Nodes
from helpers.workloads import GPT, GPTConfig, characters, token_loss, train_alone
from helpers.workloads.gpt import RESIDUAL

SQUARE, CUBE = Plan(dp=2, tp=2), Plan(dp=2, pp=2, tp=2, num_microbatches=4)  # four ranks on two axes, eight on three
SEQUENCES, TOKENS = 16, 16  # sequences of a global batch, and tokens of a sequence
# AdamW divides by sqrt(v) + eps, so an eps above the usual 1e-8 moves weights less where a gradient is rounding noise.
ADAMW = dict(lr=3e-3, eps=1e-6)
BYTES_MODEL = GPTConfig(vocab_size=68, context=64, num_layers=4, num_heads=4, hidden=128)  # its messages are counted
SEEDED = GPTConfig.tiny()  # the model of the section "one seed", whose weights are drawn with a given seed
REPLICAS = 4  # tp ranks of that section, which hold equal shards because they draw with one seed
# The emulated links inside a node and between nodes: seconds, and bytes per second.
FAST, SLOW = Link(latency=0, bandwidth=1e9), Link(latency=0, bandwidth=4e6)


def global_batch(step: int) -> tuple[Tensor, Tensor]:
    """The batch of a step, the same on every rank: tokens and targets, (16, 16) each."""
    return characters().batch(step, SEQUENCES, TOKENS)


TRAINING = Training(
    model=lambda: GPT(GPTConfig.tiny(context=TOKENS, num_layers=4)).double(),
    batch=global_batch,
    options=ADAMW,
    steps=8,
    max_norm=0.5,
    state=lambda model: model.state_dict(),
)


# ---- equal to one process ----


class PlanRank(OneProcess):
    """A rank of the Trainer under a plan."""

    def __init__(self, model: nn.Module, training: Training, plan: Plan, load: str = ""):
        """load: the folder of a checkpoint from which it goes on; "" to begin anew."""
        settings = dict(loss=training.loss, optimizer=training.optimizer, max_norm=training.max_norm)
        settings |= training.options
        self.trainer = Trainer.load(load, model, plan, **settings) if load else Trainer(model, plan, **settings)
        self.training, self.first_step = training, self.trainer.steps

    def step(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor | None]:
        loss = self.trainer.step(inputs, targets)
        return loss, None if self.training.max_norm is None else self.trainer.grad_norm

    def state(self) -> Tensors:
        return self.trainer.full_state()


def losses_beside_one_process(ranks: Ranks, plan: Plan) -> tuple[list[float], list[float], str]:
    """Losses of one process, of the plan on rank 0, and the verdict on losses, norms and weights of every rank.

    The verdict is the line of `assert_equal`; AssertionError where they differ.
    """
    alone, by_rank = TRAINING.run(), ranks.run(TRAINING.under(PlanRank, plan=plan).run)
    verdict = assert_equal(alone, by_rank, atol=KEY_BIAS_ROUNDING)
    return alone["losses"].tolist(), by_rank[0]["losses"].tolist(), verdict


class TorchRank(PlanRank):
    """A rank under a plan that PyTorch's own parts carry out, instead of our Trainer."""

    def __init__(self, model: nn.Module, training: Training, plan: Plan):
        from helpers.chapters.torch_trainer import TorchTrainer  # the import takes seconds, for DTensor

        self.training, self.trainer = training, TorchTrainer(model, plan, **training.options)


def equal_to_torch(ranks: Ranks, plan: Plan, steps: int = 3) -> str:
    """The verdict on losses and weights of an untied GPT, trained by our Trainer and by PyTorch's parts."""
    config = GPTConfig.tiny(context=TOKENS, tied=False)
    training = replace(TRAINING, model=lambda: GPT(config).double(), steps=steps, max_norm=None)
    by_torch, ours = (ranks.run(training.under(strategy, plan=plan).run) for strategy in (TorchRank, PlanRank))
    return assert_equal(by_torch[0], ours, atol=KEY_BIAS_ROUNDING)


# ---- saved under one plan, resumed under another ----


def train_and_save(plan: Plan, steps: int, folder: str) -> None:
    """On a rank: some steps under a plan, then a checkpoint."""
    training = replace(TRAINING, steps=steps).under(PlanRank, plan=plan)
    built = training.build()  # a PlanRank before its first step
    training.train(built)
    built.trainer.save(folder)


def resumed(before: tuple[Ranks, Plan], after: tuple[Ranks, Plan], steps: int = 4) -> tuple[dict[str, int], int, str]:
    """Train `steps` under a first plan, save, and train as many steps more from that checkpoint under a second plan.

    before, after: the ranks and the plan of the first and of the second half. Returns the sizes in bytes of the files
    that the first plan saves, by name; the size of the one file that one process saves; and the verdict on the second
    half, compared with one process.
    """
    (writers, old), (readers, new) = before, after
    alone = replace(TRAINING, steps=2 * steps).run()
    # Losses and norms have one entry per step; the weights are those at the end.
    second_half = {name: one[steps:] if name in ("losses", "norms") else one for name, one in alone.items()}
    with tempfile.TemporaryDirectory() as parent:
        folder, single = (os.path.join(parent, name) for name in ("step_4", "alone"))
        writers.run(train_and_save, old, steps, folder)
        writers[:1].run(train_and_save, Plan(), steps, single)
        names = [name for name in sorted(os.listdir(folder)) if name.endswith(".pt")]
        sizes = {name: os.path.getsize(os.path.join(folder, name)) for name in names}
        single_size = os.path.getsize(os.path.join(single, "rank_0.pt"))
        by_rank = readers.run(replace(TRAINING, steps=steps).under(PlanRank, plan=new, load=folder).run)
    return sizes, single_size, assert_equal(second_half, by_rank, atol=KEY_BIAS_ROUNDING)


# ---- what each axis sends ----


def step_log(plan: Plan, num_sequences: int) -> AxisTraffic:
    """On a rank: the messages that it sends in the second step of `BYTES_MODEL`, by axis, as they were recorded."""
    torch.manual_seed(0)
    trainer = Trainer(GPT(BYTES_MODEL), plan, loss=token_loss, optimizer=torch.optim.SGD, lr=0.1)
    tokens = torch.randint(0, BYTES_MODEL.vocab_size, (num_sequences, BYTES_MODEL.context))
    trainer.step(tokens, tokens)
    with record_comms() as recorder:
        trainer.step(tokens, tokens)
    return traffic_by_axis(recorder.log, trainer.mesh)


def bytes_of_busiest_rank(plan: Plan, num_sequences: int) -> dict[str, float]:
    """Predicted bytes sent, if every collective runs as a ring, by axis, for the rank that sends most."""
    by_rank = [predicted_traffic(plan, num_sequences, rank) for rank in range(plan.world_size)]
    most = max(by_rank, key=AxisTraffic.sent_bytes)
    return {axis: most.sent_bytes(axis) for axis in ("tp", "dp", "pp") if getattr(plan, axis) > 1}


def predicted_traffic(plan: Plan, num_sequences: int, rank: int) -> AxisTraffic:
    """The predicted messages of one rank in a step of `BYTES_MODEL`."""
    rows = num_sequences // (plan.dp * plan.num_microbatches)
    return axis_traffic(BYTES_MODEL.spec, replace(plan, micro_batch=rows), rank, dtype_bytes=4)


def checked_bytes(ranks: Ranks, plan: Plan, num_sequences: int) -> float:
    """The bytes of the busiest rank, from recorded messages. RuntimeError where they differ from the predicted ones."""
    logs = ranks[: plan.world_size].run(step_log, plan, num_sequences)
    for rank, log in enumerate(logs):
        check_predicted(log, predicted_traffic(plan, num_sequences, rank), f"rank {rank} ")
    return max(log.sent_bytes() for log in logs)  # bytes sent, if every collective runs as a ring


# Five layouts of four ranks, whose bytes the chapter compares for 16 sequences.
LAYOUTS = {
    "pp 4": Plan(pp=4, num_microbatches=4),
    "dp 4": Plan(dp=4),
    "tp 4": Plan(tp=4),
    "pp 2 × dp 2": Plan(pp=2, dp=2, num_microbatches=2),
    "dp 2 × tp 2": Plan(dp=2, tp=2),
}


# ---- the optimizer before the model is sharded ----


class ShardedRank(OneProcess):
    """Tensor parallelism over all ranks. optimizer_first: the optimizer is made before the parameters are sharded."""

    def __init__(self, model: nn.Module, training: Training, optimizer_first: bool):
        if not optimizer_first:
            shard_tensor_parallel(model)
        super().__init__(model, training)
        if optimizer_first:
            shard_tensor_parallel(model)
        self.loss = vocab_parallel_cross_entropy  # the loss of logits that are sharded over the vocabulary

    def forward_backward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        # An optimizer that was made first holds the unsharded parameters, and clears only their gradients.
        self.model.zero_grad()
        return super().forward_backward(inputs, targets)


def shard_and_train(steps: int, *, optimizer_first: bool) -> tuple[list[float], float]:
    """On a rank of a tp group: losses, and the share of its parameters that changed."""
    training = replace(TRAINING, steps=steps, max_norm=None).under(ShardedRank, optimizer_first=optimizer_first)
    built = training.build()
    before = [parameter.detach().clone() for parameter in built.model.parameters()]
    losses = training.train(built)["losses"].tolist()
    pairs = list(zip(before, built.model.parameters(), strict=True))
    moved = sum(new.numel() for old, new in pairs if not torch.equal(old, new))
    return losses, moved / sum(new.numel() for _, new in pairs)


# ---- the mean over the wrong group ----


class AveragedOverAxis(OneProcess):
    """dp 2 x tp 2, where gradients are averaged over the groups of `axis`: "dp", which is right, "tp", or "world".

    divisor: by what their sum is divided, if not by the size of the group.
    """

    def __init__(self, model: nn.Module, training: Training, axis: str, divisor: int | None = None):
        groups = process_groups(pp=1, dp=2, tp=2)
        self.replicas = groups["dp"]  # over which the printed losses are averaged
        self.rows = dist.get_rank(groups["dp"]), 2  # this rank reads this part of the batch, of 2 parts
        self.group = dist.group.WORLD if axis == "world" else groups[axis]
        self.divisor = divisor or dist.get_world_size(self.group)
        shard_tensor_parallel(model, groups["tp"])
        super().__init__(model, training)  # makes the optimizer
        self.loss = partial(vocab_parallel_cross_entropy, group=groups["tp"])

    def after_backward(self) -> None:
        for parameter in self.model.parameters():
            dist.all_reduce(parameter.grad, group=self.group)
            parameter.grad /= self.divisor


def losses_averaged_over(axis: str, steps: int, divisor: int | None = None) -> list[float]:
    """On a rank: losses with `AveragedOverAxis`."""
    training = replace(TRAINING, steps=steps, max_norm=None)
    return training.under(AveragedOverAxis, axis=axis, divisor=divisor).run()["losses"].tolist()


# ---- the norm ----


def two_norms() -> tuple[float, float]:
    """On a rank of `CUBE`, after one step: the norm of its own gradients, and the norm that the Trainer found."""
    training = replace(TRAINING, max_norm=None).under(PlanRank, plan=CUBE)
    trainer = training.build().trainer
    trainer.step(*global_batch(0))
    # local_model: the stage, and in it the shards, that this rank holds.
    local = [parameter.grad for parameter in trainer.local_model.parameters() if parameter.grad is not None]
    return nn.utils.get_total_norm(local).item(), trainer.grad_norm.item()


def four_norms(ranks: Ranks) -> tuple[list[float], float, float, float]:
    """Four norms of the gradients of one step.

    Each rank's own norm; the root of the sum of the squares of these norms, in which replicas count several times; the
    norm that the Trainer found, the same on every rank; the norm in one process.
    """
    local, global_norms = zip(*ranks.run(two_norms), strict=True)
    if len(set(global_norms)) > 1:
        raise RuntimeError(f"the Trainer's norm is not one number: {global_norms}")
    return list(local), math.hypot(*local), global_norms[0], replace(TRAINING, steps=1).run()["norms"].item()


# ---- one seed ----


def losses_in_one_process(model: nn.Module, steps: int) -> list[float]:
    """The losses of training a model in one process and one thread, on batches of 8 sequences."""
    optimizer, threads = AdamW(model.parameters(), lr=3e-3), torch.get_num_threads()
    torch.set_num_threads(1)
    batches = (characters().batch(step, 8, SEEDED.context) for step in range(steps))
    losses = list(train_alone(model, optimizer, batches))  # it yields the loss of each step
    torch.set_num_threads(threads)
    return losses


def gpt_of_seeds(one_seed: bool) -> GPT:
    """A GPT as one process draws it; with one_seed, as four tp ranks with the same seed do: each shard four times.

    The shards of RESIDUAL weights, which write into the residual stream, are columns; all other shards are rows.
    """
    torch.manual_seed(0)
    model = GPT(SEEDED)
    if one_seed:
        draw = torch.Generator().manual_seed(1)
        for name, parameter in _sharded_matrices(model):
            dim = 1 if name.endswith(RESIDUAL) else 0
            part = _draw(name, parameter.chunk(REPLICAS, dim)[0], draw)
            parameter.data = torch.cat([part] * REPLICAS, dim)
        model.head.weight = model.token_embedding.weight  # both are one Parameter, whose data is new; no change
    return model


def _sharded_matrices(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Names and parameters of the matrices that tp shards: all but the position embedding, which is replicated."""
    return [(name, one) for name, one in model.named_parameters() if one.dim() == 2 and "position" not in name]


def _draw(name: str, like: Tensor, generator: torch.Generator) -> Tensor:
    """Initial values with the shape of `like` and the distribution that GPT uses for the parameter `name`."""
    return torch.empty(like.shape).normal_(0, SEEDED.first_std(name), generator=generator)


def train_with_one_seed(steps: int) -> tuple[list[float], dict[str, Tensor]]:
    """On a tp rank, which draws its shards with the same seed as the others: losses, and its shards after training."""
    torch.manual_seed(0)
    model = GPT(SEEDED)
    trainer = Trainer(model, Plan(tp=REPLICAS), loss=token_loss, optimizer=AdamW, lr=3e-3)
    draw = torch.Generator().manual_seed(1)
    for name, parameter in _sharded_matrices(model):
        assert placements_of(parameter)["tp"].copies == 1  # it is sharded over tp, not replicated
        parameter.data.copy_(_draw(name, parameter, draw))
    losses = [trainer.step(*characters().batch(step, 8, SEEDED.context)).item() for step in range(steps)]
    return losses, {name: parameter.detach().clone() for name, parameter in _sharded_matrices(model)}


# ---- the slow axis ----


def emulate_on_two_nodes(tp_inside: bool, num_sequences: int = 16) -> Timeline:
    """One step of dp 2 x tp 2 on two emulated nodes: the timeline of rank 0.

    tp_inside: the ranks of a node are a tp group. Otherwise they are a dp group, and tp crosses the slow link.
    """
    nodes = ((0, 1), (2, 3)) if tp_inside else ((0, 2), (1, 3))  # the tp groups always are ranks 0, 1 and 2, 3
    with Ranks(4, device="cpu", link=Nodes(nodes=nodes, inside=FAST, across=SLOW), quiet=True) as ranks:
        timeline = ranks.run(_record_step, num_sequences)[0]
    return replace(timeline, title="tp inside a node" if tp_inside else "tp across nodes")


def _record_step(num_sequences: int) -> Timeline:
    """On a rank: the timeline of one step, in which waits for tp's messages do not count as compute."""
    torch.manual_seed(0)
    trainer = Trainer(GPT(BYTES_MODEL), SQUARE, loss=token_loss, optimizer=torch.optim.SGD, lr=0.1)
    for rows in (2, num_sequences):  # the first recording, of two sequences, only warms up; the second one replaces it
        tokens = torch.randint(0, BYTES_MODEL.vocab_size, (rows, BYTES_MODEL.context))
        dist.barrier()
        with record_comms() as comms, record_timeline(trainer.local_model, source="emulated") as recorder:
            trainer.step(tokens, tokens)
    tp = tuple(trainer.mesh.ranks_along("tp", trainer.axes.rank))  # the ranks of this rank's tp group
    return without_waits(recorder.timeline, [one for one in comms.log.events if one.group_ranks == tp])


def without_waits(timeline: Timeline, waited_for: Sequence[CommEvent]) -> Timeline:
    """The same timeline, but a rank does not count as computing while it waits for these messages inside a module.

    A span of compute is cut at each message inside it: the piece before the message, then the piece after it, and so
    on.
    """
    spans = []
    for span in timeline.spans:
        start = span.start
        events = sorted(waited_for, key=lambda one: one.start) if span.kind != "communication" else ()
        for event in events:
            if span.start <= event.start and event.end <= span.end:
                spans.append(replace(span, start=start, end=event.start))
                start = event.end
        spans.append(replace(span, start=start))
    return replace(timeline, spans=tuple(spans))
