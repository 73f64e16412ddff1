"""Holds what a stranger types below a core file that was copied alone into a script: by path, the code of one rank.

`script(path)` gives the whole script. It starts its ranks itself, and each rank prints a line if it equals one process.
`answer(path, task)` gives what the file answers a task of a lab with.
"""

import inspect
import sys
import types
from pathlib import Path

import cloudpickle

from helpers.chapters.pipeline import Recorder

ROOT = Path(__file__).resolve().parents[2]

COMMON = """

import copy
import tempfile
import torch
import torch.multiprocessing
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
x = torch.randn(8, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)).double()


def train(model, step, after_backward=lambda: None, parameters=None):
    optimizer = torch.optim.AdamW(parameters or model.parameters(), lr=1e-2)
    for _ in range(3):
        optimizer.zero_grad()
        loss = step()
        if loss is not None and loss.requires_grad:
            loss.backward()
        after_backward()
        optimizer.step()
    return model


def one_process(model, x=x, **options):
    return train(model, lambda: F.mse_loss(model(x), x), **options)


def check(expected, found):
    for one, other in zip(expected, found, strict=True):
        assert one.shape == other.shape and (one - other).norm() <= 1e-10 * one.norm(), (one, other)


def start(rank, size, store):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    on_rank(rank, size)
    print(f"rank {rank} equals one process\\n", end="", flush=True)
    dist.destroy_process_group()


def main(size=2):
    with tempfile.TemporaryDirectory() as folder:
        fork = torch.multiprocessing.get_context("fork")
        ranks = [fork.Process(target=start, args=(rank, size, f"{folder}/store")) for rank in range(size)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        raise SystemExit(max(process.exitcode != 0 for process in ranks))
"""

ON_RANK = {
    "helpers/parallel/ddp/mini.py": """
def on_rank(rank, size):
    model, mine = build(), x.chunk(size)[rank]
    ddp = MiniDDP(model, bucket_bytes=64, first_bucket_bytes=32)
    train(model, lambda: F.mse_loss(ddp(mine), mine), after_backward=ddp.wait)
    check(one_process(build()).parameters(), model.parameters())
""",
    "helpers/parallel/amp/mixed_precision.py": """
def trained(autocast):
    model, scaler = build().float(), MiniGradScaler(group=dist.group.WORLD)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(3):
        batch = [(part, part) for part in x.float().chunk(2)]
        amp_step(model, F.mse_loss, optimizer, scaler, batch, 1.0, torch.bfloat16, autocast)
    return list(model.parameters())


def on_rank(rank, size):
    from functools import partial

    ours, theirs = trained(MiniAutocast), trained(partial(torch.autocast, "cpu"))
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs))
""",
    "helpers/parallel/memory/recomputation.py": """
def on_rank(rank, size):
    model, one = build(), one_process(build())
    train(model, lambda: F.mse_loss(model[2](recompute(model[:2], x.clone().requires_grad_())), x))
    check(one.parameters(), model.parameters())
""",
    "helpers/parallel/pipeline/gpipe_and_1f1b.py": """
def on_rank(rank, size):
    one = one_process(build())
    for schedule in ("gpipe", "one_f_one_b"):
        stage = build()[:2] if rank == 0 else build()[2:]
        pipeline = MiniPipeline(stage, F.mse_loss, (2, 4))
        train(stage, lambda: getattr(pipeline, schedule)(x.chunk(4), x.chunk(4)))
        check((one[:2] if rank == 0 else one[2:]).parameters(), stage.parameters())
""",
    "helpers/parallel/tensor_parallel/transformer_block.py": """
def on_rank(rank, size):
    torch.manual_seed(0)
    one, tokens = TransformerBlock(4, 2, 6).double(), x.view(2, 4, 4)
    block = TensorParallelBlock(copy.deepcopy(one))
    one_process(one, tokens)
    train(block, lambda: F.mse_loss(block(tokens), tokens))
    for (name, full), shard in zip(one.named_parameters(), block.parameters(), strict=True):
        if "norm" not in name:
            full = full.chunk(size, 1 if "output" in name or "down" in name else 0)[rank]
        check([full], [shard])
""",
    "helpers/parallel/zero/mini_fsdp.py": """
def on_rank(rank, size):
    mine, model = x.chunk(size)[rank], nn.Sequential(*map(MiniFSDP, build()[::2]))
    train(model, lambda: F.mse_loss(model[1](torch.tanh(model[0](mine))), mine))
    for layer, unit in zip(one_process(build())[::2], model, strict=True):
        check(layer.parameters(), unit.full_tensors(unit.shard).values())
""",
    "helpers/parallel/context_parallel/ring.py": """
def output(projection, x, attention):
    query, key, value = projection(x).unflatten(-1, (3, 2, 2)).permute(2, 0, 3, 1, 4)  # (B, H, T, d) each
    return attention(query, key, value).transpose(1, 2).flatten(2)


def on_rank(rank, size):
    torch.manual_seed(0)
    one, tokens, indices = nn.Linear(4, 12).double(), x[None], token_indices(8, size, zigzag=True)
    split, mine = copy.deepcopy(one), tokens[:, indices[rank]]

    def causal(*heads):
        return F.scaled_dot_product_attention(*heads, is_causal=True)

    def share():
        out = output(split, mine, lambda *heads: ring_attention(*heads, indices))
        return F.mse_loss(out, mine, reduction="sum") / tokens.numel()

    def add_up():
        for parameter in split.parameters():
            dist.all_reduce(parameter.grad)

    train(one, lambda: F.mse_loss(output(one, tokens, causal), tokens))
    train(split, share, add_up)
    check(one.parameters(), split.parameters())
""",
    "helpers/parallel/experts/expert_parallel.py": """
def build_layer():
    torch.manual_seed(0)
    layer = nn.Linear(4, 4, bias=False)  # the router
    layer.experts = nn.Parameter(torch.randn(4, 4, 4))  # a matrix for each of four experts
    return layer.double()


def on_rank(rank, size):
    one, split, mine = build_layer(), build_layer(), x.chunk(size)[rank]
    split.experts = nn.Parameter(split.experts.detach().chunk(size)[rank].clone())

    def all_experts(tokens):
        experts, weights, _ = route(one(tokens), k=2)
        weights = torch.zeros(len(tokens), 4).double().scatter(1, experts, weights)
        return torch.einsum("te,th,ehf->tf", weights, tokens, one.experts)

    def own_experts(tokens):
        experts, weights, _ = route(split(tokens), k=2)
        return expert_parallel(tokens, experts, weights, compute, num_experts=4)

    def compute(rows, counts):
        return grouped_matmul(rows, split.experts, counts)

    def average():
        dist.all_reduce(split.weight.grad)
        for parameter in split.parameters():
            parameter.grad /= size

    train(one, lambda: F.mse_loss(all_experts(x), x))
    train(split, lambda: F.mse_loss(own_experts(mine), mine), average)
    check([one.weight, one.experts.chunk(size)[rank]], [split.weight, split.experts])
""",
    "helpers/compose/three_dimensions.py": """
def on_rank(rank, size):
    groups, model, mine = process_groups(pp=1, dp=2, tp=1), build(), x.chunk(size)[rank].chunk(2)

    def run_pipeline(inputs, targets):
        loss = sum(F.mse_loss(model(a), b) for a, b in zip(inputs, targets)) / len(inputs)
        loss.backward()
        return loss.detach()

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(3):
        train_step(run_pipeline, model, optimizer, mine, mine, groups, max_norm=0.1)
    one = build()
    one_process(one, after_backward=lambda: nn.utils.clip_grad_norm_(one.parameters(), 0.1))
    check(one.parameters(), model.parameters())
""",
}

# What a stranger adds to a core file, copied alone, so that it answers a task of a lab: (path, task) -> lines of code.
ANSWERS = {
    ("helpers/parallel/ddp/mini.py", "03.overlap"): """
def answer(model):
    return MiniDDP(model, 64, 16).wait
""",
    ("helpers/parallel/amp/mixed_precision.py", "04.scaler"): """
class answer(MiniGradScaler):
    @property
    def scale(self):
        return self.factor

    def step(self, optimizer, parameters):
        optimizer.param_groups = [{"params": parameters}]
        super().step(optimizer)
        self.update()
""",
    ("helpers/parallel/amp/mixed_precision.py", "04.order"): """
def answer(model, optimizer, scaler, micro_batches, max_norm):
    optimizer.param_groups = [{"params": [*model.parameters()]}]
    loss = torch.nn.functional.mse_loss
    amp_step(model, loss, optimizer, scaler, micro_batches, max_norm, dtype=torch.float32)
""",
    ("helpers/parallel/memory/recomputation.py", "05.checkpoint"): """
def answer(function, x, positions):
    return recompute(function, x, positions)
""",
    **{
        ("helpers/parallel/pipeline/gpipe_and_1f1b.py", f"06.{loop}"): inspect.getsource(Recorder)
        + f"""
def answer(rank, num_stages, num_microbatches):
    recorder = Recorder(rank, num_stages)
    recorder.{loop}([None] * num_microbatches, [None] * num_microbatches)
    return recorder.row
"""
        for loop in ("gpipe", "one_f_one_b")
    },
    ("helpers/parallel/zero/mini_fsdp.py", "08.stage3"): """
import math

def answer(x, shard, shape):
    full = GatheredParameters(shard, None)
    flat = Unshard.apply(shard, full)
    output = x @ flat[: math.prod(shape)].view(shape).T
    full.free()
    output.register_hook(lambda _: full.gather())
    return output
""",
    ("helpers/parallel/context_parallel/ring.py", "13.zigzag"): """
def answer(num_tokens, num_ranks):
    shards = token_indices(num_tokens, num_ranks, zigzag=True)
    return [shard.tolist() for shard in shards], torch.cat(shards).argsort().tolist()
""",
    ("helpers/parallel/context_parallel/ring.py", "13.merge"): """
def answer(out_a, lse_a, out_b, lse_b):
    out, lse = merge(out_a, lse_a[..., None], out_b, lse_b[..., None])
    return out, lse[..., 0]
""",
    ("helpers/compose/three_dimensions.py", "09.places"): """
from types import SimpleNamespace

def answer(rank, dp, pp, tp):
    global dist
    made = []  # all groups, in the order in which they would be made: those of pp, of dp, of tp
    dist = SimpleNamespace(get_rank=lambda: rank, new_group=lambda ranks: made.append(ranks) or ranks)
    own = process_groups(pp=pp, dp=dp, tp=tp)
    ends = [dp * tp, dp * tp + pp * tp]
    groups = {"dp": made[ends[0] : ends[1]], "pp": made[: ends[0]], "tp": made[ends[1] :]}
    return {axis: ranks.index(rank) for axis, ranks in own.items()}, groups
""",
}

# Runs each script of its arguments in a process of its own. torch is imported once, which takes longer than a script.
RUN_ALL = """
import os, runpy, sys
import torch, torch.distributed, torch.multiprocessing, torch._dynamo  # optimizers import the last one

for path in sys.argv[1:]:
    if not (child := os.fork()):
        runpy.run_path(path, run_name="__main__")
    print("exit code", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    print("== next ==", flush=True)
"""


def script(path: str) -> str:
    """The core file as it is, and below it what trains with it on two ranks."""
    core = (ROOT / path).read_text(encoding="utf-8")
    return f'{core}{COMMON}\n{ON_RANK[path]}\n\nif __name__ == "__main__":\n    main()\n'


def answer(path: str, task: str):
    """The function or class that the core file, copied alone, answers a lab's task with."""
    module = types.ModuleType(f"copied for {task}")
    core = (ROOT / path).read_text(encoding="utf-8")
    exec(compile(f"{core}\n{ANSWERS[path, task]}", "copied.py", "exec"), module.__dict__)
    sys.modules[module.__name__] = module
    cloudpickle.register_pickle_by_value(module)
    return module.answer
