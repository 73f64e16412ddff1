"""Refutes what is often said about distributed training: one function per claim, which returns numbers by name.

A function is named like its claim. It takes a pool of four ranks and runs the smallest thing that settles the matter:
`ranks.run(step)` calls step in each of the four processes and returns the list of results, and `ranks[:2]` are the
first two ranks. What the claim would make of each number, and the text around it, are in
`helpers/interview/myths.yaml`, which names these functions by their dotted path. The interview page shows them; chapter
05 uses one. Some need no rank, and take the pool because all are called alike; among them are those of
myths_simulated.py, which simulate or use published numbers. Claims about context parallelism are refuted in
myths_long_context.py, and those about mixtures of experts in myths_experts.py.

`record_comms` records the messages that a rank sends, and `record_memory` the bytes that it holds. The strategies are
this course's own: `Zero1` and `Zero3` are stages of ZeRO, and `Trainer` trains under a `Plan`, which says how many
ranks are data parallel (dp) and tensor parallel (tp).
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset
from torch.utils.flop_counter import FlopCounterMode

from helpers import collectives
from helpers.compose import Plan, Trainer
from helpers.observe.comms import record_comms
from helpers.observe.memory import record_memory
from helpers.observe.torchrun import torchrun
from helpers.parallel.ddp import DistributedDataParallel
from helpers.parallel.ddp.data import DistributedSampler
from helpers.parallel.shared.recompute import recompute_blocks
from helpers.parallel.tensor_parallel import shard_tensor_parallel
from helpers.parallel.zero import Zero1, Zero3
from helpers.predict.time.calibrate import published_steps
from helpers.ranks import Ranks
from helpers.ranks.nccl import replay
from helpers.ranks.nccl.rank_rules import record_journal
from helpers.workloads import GPT, MLP, GPTConfig, token_loss

Numbers = dict[str, float]


def all_reduce_averages(ranks: Ranks) -> Numbers:
    """Claim: all_reduce averages the tensors of all ranks. The result for 1, 2, 3 and 4."""

    def step() -> float:
        x = torch.tensor(dist.get_rank() + 1.0)
        dist.all_reduce(x)
        return x.item()

    return {"after": ranks.run(step)[0]}


def a_ring_sends_n_times(ranks: Ranks) -> Numbers:
    """Claim: in a ring all-reduce, the traffic of a rank grows with the number of ranks.

    The bytes that a rank of our ring sends, divided by those of its buffer, on 2 and on 4 ranks.
    """

    def step() -> float:
        x = torch.ones(1200)
        with record_comms() as recorder:
            collectives.all_reduce(x, algorithm="ring")
        sent = sum(event.payload_bytes for event in recorder.log.events if event.op == "send")
        return sent / x.nbytes

    return {"two_ranks": ranks[:2].run(step)[0], "four_ranks": ranks.run(step)[0]}


def ddp_sends_parameters(ranks: Ranks) -> Numbers:
    """Claim: after every step DDP synchronises the parameters of all replicas.

    The payload of PyTorch's DDP in a step, per byte of the model: gradients all-reduced, parameters broadcast.
    """

    def step() -> Numbers:
        torch.manual_seed(0)
        model = nn.parallel.DistributedDataParallel(MLP([16, 16, 4]))
        with record_comms() as recorder:
            model(torch.ones(2, 16)).sum().backward()
        num_bytes = 4 * sum(p.numel() for p in model.parameters())  # fp32
        sent = {"gradients": "all_reduce", "parameters": "broadcast"}
        return {name: recorder.log.payload_bytes(op) / num_bytes for name, op in sent.items()}

    return ranks.run(step)[0]


def the_sampler_reshuffles(ranks: Ranks) -> Numbers:
    """Claim: DistributedSampler reshuffles in each epoch by itself.

    Whether the order of a rank's 50 samples changes from epoch to epoch, without set_epoch and with it: 0 or 1.
    """

    def changed(calls_set_epoch: bool) -> int:
        data = TensorDataset(torch.arange(200))
        sampler = DistributedSampler(data, num_replicas=4, rank=dist.get_rank(), shuffle=True)
        first = list(sampler)
        if calls_set_epoch:
            sampler.set_epoch(1)
        return int(first != list(sampler))

    return {"without": ranks.run(changed, False)[0], "with": ranks.run(changed, True)[0]}


def the_mean_of_means(ranks: Ranks) -> Numbers:
    """Claim: the gradient that DDP averages is that of the mean loss over all tokens.

    Two ranks have 1 and 9 tokens: DDP's averaged gradient, divided by that of the mean of all ten tokens. The loss is
    the mean of weight x token, so its gradient is the mean of the tokens, which are 10 once and 1 nine times.
    """

    def gradient() -> float:
        torch.manual_seed(0)
        tokens = torch.full((1,), 10.0) if dist.get_rank() == 0 else torch.ones(9)
        model = DistributedDataParallel(nn.Linear(1, 1, bias=False))
        model(tokens[:, None]).mean().backward()
        return model.module.weight.grad.item()

    of_all = (10.0 + 9 * 1.0) / 10
    return {"ratio": ranks[:2].run(gradient)[0] / of_all}


def autocast_halves_the_states(ranks: Ranks) -> Numbers:
    """Claim: mixed precision halves the memory of weights, gradients and optimizer state.

    Bytes per parameter of weight, gradient and two moments after AdamW's step, in fp32 and under bf16 autocast.
    """

    def bytes_per_parameter(mixed: bool) -> float:
        model = MLP([16, 16, 4])
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            loss = model(torch.ones(2, 16)).float().square().mean()
        loss.backward()
        optimizer.step()
        states = [t for p in model.parameters() for t in (p, p.grad, *optimizer.state[p].values()) if t.dim()]
        # `if t.dim()` leaves out AdamW's step counters, which are scalars.
        return sum(t.nbytes for t in states) / sum(p.numel() for p in model.parameters())

    return {"fp32": bytes_per_parameter(False), "mixed": bytes_per_parameter(True)}


def bf16_needs_a_scaler(ranks: Ranks) -> Numbers:
    """Claim: every 16-bit training needs a GradScaler, or small gradients vanish.

    How much is left of a gradient of 1e-8 when it is stored in fp16 and in bf16.
    """
    gradient = torch.tensor(1e-8)
    return {"fp16": gradient.half().item() / 1e-8, "bf16": gradient.bfloat16().item() / 1e-8}


def recomputation_doubles_the_work(ranks: Ranks) -> Numbers:
    """Claim: activation checkpointing runs everything twice, so a step costs twice as much.

    The operations of a GPT's step with every block recomputed, divided by those without. PyTorch counts them.
    """

    def flops(recomputed: bool) -> int:
        torch.manual_seed(0)
        model = GPT(GPTConfig(vocab_size=8, context=16, num_layers=4, num_heads=2, hidden=64))
        tokens = torch.zeros(2, 16, dtype=torch.long)
        with FlopCounterMode(display=False) as counter:
            if recomputed:
                with recompute_blocks(model):
                    token_loss(model(tokens), tokens).backward()
            else:
                token_loss(model(tokens), tokens).backward()
        return counter.get_total_flops()

    return {"ratio": flops(True) / flops(False)}


def share_sent_in_a_step(make, model: nn.Module) -> float:
    """On a rank: bytes that a ring sends in a step, divided by those of the parameters.

    make(model) returns the wrapped model and its optimizer.
    """
    numel = sum(p.numel() for p in model.parameters())
    model, optimizer = make(model)
    with record_comms() as recorder:
        model(torch.ones(2, 16)).square().mean().backward()
        optimizer.step()
    # Gradients and weights are float32; DDP's own bookkeeping has other dtypes.
    events = [event for event in recorder.log.events if event.dtype == "float32"]
    return sum(event.sent_bytes() for event in events) / (4 * numel)  # sent_bytes: what a ring makes this rank send


def data_parallel(model: nn.Module) -> tuple[nn.Module, torch.optim.Optimizer]:
    """For `share_sent_in_a_step`: our DDP with SGD."""
    return DistributedDataParallel(model), torch.optim.SGD(model.parameters(), lr=0.1)


def zero_1_costs_traffic(ranks: Ranks) -> Numbers:
    """Claim: ZeRO trades communication for memory, from stage 1 on.

    Bytes that a rank of four sends in a step, per byte of the parameters: data parallel, and ZeRO stages 1 and 3.
    """

    def stage_1(model):
        return model, Zero1(model.parameters(), torch.optim.SGD, lr=0.1)

    def stage_3(model):
        sharded = Zero3(model)
        return sharded, torch.optim.SGD(sharded.parameters(), lr=0.1)

    def step(make) -> float:
        torch.manual_seed(0)
        return share_sent_in_a_step(make, MLP([16, 64, 64, 4]))

    ways = {"data_parallel": data_parallel, "stage_1": stage_1, "stage_3": stage_3}
    return {name: ranks.run(step, make)[0] for name, make in ways.items()}


def zero_3_shrinks_activations(ranks: Ranks) -> Numbers:
    """Claim: ZeRO-3 helps where long sequences run out of memory, because it shards everything.

    Bytes of activations that a rank holds after forward under stage 3 on four ranks, divided by those of one process.
    """

    def activations(stage: int) -> int:
        torch.manual_seed(0)
        model = MLP([16, 64, 64, 4])
        model = Zero3(model) if stage == 3 else model
        with record_memory(model) as recorder:
            loss = model(torch.ones(128, 16)).square().mean()
            recorder.mark("after forward")
            loss.backward()
        return recorder.at("after forward").activations

    return {"ratio": ranks.run(activations, 3)[0] / ranks[:1].run(activations, 0)[0]}  # stage 0: the plain model


def clipping_each_shard_is_clipping(ranks: Ranks) -> Numbers:
    """Claim: clip_grad_norm_ works under sharding as before, because each rank clips its own shard.

    The largest norm that torch's clip_grad_norm_ finds on a rank's shard, divided by that of the full gradient.
    """

    def norm(sharded: bool) -> float:
        torch.manual_seed(0)
        model = MLP([16, 64, 4]).double()
        model = Zero3(model) if sharded else model
        model(torch.ones(2, 16).double()).square().mean().backward()
        return torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()

    return {"largest": max(ranks.run(norm, True)) / ranks[:1].run(norm, False)[0]}


def sequence_parallel_is_free(ranks: Ranks) -> Numbers:
    """Claim: sequence parallelism sends exactly what tensor parallelism sends.

    Bytes of activations that a ring sends for a layer, with sequence parallelism divided by without. With it a rank
    keeps only a shard of a column-parallel layer's input, and backward gathers the input once more.
    """

    def sent(sequence_parallel: bool, num_layers: int) -> float:
        torch.manual_seed(0)
        model = GPT(GPTConfig(vocab_size=16, context=16, num_layers=num_layers, num_heads=4, hidden=32))
        sharded = shard_tensor_parallel(model, sequence_parallel=sequence_parallel)
        tokens = torch.zeros(2, 16, dtype=torch.long)
        with record_comms() as recorder:
            sharded(tokens).sum().backward()
        activations = [event for event in recorder.log.events if len(event.shape) == 3]  # (batch, tokens, hidden)
        return sum(event.sent_bytes() for event in activations)

    def sent_for_a_layer(sequence_parallel: bool) -> float:
        """The difference of three and two layers, in which embedding and head drop out."""
        return ranks.run(sent, sequence_parallel, 3)[0] - ranks.run(sent, sequence_parallel, 2)[0]

    return {"ratio": sent_for_a_layer(True) / sent_for_a_layer(False)}


def every_rank_reads_other_data(ranks: Ranks) -> Numbers:
    """Claim: in distributed training every rank reads other data.

    How many different batches the models on four ranks get in a step of the Trainer, with dp 2 x tp 2.
    """

    def read_tokens() -> tuple[int, ...]:
        torch.manual_seed(0)
        model, got = GPT(GPTConfig(vocab_size=16, context=8, num_layers=1, num_heads=2, hidden=16)), []
        model.register_forward_pre_hook(lambda module, inputs: got.append(inputs[0]))
        plan = Plan(dp=2, tp=2)
        trainer = Trainer(model, plan, loss=token_loss, optimizer=torch.optim.SGD, lr=0.1)
        tokens = torch.arange(32).view(4, 8) % 16 + torch.arange(4)[:, None] // 2  # four rows, each another one
        trainer.step(tokens % 16, tokens % 16)
        return tuple(torch.cat(got).flatten().tolist())

    return {"batches": len(set(ranks.run(read_tokens)))}


def data_parallel_was_tested_on_a_laptop(ranks: Ranks) -> Numbers:
    """Claim: code with nn.DataParallel that passes its tests on a laptop is tested for several GPUs.

    How often nn.DataParallel calls the module for one batch of 8 where there is no GPU, and with how many rows.
    """
    rows = []
    module = nn.Linear(2, 2)
    module.register_forward_pre_hook(lambda module, inputs: rows.append(len(inputs[0])))
    nn.DataParallel(module, device_ids=[])(torch.ones(8, 2))
    return {"calls": len(rows), "rows": rows[0]}


def busy_is_fast(ranks: Ranks) -> Numbers:
    """Claim: GPU utilisation is 100 %, so the job is fast.

    Rank 3 has four units of work, the others one. After each unit, rank 0 is sampled, as nvidia-smi samples a GPU. In
    which share of the samples something runs on it, which may be a message that waits; in which share it computes.
    """
    computed, waited = ranks.run(_sample_work, 4)[0]
    return {"busy": (computed + waited) / 4, "computed": computed / 4}


def a_long_message_is_a_slow_network(ranks: Ranks) -> Numbers:
    """Claim: the all-reduce takes longest in the profile, so the network is slow.

    For how many units of work the same message runs on rank 0 if rank 3 comes two units later, and eight.
    """
    return {f"late_by_{units}": ranks.run(_sample_work, units + 1)[0][1] for units in (2, 8)}


def _sample_work(units: int) -> tuple[int, int]:
    """On a rank: how many samples find it computing, and how many find only its all-reduce waiting.

    No clock is read. Rank 3 has `units` matrix products to do and starts the all-reduce last. The others have one, and
    start it after that. A barrier in a group of its own ends each unit, so that all ranks agree on what a unit is.
    """
    local_units = units if dist.get_rank() == 3 else 1
    end_of_unit = dist.new_group()
    x, message, waited = torch.ones(64, 64), None, 0
    for unit in range(units):
        if unit < local_units:
            x = x @ x / 64
        else:
            message = message or dist.all_reduce(x, async_op=True)
            waited += not message.is_completed()
        dist.barrier(end_of_unit)
    (message or dist.all_reduce(x, async_op=True)).wait()
    return local_units, waited


def it_ran_on_gloo(ranks: Ranks) -> Numbers:
    """Claim: it ran on gloo, so it runs on NCCL.

    Each of four ranks passes its number on, in three ways. In how many of them every rank gets the right number on
    gloo, and in how many NCCL's rules find no mistake.
    """

    def step(way: str) -> tuple[bool, list]:
        """Whether this rank got its left neighbour's number, and the journal: every call of torch.distributed."""
        rank, size = dist.get_rank(), dist.get_world_size()
        received, left, right = torch.zeros(()), (rank - 1) % size, (rank + 1) % size
        calls = [(dist.isend, torch.tensor(float(rank)), right), (dist.irecv, received, left)]
        if way == "irecv first":
            calls.reverse()
        with record_journal() as journal:
            if way == "one batch":
                works = dist.batch_isend_irecv([dist.P2POp(*call) for call in calls])
            else:
                works = [function(tensor, peer) for function, tensor, peer in calls]
            for work in works:
                work.wait()
        return received.item() == left, journal

    numbers = {"gloo": 0, "nccl": 0}
    for way in ("isend first", "irecv first", "one batch"):
        are_right, journals = zip(*ranks.run(step, way), strict=True)
        numbers["gloo"] += all(are_right)
        numbers["nccl"] += not replay(journals)  # the mistakes that NCCL's rules find in the ranks' journals
    return numbers


def a_send_that_returned_has_sent(ranks: Ranks) -> Numbers:
    """Claim: once isend has returned, the peer has the data, and the tensor may be changed.

    What rank 1 receives if rank 0 sends 1 by isend, and writes 7 into the tensor once isend has returned.
    """

    def step() -> float:
        x = torch.ones(())
        work = dist.isend(x, 1) if dist.get_rank() == 0 else None
        if work is not None:
            x.fill_(7.0)
        dist.barrier()
        work.wait() if work is not None else dist.recv(x, 0)
        return x.item()

    return {"arrived": ranks[:2].run(step)[1]}


def twice_the_gpus_halve_the_time(ranks: Ranks) -> Numbers:
    """Claim: twice the GPUs, half the time.

    Bytes that a rank of four sends in a step of DDP, divided by those of a rank of two ("sent"). And published
    speed-ups: of twice the GPUs with tp and pp ("doubled"), and of four times the GPUs with ZeRO-3 ("four_times"). They
    are from Narayanan et al. 2021, table 2.
    """

    def sent() -> float:
        return share_sent_in_a_step(data_parallel, nn.Linear(16, 64))

    # The key is the end of the row's group, "PTD" (tp, pp and dp) or "O-3" (ZeRO-3), and the model with n GPUs.
    seconds = {(row.group[-3:], row.name[:13]): row.seconds for row in published_steps()}
    return {
        "sent": ranks.run(sent)[0] / ranks[:2].run(sent)[0],
        "doubled": seconds["PTD", "529.6B n=1120"] / seconds["PTD", "529.6B n=2240"],
        "four_times": seconds["O-3", "174.6B n=384 "] / seconds["O-3", "174.6B n=1536"],
    }


SCRIPT = """
import os
for step in range(1, 9):
    if step == 6 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os._exit(1)
    print("rank 0: step", step, flush=True)
"""


def max_restarts_is_fault_tolerance(ranks: Ranks) -> Numbers:
    """Claim: with `torchrun --max-restarts=3` the job is fault tolerant.

    A script of eight steps that saves nothing dies in step 6 of its first start, under torchrun. With which step the
    second start begins, and how many steps are done in all.
    """
    output = torchrun(SCRIPT, ranks=1, restarts=1, silence=60.0)  # seconds without a line, after which it is ended
    done = [int(line.rpartition(" ")[2]) for line in output.lines]  # the number at the end of "rank 0: step 1"
    return {"began": done[5], "done": len(done)}  # the first start does five steps
