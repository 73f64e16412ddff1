"""A pipeline equals one process, for every schedule: losses, gradients and weights of several steps, in float64."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from helpers.devices import computing_device
from helpers.observe.comms import record_comms
from helpers.observe.equality import assert_equal
from helpers.parallel.pipeline import PipelineCore, PipelineStage
from helpers.parallel.pipeline.partition import FunctionLayer, partition
from helpers.ranks import RankError
from helpers.schedules import ORDERS, Schedule, gpipe, interleaved, one_f_one_b, zb_h1
from helpers.workloads import GPT, MLP, GPTConfig, SmallResNet, token_loss

STEPS, ROWS = 3, 8


def build(kind, seed=0):
    torch.manual_seed(seed)
    return {
        "gpt": lambda: GPT(GPTConfig.tiny(context=8, num_layers=3, hidden=16)),
        "gpt dropout": lambda: GPT(GPTConfig.tiny(context=8, num_layers=3, hidden=16, dropout=0.1)),
        "resnet": lambda: SmallResNet(width=4, norm=lambda channels: nn.GroupNorm(2, channels)),
        "mlp": lambda: MLP([8, 16, 16, 16, 10]),
        "sequential": lambda: nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(8)]),
    }[kind]().double()


def data(kind):
    generator = torch.Generator().manual_seed(3)
    if kind.startswith("gpt"):
        return [(torch.randint(0, 68, (ROWS, 8), generator=generator),) * 2 for _ in range(STEPS)]
    shape = (ROWS, 1, 8, 8) if kind == "resnet" else (ROWS, 8)
    draw = lambda: torch.randn(shape, generator=generator, dtype=torch.float64)  # noqa: E731
    return [(draw(), torch.randint(0, 8, (ROWS,), generator=generator)) for _ in range(STEPS)]


def loss_of(kind):
    return token_loss if kind.startswith("gpt") else nn.functional.cross_entropy


def optimizer_of(parameters):
    return torch.optim.AdamW(parameters, lr=1e-2, eps=1e-8, foreach=False)


def note(history, step, names, parameters, loss):
    for parameter in parameters:
        name = names[parameter]
        history[f"{step} {name}"] = parameter.detach().clone()
        history[f"{step} {name}.grad"] = parameter.grad.clone()
    if loss is not None:
        history[f"{step} loss"] = loss.detach().clone()


def one_process(kind):
    model, history = build(kind), {}
    names = {parameter: name for name, parameter in model.named_parameters()}
    optimizer = optimizer_of(model.parameters())
    for step, (x, y) in enumerate(data(kind)):
        optimizer.zero_grad()
        loss = loss_of(kind)(model(x), y)
        loss.backward()
        optimizer.step()
        note(history, step, names, names, loss)
    return history


def core(model, group, schedule, loss):
    return PipelineCore(partition(model, schedule.num_stages), dist.group.WORLD, schedule, loss)


def pipelined(kind, schedule, make=PipelineStage, **options):
    model, history = build(kind), {}
    names = {parameter: name for name, parameter in model.named_parameters()}
    stage = make(model, None, schedule, loss=loss_of(kind), **options)
    optimizer = optimizer_of(stage.parameters())
    for step, (x, y) in enumerate(data(kind)):
        optimizer.zero_grad()
        loss = stage.step(x, y)
        optimizer.step()
        note(history, step, names, set(stage.parameters()), loss)
    return history


def check(reference, by_rank):
    """Every rank holds what one process has under these names, and together they hold all of it."""
    assert set().union(*by_rank) == set(reference)
    for history in by_rank:
        assert_equal({name: reference[name] for name in history}, history, atol={"*.key.bias*": 1e-9})


def schedules_for(num_ranks, m=4):
    made = [ORDERS[name](num_ranks, m) for name in ORDERS if name != "interleaved"]
    return [*made, interleaved(2 * num_ranks, m, 2)] if m % num_ranks == 0 else made


@pytest.fixture(scope="module")
def references():
    return {}


def reference_of(references, kind):
    if kind not in references:
        references[kind] = one_process(kind)
    return references[kind]


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4])
def test_the_core_equals_one_process(ranks, references, num_ranks):
    for schedule in (one_f_one_b(num_ranks, 4), interleaved(2 * num_ranks, 4, 2) if num_ranks != 3 else zb_h1(3, 4)):
        check(reference_of(references, "sequential"), ranks[:num_ranks].run(pipelined, "sequential", schedule, core))


@pytest.mark.parametrize(
    "num_ranks", [pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow), 4]
)
@pytest.mark.parametrize("name", ORDERS)
def test_every_schedule_equals_one_process(ranks, references, num_ranks, name):
    made = {schedule.name: schedule for schedule in schedules_for(num_ranks)}
    check(reference_of(references, "sequential"), ranks[:num_ranks].run(pipelined, "sequential", made[name]))


@pytest.mark.parametrize("name", ORDERS)
def test_a_gpt_with_tied_embeddings_equals_one_process(ranks, references, name):
    schedule = ORDERS[name](4, 4) if name != "interleaved" else interleaved(4, 4, 2)
    check(reference_of(references, "gpt"), ranks[: schedule.num_ranks].run(pipelined, "gpt", schedule))


@pytest.mark.parametrize("make", [one_f_one_b, zb_h1])
@pytest.mark.parametrize("kind, num_ranks", [("resnet", 3), ("resnet", 2), ("mlp", 4), ("mlp", 2)])
def test_models_that_are_no_sequential_equal_one_process(ranks, references, kind, num_ranks, make):
    check(reference_of(references, kind), ranks[:num_ranks].run(pipelined, kind, make(num_ranks, 4)))


@pytest.mark.parametrize("make", [gpipe, zb_h1])
def test_recomputation_inside_a_stage_changes_nothing(ranks, references, make):
    check(reference_of(references, "gpt"), ranks[:2].run(pipelined, "gpt", make(2, 4), recompute=True))


@pytest.mark.parametrize("m", [1, 2])
def test_fewer_micro_batches_than_stages_work(ranks, references, m):
    check(reference_of(references, "mlp"), ranks.run(pipelined, "mlp", one_f_one_b(4, m)))


def test_costs_move_the_cuts(ranks, references):
    sizes = ranks[:2].run(_sizes, [10.0, 1, 1, 1, 1, 1, 1, 1])
    assert sizes == [1, 7]
    costs = [10.0, 1, 1, 1, 1, 1, 1, 1]
    check(
        reference_of(references, "sequential"), ranks[:2].run(pipelined, "sequential", one_f_one_b(2, 4), costs=costs)
    )


def _sizes(costs):
    stage = PipelineStage(build("sequential"), None, gpipe(2, 1), loss=nn.functional.cross_entropy, costs=costs)
    return sum(len(chunk) for chunk in stage.chunks.values())


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


def counted(num_copies):
    """On a mesh of copies x stages: the loss, and the gradients by name."""
    model = build("gpt")
    names = {parameter: name for name, parameter in model.named_parameters()}
    shape = (num_copies, dist.get_world_size() // num_copies)
    mesh = init_device_mesh(computing_device().type, shape, mesh_dim_names=("dp", "pp"))
    pp, dp = mesh["pp"].get_group(), mesh["dp"].get_group()
    schedule = one_f_one_b(dist.get_world_size(pp), 2)
    stage = PipelineStage(model, pp, schedule, loss=token_sum, count=num_tokens, dp_group=dp)
    x, y = (batch.chunk(num_copies)[mesh.get_local_rank("dp")] for batch in uneven())
    loss = stage.step(x, y)
    if loss is not None:
        dist.all_reduce(loss, group=dp)
    norm = stage.clip_grad_norm_(0.5)
    return loss, norm, {f"{names[p]}.grad": p.grad for p in stage.parameters()}


@pytest.mark.parametrize("num_ranks, num_copies", [(2, 1), (2, 2), (4, 2), (4, 1)])
def test_the_mean_over_tokens_and_the_clipped_norm_on_a_mesh(ranks, num_ranks, num_copies):
    model = build("gpt")
    x, y = uneven()
    loss = token_loss(model(x), y)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    reference = {f"{name}.grad": p.grad for name, p in model.named_parameters()}
    for found, its_norm, gradients in ranks[:num_ranks].run(counted, num_copies):
        assert_equal({name: reference[name] for name in gradients}, gradients, atol={"*.key.bias*": 1e-9})
        torch.testing.assert_close(its_norm, norm, rtol=1e-12, atol=0)
        if found is not None:
            torch.testing.assert_close(found, loss.detach(), rtol=1e-12, atol=0)


def averaged_copies():
    mesh = init_device_mesh(computing_device().type, (2, 2), mesh_dim_names=("dp", "pp"))
    model = build("mlp")
    names = {parameter: name for name, parameter in model.named_parameters()}
    groups = dict(group=mesh["pp"].get_group(), dp_group=mesh["dp"].get_group())
    stage = PipelineStage(model, schedule=gpipe(2, 2), loss=nn.functional.cross_entropy, **groups)
    x, y = (batch.chunk(2)[mesh.get_local_rank("dp")] for batch in data("mlp")[0])
    stage.step(x, y)
    return {f"{names[p]}.grad": p.grad for p in stage.parameters()}


def test_data_parallel_copies_average_their_gradients(ranks):
    model = build("mlp")
    x, y = data("mlp")[0]
    nn.functional.cross_entropy(model(x), y).backward()
    reference = {f"{name}.grad": p.grad for name, p in model.named_parameters()}
    for gradients in ranks.run(averaged_copies):
        assert_equal({name: reference[name] for name in gradients}, gradients)


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
def construct(layers, schedule):
    PipelineStage(layers, None, schedule, loss=nn.functional.cross_entropy)


def linears(count):
    return nn.Sequential(*[nn.Linear(8, 8) for _ in range(count)])


class Unknown(nn.Module):
    def forward(self, x):
        return x


@pytest.mark.parametrize(
    "model, schedule, said",
    [
        (linears(2), gpipe(3, 1), "schedule gpipe is for 3 ranks, but the group has 2"),
        (linears(3), interleaved(4, 2, 2), "3 layers cannot be divided into 4 stages"),
        (Unknown(), gpipe(2, 1), "cannot split a Unknown"),
        (linears(2), Schedule("mine", 2, 1, (gpipe(2, 1).actions[0], ())), "never does 1F0"),
    ],
)
def test_what_does_not_fit_gets_a_sentence(ranks, model, schedule, said):
    with pytest.raises(RankError, match=said):
        ranks[:2].run(construct, model, schedule)


def run_with(layers, rows, m=4):
    stage = PipelineStage(layers, None, one_f_one_b(2, m), loss=nn.functional.cross_entropy)
    for count in rows:
        x = torch.randn(count, 8)
        stage.step(x, torch.zeros(count, dtype=torch.long))


def test_a_batch_that_does_not_divide_gets_a_sentence(ranks):
    with pytest.raises(RankError, match="a batch of 6 as inputs on rank 0.*that 4 micro-batches divide"):
        ranks[:2].run(run_with, linears(2), [6])


def test_another_batch_size_later_gets_a_sentence(ranks):
    with pytest.raises(RankError, match=r"stage 1 expects messages of shape \(2, 8\).*pad or drop the last batch"):
        ranks[:2].run(run_with, linears(2), [8, 4])


def pair(x):
    return x, x


def test_an_output_that_is_no_tensor_gets_a_sentence(ranks):
    layers = nn.ModuleList([FunctionLayer(pair), nn.Linear(8, 8)])
    with pytest.raises(RankError, match="stage 0 returned a tuple, but a stage passes on one tensor"):
        ranks[:2].run(run_with, layers, [8])


def fails_on_the_third(x):
    fails_on_the_third.calls = getattr(fails_on_the_third, "calls", 0) + 1
    if fails_on_the_third.calls == 3:
        raise RuntimeError("a stage broke")
    return x


def run_broken():
    fails_on_the_third.calls = 0
    layers = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8), FunctionLayer(fails_on_the_third), nn.Linear(8, 8)])
    stage = PipelineStage(layers, None, one_f_one_b(4, 4), loss=nn.functional.cross_entropy)
    stage.step(torch.randn(8, 8), torch.zeros(8, dtype=torch.long))


def test_a_stage_that_raises_in_the_middle_is_named_and_nothing_hangs(ranks):
    with pytest.raises(RankError, match="rank 2 raised RuntimeError: a stage broke") as caught:
        ranks.run(run_broken)
    assert caught.value.rank == 2


def test_a_stage_is_not_called(ranks):
    with pytest.raises(RankError, match=r"call step\(inputs, targets\) on every rank"):
        ranks[:1].run(lambda: PipelineStage(linears(1), None, gpipe(1, 1), loss=nn.functional.cross_entropy)(1))
