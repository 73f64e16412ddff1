"""Runs chapter 08: the stages of ZeRO on ranks, the bytes that a rank stores and sends under each, and their limits.

Functions that take `ranks`, a pool of live processes, are called in the notebook; the others run on a rank, or in one
process where they say so. `ranks.run(f)` calls f on every rank and returns the list of results, and `ranks[:n]` is a
pool of the first n ranks. P = bytes of all parameters. Stage 0 is plain data parallelism; stage 1 shards the
optimizer's state, stage 2 also the gradients, and stage 3 also the weights. FSDP2 is PyTorch's stage 3.

A `Training` says what is trained, and `training.under(Strategy, **options)` how: a strategy is a subclass of
`OneProcess`, which is built on each rank with the model and the training. `run()` trains; `build()` returns the
strategy before its first step, and `train(built)` trains it.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import cache, partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import AdamW

from helpers.compose import Plan, Trainer
from helpers.observe.comms import record_comms
from helpers.observe.equality import Tensors, assert_equal
from helpers.observe.memory import record_memory
from helpers.observe.training import (
    KEY_BIAS_ROUNDING,
    DataParallelRanks,
    Training,
    beside_one_process,
    check_predicted,
    same_on_every_rank,
)
from helpers.parallel.ddp import DistributedDataParallel
from helpers.parallel.memory import Budget, OutOfBudget
from helpers.parallel.zero import MiniFSDP, Zero1, Zero2, Zero3
from helpers.predict.traffic.zero import zero_traffic
from helpers.ranks import Ranks
from helpers.records import CommEvent, CommLog, MemoryBreakdown
from helpers.workloads import GPT, MLP, GPTConfig, rank_slice, token_loss

WIDTHS = [64, 96, 96, 32]  # of the MLP of three layers, 18,656 parameters, whose messages are counted
UNITS = [[0, 1], [2, 3], [4, 5]]  # indices of parameters: weight and bias of a layer are sent together
WIDE = [64, 256, 256, 256, 256, 32]  # of an MLP of 0.9 MB of weights
# AdamW divides by sqrt(v) + eps. Where a gradient holds rounding noise only, as that of attention's key bias does, an
# eps above the usual 1e-8 moves the weight less. foreach=False is AdamW's default on a CPU: one parameter at a time.
ADAMW = dict(lr=1e-3, eps=1e-6, foreach=False)


def under_stage(stage: int, model: nn.Module, make: type = AdamW, **options):
    """The model to call and the optimizer to step, under a stage of ZeRO. make: the class of the optimizer."""
    if stage == 1:
        return model, Zero1(model.parameters(), make, **options)
    if stage == 2:
        return model, Zero2(model, make, **options)
    model = Zero3(model) if stage == 3 else DistributedDataParallel(model)
    return model, make(model.parameters(), **options)


# ---- what a rank stores ----


def stored_bytes(stage: int, config: GPTConfig) -> MemoryBreakdown:
    """On a rank: weights and optimizer's state after a step, gradients after backward, activations before backward."""
    torch.manual_seed(0)
    model, optimizer = under_stage(stage, GPT(config), **ADAMW)
    tokens = torch.randint(0, config.vocab_size, (2, config.context))
    with record_memory(model, optimizer) as recorder:
        loss = token_loss(model(tokens), tokens)
        recorder.mark("after forward")
        loss.backward()
        recorder.mark("after backward")
        optimizer.step()
        recorder.mark("after step")
    forward, backward, step = (recorder.at(f"after {name}") for name in ("forward", "backward", "step"))
    sizes = dict(parameters=step.parameters, gradients=backward.gradients, optimizer=step.optimizer)
    return MemoryBreakdown(**sizes, activations=forward.activations, instant="measured")


def stored_bytes_by_stage(ranks: Ranks, config: GPTConfig) -> dict[str, MemoryBreakdown]:
    """What a rank stores at stages 0 to 3: "stage 0" -> bytes by kind.

    RuntimeError where two ranks store different amounts.
    """
    return {
        f"stage {stage}": same_on_every_rank(ranks.run(stored_bytes, stage, config), f"stage {stage}: ")
        for stage in range(4)
    }


# ---- what a rank sends ----


def messages_of_a_step(stage: int, num_microbatches: int = 1, no_sync: bool = False) -> CommLog:
    """On a rank: the messages of one step of SGD.

    no_sync: all micro-batches but the last run under no_sync, which sends no gradients. At stage 1 they always do,
    because a rank has full gradients anyway.
    """
    torch.manual_seed(0)
    model, optimizer = under_stage(stage, MLP(WIDTHS), torch.optim.SGD, lr=0.1)
    micro_batches = torch.randn(16 * num_microbatches, WIDTHS[0]).chunk(num_microbatches)
    with record_comms() as recorder:
        for number, rows in enumerate(micro_batches):
            accumulates = (no_sync or stage == 1) and number < num_microbatches - 1
            # At stages 1 and 2 the optimizer sends the gradients and has no_sync, at 0 and 3 the wrapped model.
            sender = optimizer if stage in (1, 2) else model
            with sender.no_sync() if accumulates else nullcontext():
                (model(rows).square().mean() / num_microbatches).backward()
        optimizer.step()
    return recorder.log


def sent_share(ranks: Ranks, stage: int, num_microbatches: int = 1, no_sync: bool = False) -> float:
    """Bytes that a ring makes a rank send in a step, divided by P, counted from the recorded messages.

    RuntimeError where stages 1 to 3 sent another message than `zero_traffic` predicts, to the byte.
    """
    log = ranks.run(messages_of_a_step, stage, num_microbatches, no_sync)[0]
    sizes = [parameter.numel() for parameter in MLP(WIDTHS).parameters()]
    if stage:
        options = dict(num_microbatches=num_microbatches, no_sync=no_sync) | ({"units": UNITS} if stage == 3 else {})
        predicted = zero_traffic(sizes, stage=stage, world_size=len(ranks), **options)
        check_predicted(_counts(log), _counts(predicted), f"stage {stage} ")
    # DDP also sends integers, by which its ranks agree on an order of the gradients.
    gradients_and_weights = [event for event in log.events if "float" in event.dtype]
    return sum(event.sent_bytes() for event in gradients_and_weights) / (4 * sum(sizes))


def _counts(log: CommLog) -> Counter:
    """How many messages there are of each operation and size."""
    return Counter((event.op, event.payload_bytes) for event in log.events)


# ---- the messages of stage 3 in their order, from our Zero3 and from PyTorch's FSDP2 ----


def messages_in_order(engine: str, prefetch: int = 0) -> list[tuple[str, int, int]]:
    """On a rank: what a step sends, in the order of the calls: (operation, layer, bytes of payload).

    engine: "MiniFSDP", "Zero3" or "FSDP2". prefetch: how many layers ahead Zero3 gathers. It is the second step, since
    Zero3 learns in the first one which layer follows which.
    """
    torch.manual_seed(0)
    wrap = {"MiniFSDP": mini_fsdp_layers, "Zero3": partial(Zero3, prefetch=prefetch), "FSDP2": _fsdp2}[engine]
    model = wrap(MLP(WIDTHS))
    for _ in range(2):
        with record_comms() as recorder:
            model(torch.randn(8, WIDTHS[0])).square().mean().backward()
    # Number of elements -> layer. The layers have different sizes, so a message's size says which layer it is about.
    layer_of = {sum(p.numel() for p in layer.parameters()): index for index, layer in enumerate(MLP(WIDTHS).layers)}
    events = sorted(recorder.log.events, key=lambda event: event.start)
    return [(event.op, layer_of[_elements_of_layer(event)], event.payload_bytes) for event in events]


def message_names(messages: list[tuple[str, int, int]]) -> list[str]:
    """The messages as the chapter names them: "gather 2", "reduce-scatter 2", …"""
    verbs = {"all_gather": "gather", "reduce_scatter": "reduce-scatter"}
    return [f"{verbs[op]} {layer}" for op, layer, _ in messages]


def mini_fsdp_layers(model: MLP) -> MLP:
    """Make each layer a unit of MiniFSDP."""
    for index, layer in enumerate(model.layers):
        model.layers[index] = MiniFSDP(layer)
    return model


def full_weights(model: nn.Module) -> Tensors:
    """The full weights of an MLP, by name: of a plain one, or of one whose layers are units of MiniFSDP or FSDP2."""
    state = {}
    for index, layer in enumerate(model.layers):
        if isinstance(layer, MiniFSDP):
            found = layer.full_tensors(layer.shard)
        else:
            found = {name: getattr(p, "full_tensor", lambda p=p: p)() for name, p in layer.named_parameters()}
        state |= {f"layers.{index}.{name}": tensor.detach().clone() for name, tensor in found.items()}
    return state


def _fsdp2(model: nn.Module) -> nn.Module:
    """PyTorch's own stage 3: each layer (or block) is a unit, and what is left is one more."""
    from torch.distributed.fsdp import fully_shard  # the import takes seconds, and only one cell needs it

    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in getattr(model, "layers", None) or model.blocks:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def _elements_of_layer(event: CommEvent) -> int:
    """How many elements the layer has that a message is about. A gather's payload is one shard."""
    shards = len(event.group_ranks) if event.op == "all_gather" else 1
    return event.payload_bytes // 4 * shards


# ---- equal to one process ----


def small_gpt() -> GPT:
    """A GPT of 27,904 parameters in float64."""
    return GPT(GPTConfig.tiny(context=8)).double()


@cache
def rows_of_tokens() -> Tensor:
    """12 rows of tokens, a number that 1, 2, 3 and 4 ranks divide.

    Any rows would do, because no comparison with one process depends on which they are. These are what a script draws
    that seeds once, builds the model and then draws its data, and the norms that the chapter prints belong to them.
    """
    torch.manual_seed(0)
    small_gpt()  # only to move the random generator on
    return torch.randint(0, 68, (12, 8))


TRAINING = Training(
    model=small_gpt,
    batch=lambda step: (rows_of_tokens(),) * 2,
    options=ADAMW,
    steps=10,
    state=lambda model: {name: tensor.clone() for name, tensor in model.state_dict().items()},
)


class ZeroRank(DataParallelRanks):
    """A rank under a stage of ZeRO, 1 to 3, or under PyTorch's "FSDP2"."""

    def __init__(self, model: nn.Module, training: Training, stage: int | str):
        self.stage = stage
        if stage == "FSDP2":
            forward, optimizer = _fsdp2(model), None
        else:
            forward, optimizer = under_stage(stage, model, training.optimizer, **training.options)
        super().__init__(model, training, forward, optimizer)

    def state(self) -> Tensors:
        """The full weights, whatever this rank stores of them."""
        state = self.forward.full_state() if self.stage == 3 else self.model.state_dict()
        return {
            name: value.full_tensor() if hasattr(value, "full_tensor") else value.clone()
            for name, value in state.items()
        }


def equality_lines(ranks: Ranks) -> list[str]:
    """Lines that say how far losses and weights are from one process, after ten steps under each stage and FSDP2.

    AssertionError where they are not equal.
    """
    alone, lines = TRAINING.run(), []
    for stage in (1, 2, 3):
        trained = TRAINING.under(ZeroRank, stage=stage)
        verdicts = [beside_one_process(ranks[:size], trained, alone) for size in (1, 2, 3, 4)]
        lines.append(f"stage {stage}, 1 to 4 ranks, losses and weights: {verdicts[-1]}")
    fsdp2 = beside_one_process(ranks, TRAINING.under(ZeroRank, stage="FSDP2"), alone)
    return [*lines, f"FSDP2 on 4 ranks, ten steps: {fsdp2}"]


# ---- the norm of the gradients ----


def norm_in_one_process() -> float:
    """The norm of all gradients of the same batch in one process."""
    return replace(TRAINING, steps=1, max_norm=0.5).run()["norms"].item()


def zero3_after_backward() -> Zero3:
    """On a rank of 4: the model under stage 3 after the backward of the first batch."""
    built = TRAINING.under(ZeroRank, stage=3).build()
    built.forward_backward(*(rank_slice(rows, *built.rows) for rows in TRAINING.batch(0)))
    return built.forward


def weights_after_clipping(clip: Callable[[Zero3], Tensor]) -> Tensors:
    """On a rank of 4: the full weights after the backward of the first batch, `clip(model)`, and a step of SGD."""
    model = zero3_after_backward()
    clip(model)
    torch.optim.SGD(model.parameters(), lr=1.0).step()
    return model.full_state()


# ---- saved by some ranks, resumed by others ----


TRAINER_OPTIONS = dict(loss=token_loss, optimizer=AdamW, **ADAMW)


def save_after_five_steps(folder: str) -> None:
    """On a rank: five steps under stage 3, then a checkpoint."""
    torch.manual_seed(0)
    trainer = Trainer(small_gpt(), Plan(dp=dist.get_world_size(), zero=3), **TRAINER_OPTIONS)
    for step in range(5):
        trainer.step(*TRAINING.batch(step))  # the global batch: the trainer takes this rank's rows
    trainer.save(folder)


def resume_for_five_steps(folder: str) -> Tensors:
    """On a rank: five more steps from that checkpoint. Returns the full weights."""
    plan = Plan(dp=dist.get_world_size(), zero=3)
    trainer = Trainer.load(folder, small_gpt(), plan, **TRAINER_OPTIONS)  # replaces the random weights of small_gpt()
    for step in range(5, 10):
        trainer.step(*TRAINING.batch(step))
    return trainer.full_state()


def resumed(writers: Ranks, readers: Ranks) -> tuple[list[str], str]:
    """Five steps of `writers` under stage 3, saved, and five more steps of `readers`, whose number may be another.

    Returns the names of the saved files, and the verdict on the weights in the end, compared with one process.
    """
    weights = {name: tensor for name, tensor in TRAINING.run().items() if name != "losses"}
    with tempfile.TemporaryDirectory() as parent:
        folder = os.path.join(parent, "step_5")
        writers.run(save_after_five_steps, folder)
        results = readers.run(resume_for_five_steps, folder)
        # The tolerance is for the weights of attention's key bias, whose gradient is rounding noise only.
        return sorted(os.listdir(folder)), assert_equal(weights, results, atol=KEY_BIAS_ROUNDING)


# ---- devices that are too small ----


def train_on_device_of(num_bytes: int, on_meta: bool = False, offload: bool = False) -> tuple[str, Tensors | None]:
    """On a rank: one step of stage 3 on a simulated device of so many bytes.

    Returns a verdict, and the full weights if it fits. on_meta: the model is built on the meta device, and only its
    shards get memory. offload: shards are kept on the host.
    """
    torch.manual_seed(0)
    budget, verdict = Budget(num_bytes), "cannot be built"
    # limit, prefetch: weights of one layer are gathered at a time, and none ahead, to need the least memory.
    options = dict(offload=budget if offload else None, limit=1, prefetch=0)
    try:
        with budget:
            model = Zero3.build(lambda: MLP(WIDE), **options) if on_meta else Zero3(MLP(WIDE), **options)
            verdict = "is built, and cannot be trained"
            optimizer = AdamW(model.parameters(), **ADAMW)
            model(torch.ones(4, 64)).square().mean().backward()
            optimizer.step()
    except OutOfBudget:
        return verdict, None
    return "trains", model.full_state()


def small_device_lines(ranks: Ranks) -> list[str]:
    """Lines that say whether a model of 0.9 MB trains on devices of 1 MB, built in three ways.

    AssertionError where the last way, on the meta device and offloaded, gives other weights than a large device does.
    """
    ways = {"whole": {}, "on meta": dict(on_meta=True), "on meta, offloaded": dict(on_meta=True, offload=True)}
    expected, lines = ranks.run(train_on_device_of, 10_000_000)[0][1], []
    for built, options in ways.items():
        verdict, state = ranks.run(train_on_device_of, 1_000_000, **options)[0]
        lines.append(f"0.9 MB of weights, 1 MB per rank, built {built}: {verdict}")
    assert all(torch.equal(state[name], expected[name]) for name in expected)
    return lines


# ---- an optimizer that cannot be sharded, because it looks at rows and columns of a matrix ----


def adafactor_error() -> str:
    """On a rank: the beginning of the error that Zero1 raises for Adafactor, or "taken" if it raises none."""
    try:
        Zero1(MLP([4, 4]).parameters(), torch.optim.Adafactor, lr=0.1)
    except ValueError as error:
        return str(error).partition(":")[0]
    return "taken"
