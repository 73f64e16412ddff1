"""Two ways to share a model at once: the global norm is one process's on every rank, and clipped training equals it."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from helpers.devices import computing_device
from helpers.observe.equality import assert_equal
from helpers.parallel.pipeline import PipelineStage
from helpers.parallel.tensor_parallel import gather_full_state, shard_tensor_parallel, vocab_parallel_cross_entropy
from helpers.parallel.zero.stage1 import Zero1
from helpers.parallel.zero.stage2 import Zero2
from helpers.parallel.zero.stage3 import Zero3
from helpers.schedules import one_f_one_b
from helpers.workloads import GPT, GPTConfig, token_loss

STEPS, MAX_NORM = 3, 0.2
SGD = torch.optim.SGD  # a factor on its gradients shows in the weights; Adam would divide it out again
MOMENTUM = dict(lr=0.5, momentum=0.9)


def build():
    """Cut in two, it has parts, copies of norms and biases, and a key and value head that both ranks hold."""
    torch.manual_seed(0)
    return GPT(GPTConfig.tiny(context=8, num_layers=3, hidden=16, num_heads=4, num_kv_heads=1)).double()


def batches():
    tokens = torch.randint(0, 68, (STEPS, 8, 9), generator=torch.Generator().manual_seed(3))
    return [(each[:, :-1], each[:, 1:]) for each in tokens]


def mesh_of(outer, inner):
    """The groups of both axes, and this rank's part of a batch if the outer one is data parallelism."""
    mesh = init_device_mesh(computing_device().type, (2, 2), mesh_dim_names=(outer, inner))
    rows = slice(4 * mesh.get_local_rank("dp"), 4 * mesh.get_local_rank("dp") + 4) if outer == "dp" else slice(None)
    return mesh[outer].get_group(), mesh[inner].get_group(), rows


def train(step, clip, optimizer):
    """The norms before clipping."""
    norms = []
    for x, y in batches():
        optimizer.zero_grad()
        step(x, y)
        norms.append(clip(MAX_NORM).item())
        optimizer.step()
    assert all(norm > MAX_NORM for norm in norms)
    return {"norms": torch.tensor(norms, dtype=torch.float64)}


def one_process():
    model = build()
    norms = train(
        lambda x, y: token_loss(model(x), y).backward(),
        lambda max_norm: nn.utils.clip_grad_norm_(model.parameters(), max_norm),
        SGD(model.parameters(), **MOMENTUM),
    )
    return norms | model.state_dict()


def zero_and_tensor_parallel(stage):
    dp, tp, rows = mesh_of("dp", "tp")
    part = shard_tensor_parallel(build(), tp)
    model = Zero3(part, dp) if stage == 3 else part
    optimizer = {
        1: lambda: Zero1(model.parameters(), SGD, dp, **MOMENTUM),
        2: lambda: Zero2(model, SGD, dp, **MOMENTUM),
        3: lambda: SGD(model.parameters(), **MOMENTUM),
    }[stage]()

    def step(x, y):
        vocab_parallel_cross_entropy(model(x[rows]), y[rows], tp).backward()

    norms = train(step, (model if stage == 3 else optimizer).clip_grad_norm_, optimizer)
    if stage == 3:
        part = shard_tensor_parallel(build(), tp)
        part.load_state_dict(model.full_state())
    return norms | gather_full_state(part)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_zero_and_tensor_parallel(ranks, stage):
    assert_equal(one_process(), ranks.run(zero_and_tensor_parallel, stage), atol={"*key.bias": 1e-9})


def pipeline_and_tensor_parallel():
    pp, tp, _ = mesh_of("pp", "tp")
    model = shard_tensor_parallel(build(), tp)
    names = {parameter: name for name, parameter in model.named_parameters(remove_duplicate=False)}
    stage = PipelineStage(model, pp, one_f_one_b(2, 4), loss=lambda x, y: vocab_parallel_cross_entropy(x, y, tp))
    norms = train(stage.step, stage.clip_grad_norm_, SGD(stage.parameters(), **MOMENTUM))
    held = {names[parameter] for parameter in stage.parameters()}
    return norms | {name: whole for name, whole in gather_full_state(model).items() if name in held}


def test_pipeline_and_tensor_parallel_with_a_tied_embedding(ranks):
    check_held(one_process(), ranks.run(pipeline_and_tensor_parallel))


def pipeline_and_zero():
    dp, pp, rows = mesh_of("dp", "pp")
    model = build()
    names = {parameter: name for name, parameter in model.named_parameters(remove_duplicate=False)}
    stage = PipelineStage(model, pp, one_f_one_b(2, 2), loss=token_loss)
    optimizer = Zero1(stage.parameters(), SGD, dp, **MOMENTUM)

    def step(x, y):
        with optimizer.no_sync():  # the row has two micro-batches
            stage.step(x[rows], y[rows])

    norms = train(step, optimizer.clip_grad_norm_, optimizer)
    return norms | {names[parameter]: parameter.detach() for parameter in stage.parameters()}


def test_pipeline_and_zero(ranks):
    check_held(one_process(), ranks.run(pipeline_and_zero))


def check_held(expected, by_rank):
    assert set().union(*by_rank) >= set(expected) - {"token_embedding.weight"}
    for held in by_rank:
        assert_equal({name: expected[name] for name in held}, held, atol={"*key.bias": 1e-9})


def two_numbers():
    """A stage of one number: the second copy's shard of it is empty."""
    dp, pp, rows = mesh_of("dp", "pp")
    layers = [nn.Linear(1, 1, bias=False).double(), nn.Linear(1, 1, bias=False).double()]
    for layer in layers:
        nn.init.ones_(layer.weight)
    stage = PipelineStage(layers, pp, one_f_one_b(2, 1), loss=lambda output, target: output.sum())
    optimizer = Zero1(stage.parameters(), SGD, dp, lr=0.1)
    x = torch.full((8, 1), 0.5, dtype=torch.float64)
    stage.step(x[rows], x[rows])
    return optimizer.clip_grad_norm_(1.0).item(), sum(piece.tensor.numel() for piece in optimizer.pieces)


def test_a_rank_with_an_empty_shard_knows_the_other_axes(ranks):
    norms, sizes = zip(*ranks.run(two_numbers), strict=True)
    assert norms == pytest.approx([8**0.5] * 4) and sizes == (1, 1, 0, 0)  # 2 and 2, the mean over copies


def stage_without_weights():
    """One rank has no gradient, and so no dtype of its own."""
    layers = [nn.Linear(2, 2).double(), nn.Tanh()]
    for parameter in layers[0].parameters():
        nn.init.ones_(parameter)
    stage = PipelineStage(layers, None, one_f_one_b(2, 1), loss=lambda output, target: output.sum())
    stage.step(torch.zeros(1, 2, dtype=torch.float64), torch.zeros(1))
    return stage.clip_grad_norm_(1.0).item(), dist.get_rank()


def test_a_stage_without_weights_takes_part_in_the_norm(ranks):
    norms, _ = zip(*ranks[:2].run(stage_without_weights), strict=True)
    derivative = 1 / torch.cosh(torch.ones(2)) ** 2
    assert norms == pytest.approx([derivative.norm().item()] * 2)
