"""Plans with experts equal one process on every rank, and send what was predicted."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from helpers.chapters.composing import PlanRank
from helpers.compose import Plan, Trainer, refused
from helpers.compose.checkpoint.manifest import WEIGHT, read_manifest
from helpers.devices import computing_device
from helpers.observe.comms import record_comms
from helpers.observe.equality import assert_equal
from helpers.observe.training import KEY_BIAS_ROUNDING, OneProcess, Training
from helpers.parallel.experts import balance_loss, expert_layers, with_experts
from helpers.predict.traffic.axes import axis_traffic
from helpers.records import traffic_by_axis
from helpers.specs import ModelSpec
from helpers.workloads import GPT, GPTConfig, token_loss
from tests.compose.cases import Case

ROWS, TOKENS = 16, 8
SHAPE = GPTConfig.tiny(vocab_size=67, context=TOKENS, num_layers=3, hidden=16, num_heads=4, num_kv_heads=2)
MIXTRAL = dict(num_experts=8, top_k=2, alpha=0.05)
DEEPSEEK = dict(num_experts=8, top_k=4, router="sigmoid", num_shared=1, bias_rate=0.01, alpha=0.01)


def gpt(**config) -> GPT:
    return with_experts(GPT(SHAPE), expert_hidden=24, **config).double().to(computing_device())


def batch(step: int) -> tuple[Tensor, Tensor]:
    """Two rows are one token, so some experts get many tokens and some get none; targets count in unequal numbers."""
    tokens = torch.randint(67, (ROWS, TOKENS + 1), generator=torch.Generator().manual_seed(step))
    tokens[:2] = 7
    x, y = tokens[:, :-1], tokens[:, 1:].clone()
    for row in range(ROWS):
        y[row, 1 + row % TOKENS :] = -100
    return x, y


class ExpertsInOneProcess(OneProcess):
    """Plain PyTorch, with the auxiliary loss of each of `num_microbatches` micro-batches, which are those of dp ranks.

    A rank's micro-batch is the same share of the rows of each of `dp` replicas.
    """

    def __init__(self, model, training, plan: Plan):
        super().__init__(model, training)
        self.plan = plan

    def forward_backward(self, inputs, targets):
        m, loss = self.plan.num_microbatches, torch.zeros((), dtype=torch.float64)
        numbers = torch.arange(len(inputs)).view(self.plan.dp, m, -1)  # replica, micro-batch, row
        for j in range(m):
            rows = numbers[:, j].flatten()
            share = self.loss(self.forward(inputs[rows]), targets[rows], reduction="sum") / (targets != -100).sum()
            (share + balance_loss(self.model) / m).backward()
            loss += share.detach()
        return loss

    def step(self, inputs, targets):
        result = super().step(inputs, targets)
        for layer in expert_layers(self.model):
            layer.update_bias()
        return result


def training(config: dict, optimizer=torch.optim.SGD, **options) -> Training:
    return Training(
        model=lambda: gpt(**config),
        batch=batch,
        optimizer=optimizer,
        options=options or dict(lr=0.5, momentum=0.9),
        steps=4,
        max_norm=0.2,
        state=nn.Module.state_dict,
    )


def spec(config: dict) -> ModelSpec:
    return replace(SHAPE.spec, num_experts=config["num_experts"], top_k=config["top_k"], ffn_hidden=24)


class RecordedRank(PlanRank):
    """Records what each step sends, and how many rows the experts of this rank compute in its forwards."""

    def __init__(self, model, training, plan):
        super().__init__(model, training, plan=plan)
        self.sent, self.computed = [], []
        for layer in expert_layers(self.trainer.local_model):
            layer.experts.register_forward_hook(lambda _, arguments, __: self.computed.append(int(arguments[1].sum())))

    def step(self, inputs, targets):
        self.computed.clear()
        with record_comms() as recorder:
            result = super().step(inputs, targets)
        forwards = 2 if self.trainer.plan.recompute == "full" else 1
        self.sent.append((traffic_by_axis(recorder.log, self.trainer.mesh), sum(self.computed) // forwards))
        return result


def run_recorded(trained: Training, plan: Plan):
    built = trained.under(RecordedRank, plan=plan).build()
    return trained.train(built), built.sent


def name(plan: Plan) -> str:
    return str(Case(plan, tied=True, grouped=False))


def check(pool, plan: Plan, config: dict, **options) -> None:
    """Losses, norms and weights after four steps, and the bytes of the first two on each rank."""
    trained = training(config, **options)
    (alone,) = pool[:1].run(trained.under(ExpertsInOneProcess, plan=plan).run)
    assert alone["norms"].min() > trained.max_norm
    results = pool[: plan.world_size].run(run_recorded, trained, plan)
    assert_equal(alone, [found for found, _ in results], rtol=1e-10, atol=KEY_BIAS_ROUNDING)
    if "num_shared" in config:
        return  # messages of shared experts are not predicted
    sized = replace(plan, micro_batch=ROWS // (plan.dp * plan.num_microbatches))
    for rank, (_, steps) in enumerate(results):
        for step, (sent, rows) in enumerate(steps[:2]):
            how = dict(dtype_bytes=8, first_step=step == 0, expert_rows=rows)
            assert sent == axis_traffic(spec(config), sized, rank, **how), f"rank {rank}"


PLANS = [
    Plan(dp=2, ep=2),
    Plan(dp=4, ep=2),
    Plan(dp=4, ep=4, num_microbatches=2),
    Plan(dp=2, ep=2, tp=2),
    Plan(dp=2, ep=2, pp=2, num_microbatches=4),
    Plan(dp=4, ep=2, zero=1),
    Plan(dp=2, ep=2, zero=1, num_microbatches=2),
    Plan(dp=4, ep=2, zero=2, num_microbatches=2),
]


OTHERS = [
    # three axes, and options that run layers of experts again or in other orders
    Plan(dp=2, ep=2, tp=2, pp=2, zero=1, num_microbatches=2),
    Plan(dp=2, ep=2, pp=2, num_microbatches=4, schedule="zb_h1", recompute="full"),
    Plan(dp=2, ep=2, pp=2, num_microbatches=4, num_chunks=2, schedule="interleaved"),
    Plan(dp=4, ep=2, tp=2, recompute="selective"),
    Plan(dp=2, ep=2, num_microbatches=2, recompute="full"),
    Plan(dp=2, ep=2, pp=4, num_microbatches=4),  # 5 layers: the last stage has one, the head
    # tokens of a sequence on several ranks, of which some share experts
    Plan(cp=2, ep=2),
    Plan(cp=2, dp=2, ep=2, zero=1),
    Plan(cp=2, dp=2, ep=4, tp=2),
    Plan(cp=3, ep=1, zero=1),
    Plan(cp=2, dp=2, ep=2, pp=2, num_microbatches=2, cp_method="all_to_all"),
    # all experts on each rank, but choices are counted over all
    Plan(dp=2, num_microbatches=2),
    Plan(dp=2, zero=3, num_microbatches=2),
    Plan(tp=2, pp=2, num_microbatches=2),
]


@pytest.mark.parametrize("plan", OTHERS, ids=name)
def test_on_three_axes_and_with_options_it_equals_one_process(eight, plan):
    check(eight, plan, MIXTRAL)


@pytest.mark.parametrize("plan", OTHERS[::3], ids=name)
def test_biases_and_shared_experts_under_adamw(eight, plan):
    check(eight, plan, DEEPSEEK, optimizer=torch.optim.AdamW, lr=1e-2, eps=1e-6)


@pytest.mark.parametrize("plan", PLANS, ids=name)
def test_clipped_steps_of_sgd_equal_one_process(eight, plan):
    """A factor on the gradients of experts shows in SGD's weights and in the norm; Adam would divide it out again."""
    check(eight, plan, MIXTRAL)


# -- checkpoints -------------------------------------------------------------------------------------------------------
# biases count all tokens of a step, so without an auxiliary loss micro-batches make no difference
RESUMED_TRAINING = training(DEEPSEEK | dict(alpha=0.0), torch.optim.AdamW, lr=1e-2, eps=1e-6)
CHAIN = [
    Plan(dp=4, ep=2, zero=1),
    Plan(dp=4, ep=2, num_microbatches=2),
    Plan(dp=2, ep=2, pp=2, zero=1, num_microbatches=4),
    Plan(dp=2, ep=1, tp=2),
    Plan(cp=2, dp=2, ep=2, zero=2),
]


def one_step(folder, plan, number):
    """Step `number` of a run, which begins with what the plan before saved, and saves for the next."""
    load = str(folder / f"step_{number}") if number else ""
    trained = replace(RESUMED_TRAINING, steps=1).under(PlanRank, plan=plan, load=load)
    rank = trained.build()
    assert rank.first_step == number
    found = trained.train(rank)
    rank.trainer.save(folder / f"step_{number + 1}")
    return found


def test_each_step_under_another_plan_equals_one_process(ranks, tmp_path):
    """Experts, the optimizer's states of each, and biases go on at another ep."""
    alone = replace(RESUMED_TRAINING, steps=len(CHAIN)).under(ExpertsInOneProcess, plan=Plan()).run()
    for number, plan in enumerate(CHAIN):
        found = ranks.run(one_step, tmp_path, plan, number)
        pieces = [piece for piece in read_manifest(tmp_path / f"step_{number + 1}").pieces if piece.key == WEIGHT]
        experts = sum(piece.numel for piece in pieces if piece.name == "blocks.1.feed_forward.experts.up")
        # each is saved once; with ZeRO rank 0 saves those again of which it has no shard
        assert plan.zero or experts == alone["blocks.1.feed_forward.experts.up"].numel()
        for name in ("losses", "norms"):
            assert_equal({name: alone[name][number : number + 1]}, [{name: each[name]} for each in found], rtol=1e-10)
    state = {name: tensor for name, tensor in alone.items() if name not in ("losses", "norms")}
    assert state["blocks.0.feed_forward.bias"].abs().max() > 0
    assert_equal(state, [{name: each[name] for name in state} for each in found], rtol=1e-10, atol=KEY_BIAS_ROUNDING)


# -- what is refused ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("model", "plan", "says"),
    [
        (GPT(SHAPE), Plan(dp=2, ep=2), "this GPT has none: build it with with_experts.*, or use ep=1"),
        (gpt(num_experts=6, top_k=2), Plan(dp=4, ep=4), "ep=4 does not divide the 6 .* use ep=2, or num_experts=8"),
        (gpt(**MIXTRAL), Plan(tp=2, dp=2, sequence_parallel=True), "experts are replicated over tp, .* use sequence_p"),
        (gpt(**MIXTRAL, capacity_factor=1.5), Plan(dp=2, ep=2), "would drop others .* use capacity_factor=None"),
        (gpt(**MIXTRAL), Plan(dp=4, ep=2, zero=3), "zero=3 with ep=2 is not written: .* Use zero=2, or ep=1"),
    ],
    ids=["no experts", "experts", "sequence parallel", "capacity", "zero 3"],
)
def test_what_cannot_be_split_is_a_sentence(model, plan, says):
    with pytest.raises(ValueError, match=says):
        refused.check(model, plan)


def test_an_ep_that_does_not_divide_the_ranks_is_a_sentence():
    with pytest.raises(ValueError, match="ep=3 does not divide dp \\* cp=4; choose one that does"):
        Plan(dp=4, ep=3)


def in_float16(plan: Plan) -> tuple[Tensor, int]:
    torch.manual_seed(0)
    how = dict(loss=token_loss, optimizer=torch.optim.AdamW, lr=1e-3, dtype=torch.float16)
    trainer = Trainer(gpt(**DEEPSEEK).float(), plan, **how)
    return torch.stack([trainer.step(*batch(step)) for step in range(3)]), trainer.scaler.skipped


@pytest.mark.parametrize("plan", [Plan(dp=4, ep=2), Plan(dp=2, ep=2, pp=2, num_microbatches=2)], ids=name)
def test_the_auxiliary_loss_does_not_overflow_in_float16(ranks, plan):
    torch.manual_seed(0)
    x, y = batch(0)
    first = token_loss(gpt(**DEEPSEEK).float()(x), y)
    for losses, skipped in ranks.run(in_float16, plan):
        assert losses[0] == pytest.approx(float(first.detach()), rel=2**-10)
        assert skipped == 0
