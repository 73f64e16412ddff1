"""A pipeline equals one process, for every schedule: losses, gradients and weights of several steps, in float64."""

from functools import lru_cache

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from helpers.chapters import pipeline
from helpers.chapters.pipeline import PipelineRank
from helpers.devices import computing_device
from helpers.observe.comms import record_comms
from helpers.observe.training import Training
from helpers.parallel.pipeline import PipelineCore, PipelineStage
from helpers.parallel.pipeline.partition import FunctionLayer, partition
from helpers.parallel.zero import Zero1
from helpers.ranks import RankError
from helpers.schedules import ORDERS, Schedule, gpipe, interleaved, one_f_one_b, zb_h1
from helpers.workloads import GPT, MLP, GPTConfig, SmallResNet, token_loss

STEPS, ROWS = 3, 8


def build(kind):
    torch.manual_seed(0)
    return {
        "gpt": lambda: GPT(GPTConfig.tiny(context=8, num_layers=3, hidden=16)),
        "resnet": lambda: SmallResNet(width=4, norm=lambda channels: nn.GroupNorm(2, channels)),
        "mlp": lambda: MLP([8, 16, 16, 16, 10]),
        "sequential": lambda: nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(8)]),
    }[kind]().double()


def data(kind):
    generator = torch.Generator().manual_seed(3)
    if kind == "gpt":
        return [(torch.randint(0, 68, (ROWS, 8), generator=generator),) * 2 for _ in range(STEPS)]
    shape = (ROWS, 1, 8, 8) if kind == "resnet" else (ROWS, 8)
    draw = lambda: torch.randn(shape, generator=generator, dtype=torch.float64)  # noqa: E731
    return [(draw(), torch.randint(0, 8, (ROWS,), generator=generator)) for _ in range(STEPS)]


def training(kind):
    return Training(
        model=lambda: build(kind),
        batch=lambda step: data(kind)[step],
        loss=token_loss if kind == "gpt" else nn.functional.cross_entropy,
        options=dict(lr=1e-2, foreach=False),
        steps=STEPS,
    )


one_process = lru_cache(lambda kind: training(kind).run())


def check(pool, kind, schedule, strategy=PipelineRank, **options):
    """Every rank holds what one process has under these names, and together they hold all of it."""
    trained = training(kind).under(strategy, schedule=schedule, **options)
    pipeline._compare(one_process(kind), pool[: schedule.num_ranks].run(trained.run))


class CoreRank(PipelineRank):
    """A rank of the core alone: without tied weights, without a split backward."""

    def __init__(self, model, training, schedule):
        super().__init__(model, training, schedule)
        self.model = PipelineCore(partition(model, schedule.num_stages), dist.group.WORLD, schedule, training.loss)
        self.forward_backward = self.model.step


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4])
def test_the_core_equals_one_process(ranks, num_ranks):
    for schedule in (one_f_one_b(num_ranks, 4), interleaved(2 * num_ranks, 4, 2) if num_ranks != 3 else zb_h1(3, 4)):
        check(ranks, "sequential", schedule, CoreRank)


SPLIT = [4, *(pytest.param(size, marks=pytest.mark.slow) for size in (1, 2))]


@pytest.mark.parametrize("num_ranks", SPLIT)
@pytest.mark.parametrize("name", ORDERS)
def test_every_schedule_equals_one_process(ranks, num_ranks, name):
    check(ranks, "sequential", ORDERS[name](num_ranks * (1 + (name == "interleaved")), 4))


@pytest.mark.parametrize("name", ORDERS)
def test_a_gpt_with_tied_embeddings_equals_one_process(ranks, name):
    check(ranks, "gpt", ORDERS[name](4, 4))


@pytest.mark.parametrize("make", [one_f_one_b, zb_h1])
@pytest.mark.parametrize("kind, num_ranks", [("resnet", 3), ("resnet", 2), ("mlp", 4), ("mlp", 2)])
def test_models_that_are_no_sequential_equal_one_process(ranks, kind, num_ranks, make):
    check(ranks, kind, make(num_ranks, 4))


@pytest.mark.parametrize("make", [gpipe, zb_h1])
def test_recomputation_inside_a_stage_changes_nothing(ranks, make):
    check(ranks, "gpt", make(2, 4), recompute=True)


@pytest.mark.parametrize("m", [1, 2])
def test_fewer_micro_batches_than_stages_work(ranks, m):
    check(ranks, "mlp", one_f_one_b(4, m))


def test_costs_move_the_cuts(ranks):
    def layers_held(costs):
        stage = PipelineStage(build("sequential"), None, gpipe(2, 1), loss=nn.functional.cross_entropy, costs=costs)
        return sum(len(chunk) for chunk in stage.chunks.values())

    costs = [10.0, 1, 1, 1, 1, 1, 1, 1]
    assert ranks[:2].run(layers_held, costs) == [1, 7]
    check(ranks, "sequential", one_f_one_b(2, 4), costs=costs)


# -- unequal tokens, data parallelism, the norm ----------------------------------------------------------------------
def uneven():
    """Tokens of which micro-batches have unequal numbers that count."""
    (tokens, _), *_ = data("gpt")
    targets = tokens.clone()
    for row in range(ROWS):
        targets[row, : row % 6] = -100
    return tokens, targets


def token_sum(logits, targets):
    return token_loss(logits, targets, reduction="sum")


def num_tokens(targets):
    return (targets != -100).sum()


def on_a_mesh(kind, num_copies):
    """On a mesh of copies x stages: the loss, and the gradients by name. A GPT's tokens are counted over all copies."""
    model = build(kind)
    names = {parameter: name for name, parameter in model.named_parameters()}
    shape = (num_copies, dist.get_world_size() // num_copies)
    mesh = init_device_mesh(computing_device().type, shape, mesh_dim_names=("dp", "pp"))
    pp, dp = mesh["pp"].get_group(), mesh["dp"].get_group()
    how = dict(loss=token_sum, count=num_tokens) if kind == "gpt" else dict(loss=nn.functional.cross_entropy)
    stage = PipelineStage(model, pp, one_f_one_b(dist.get_world_size(pp), 2), dp_group=dp, **how)
    x, y = (each.chunk(num_copies)[mesh.get_local_rank("dp")] for each in one_batch(kind))
    found = {} if (loss := stage.step(x, y)) is None else {"loss": loss}
    for each in found.values():
        dist.all_reduce(each, op=dist.ReduceOp.SUM if kind == "gpt" else dist.ReduceOp.AVG, group=dp)
    found["norm"] = stage.clip_grad_norm_(0.5)
    return found | {f"{names[p]}.grad": p.grad for p in stage.parameters()}


def one_batch(kind):
    return uneven() if kind == "gpt" else data(kind)[0]


@pytest.mark.parametrize(
    "kind, num_ranks, num_copies", [*(("gpt", *n) for n in ((2, 1), (2, 2), (4, 2), (4, 1))), ("mlp", 4, 2)]
)
def test_the_mean_over_tokens_or_copies_and_the_clipped_norm_on_a_mesh(ranks, kind, num_ranks, num_copies):
    model, (x, y) = build(kind), one_batch(kind)
    loss = training(kind).loss(model(x), y)
    loss.backward()
    found = {"loss": loss, "norm": nn.utils.clip_grad_norm_(model.parameters(), 0.5)}
    found |= {f"{name}.grad": p.grad for name, p in model.named_parameters()}
    pipeline._compare(found, ranks[:num_ranks].run(on_a_mesh, kind, num_copies))


def two_numbers():
    """A stage of one number: the second copy's shard of it is empty."""
    mesh = init_device_mesh(computing_device().type, (2, 2), mesh_dim_names=("dp", "pp"))
    layers = [nn.Linear(1, 1, bias=False).double(), nn.Linear(1, 1, bias=False).double()]
    for layer in layers:
        nn.init.ones_(layer.weight)
    stage = PipelineStage(layers, mesh["pp"].get_group(), one_f_one_b(2, 1), loss=lambda output, target: output.sum())
    optimizer = Zero1(stage.parameters(), torch.optim.SGD, mesh["dp"].get_group(), lr=0.1)
    x = torch.full((4, 1), 0.5, dtype=torch.float64)
    stage.step(x, x)
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
    return stage.clip_grad_norm_(1.0).item()


def test_a_stage_without_weights_takes_part_in_the_norm(ranks):
    derivative = 1 / torch.cosh(torch.ones(2)) ** 2
    assert ranks[:2].run(stage_without_weights) == pytest.approx([derivative.norm().item()] * 2)


# -- what is sent, and what is held ----------------------------------------------------------------------------------
def messages(schedule):
    stage = PipelineStage(build("sequential"), None, schedule, loss=nn.functional.cross_entropy)
    (x, y), again, _ = data("sequential")
    stage.step(x, y)  # the first step also sends shapes
    with record_comms() as recorder:
        stage.step(*again)
    return [event.payload_bytes for event in recorder.log.events if event.op == "send"]


def test_each_cut_carries_one_message_a_micro_batch_and_direction(ranks):
    first, second = ranks[:2].run(messages, one_f_one_b(2, 4))
    assert first == second == [2 * 8 * 8] * 4  # 2 rows of 8 float64, 4 micro-batches


def most_live(schedule):
    stage = PipelineStage(build("sequential"), None, schedule, loss=nn.functional.cross_entropy)
    most, run_action = 0, stage.run_action

    def watched(action):
        nonlocal most
        run_action(action)
        most = max(most, len(stage.stored.keys() | stage.deferred.keys()))

    stage.run_action = watched
    stage.step(*data("sequential")[0])
    return most, len(stage.stored) + len(stage.deferred)


@pytest.mark.parametrize("name", [name for name in ORDERS if name != "interleaved"])
def test_a_rank_holds_as_many_micro_batches_as_the_schedule_says_and_none_afterwards(ranks, name):
    schedule = ORDERS[name](4, 8)
    assert ranks.run(most_live, schedule) == [(schedule.in_flight(rank), 0) for rank in range(4)]


def ordered_messages(schedule):
    """As on NCCL: a group for each direction, receives posted in the sender's order."""
    from helpers.parallel.pipeline.mailbox import StageMailbox

    model = build("sequential")
    stage = PipelineStage(model, None, schedule, loss=nn.functional.cross_entropy)
    stage.mailbox = StageMailbox(schedule, dist.group.WORLD, computing_device(), ordered=True)
    losses = [stage.step(x, y) for x, y in data("sequential")]
    return None if losses[0] is None else [float(loss) for loss in losses]


@pytest.mark.parametrize("make", [one_f_one_b, zb_h1, lambda p, m: interleaved(2 * p, m, 2)])
@pytest.mark.parametrize("size", [2, 4])
def test_the_order_of_messages_that_nccl_needs_gives_the_same_losses(ranks, make, size):
    model = build("sequential")
    with torch.no_grad():
        expected = [float(nn.functional.cross_entropy(model(x), y)) for x, y in data("sequential")]
    losses = ranks[:size].run(ordered_messages, make(size, 4))
    assert losses[:-1] == [None] * (size - 1) and losses[-1] == pytest.approx(expected, rel=1e-12)


def ordered_after_groups_of_ones_own(schedule):
    rank = dist.get_rank()
    for _ in range(rank):
        dist.new_group([rank], use_local_synchronization=True)
    return ordered_messages(schedule)


def test_ranks_that_have_different_numbers_of_groups_meet_in_those_of_a_pair(ranks):
    assert ranks.run(ordered_after_groups_of_ones_own, one_f_one_b(4, 4))[-1] == pytest.approx(
        ranks.run(ordered_messages, one_f_one_b(4, 4))[-1], rel=1e-12
    )


# -- bad input -------------------------------------------------------------------------------------------------------
def run_with(layers, schedule, rows):
    stage = PipelineStage(layers, None, schedule, loss=nn.functional.cross_entropy)
    for count in rows:
        stage.step(torch.randn(count, 8), torch.zeros(count, dtype=torch.long))


def linears(count):
    return nn.Sequential(*[nn.Linear(8, 8) for _ in range(count)])


def pair(x):
    return x, x


class Unknown(nn.Module):
    def forward(self, x):
        return x


TUPLE = nn.ModuleList([FunctionLayer(pair), nn.Linear(8, 8)])


@pytest.mark.parametrize(
    "layers, schedule, rows, said",
    [
        (linears(2), gpipe(3, 1), [], "schedule gpipe is for 3 ranks, but the group has 2"),
        (linears(3), interleaved(4, 2, 2), [], "3 layers cannot be divided into 4 stages"),
        (Unknown(), gpipe(2, 1), [], "cannot split a Unknown"),
        (linears(2), Schedule("mine", 2, 1, (gpipe(2, 1).actions[0], ())), [], "never does 1F0"),
        (linears(2), one_f_one_b(2, 4), [6], "a batch of 6 as inputs on rank 0.*that 4 micro-batches divide"),
        (linears(2), one_f_one_b(2, 4), [8, 4], r"stage 1 expects messages of shape \(2, 8\).*pad or drop the last"),
        (TUPLE, one_f_one_b(2, 4), [8], "stage 0 returned a tuple, but a stage passes on one tensor"),
    ],
)
def test_what_does_not_fit_gets_a_sentence(ranks, layers, schedule, rows, said):
    with pytest.raises(RankError, match=said):
        ranks[:2].run(run_with, layers, schedule, rows)


def fails_on_the_third(x):
    fails_on_the_third.calls = getattr(fails_on_the_third, "calls", 0) + 1
    if fails_on_the_third.calls == 3:
        raise RuntimeError("a stage broke")
    return x


def run_broken():
    fails_on_the_third.calls = 0
    layers = [nn.Linear(8, 8), nn.Linear(8, 8), FunctionLayer(fails_on_the_third), nn.Linear(8, 8)]
    run_with(nn.ModuleList(layers), one_f_one_b(4, 4), [8])


def test_a_stage_that_raises_in_the_middle_is_named_and_nothing_hangs(ranks):
    with pytest.raises(RankError, match="rank 2 raised RuntimeError: a stage broke") as caught:
        ranks.run(run_broken)
    assert caught.value.rank == 2


def test_a_stage_is_not_called(ranks):
    with pytest.raises(RankError, match=r"call step\(inputs, targets\) on every rank"):
        ranks[:1].run(lambda: PipelineStage(linears(1), None, gpipe(1, 1), loss=nn.functional.cross_entropy)(1))
