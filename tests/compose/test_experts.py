"""Plans with experts equal one process on every rank, and send what was predicted."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from helpers.chapters.composing import PlanRank
from helpers.compose import Plan
from helpers.observe.comms import record_comms
from helpers.observe.equality import assert_equal
from helpers.observe.training import KEY_BIAS_ROUNDING, OneProcess, Training
from helpers.parallel.experts import balance_loss, expert_layers, with_experts
from helpers.predict.traffic.axes import axis_traffic
from helpers.records import traffic_by_axis
from helpers.specs import ModelSpec
from helpers.workloads import GPT, GPTConfig
from tests.compose.cases import Case

ROWS, TOKENS = 16, 8
SHAPE = GPTConfig.tiny(vocab_size=67, context=TOKENS, num_layers=3, hidden=16, num_heads=4, num_kv_heads=2)
MIXTRAL = dict(num_experts=8, top_k=2, alpha=0.05)
DEEPSEEK = dict(num_experts=8, top_k=4, router="sigmoid", num_shared=1, bias_rate=0.01, alpha=0.01)


def gpt(**config) -> GPT:
    return with_experts(GPT(SHAPE), expert_hidden=24, **config).double()


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
    alone = trained.under(ExpertsInOneProcess, plan=plan).run()
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
