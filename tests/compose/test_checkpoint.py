"""Saved under one plan, resumed under another: equal to never having stopped."""

import shutil

import pytest
import torch
from torch import nn

from helpers.compose import Plan, Trainer
from helpers.observe.equality import assert_equal
from helpers.ranks import RankError
from helpers.workloads import GPT, GPTConfig, token_loss
from tests.compose.cases import Case
from tests.compose.training import ADAMW, MAX_NORM, NO_GRADIENT, STEPS, batches, build, told

CUBE = Plan(dp=2, pp=2, tp=2, zero=1, num_microbatches=4, schedule="zb_h1", sequence_parallel=True)
HOW = dict(loss=token_loss, optimizer=torch.optim.AdamW, max_norm=MAX_NORM, **ADAMW)


def run(plan, folder=None, resumed=False, first=0, last=STEPS):
    """Steps first … last of the run that all do; the checkpoint is written behind the last one."""
    case = Case(plan, tied=True, grouped=True)
    model = build(case)
    trainer = Trainer.load(folder / f"step_{first}", model, plan, **HOW) if resumed else Trainer(model, plan, **HOW)
    assert trainer.steps == first
    losses, norms = [], []
    for x, y in batches(case)[first:last]:
        losses.append(trainer.step(x, y))
        norms.append(trainer.grad_norm)
    if folder is not None:
        trainer.save(folder / f"step_{last}")
    return told(losses, norms, trainer.full_state())


def check(expected, got, first):
    cut = {name: tensor[first:] if name in ("losses", "norms") else tensor for name, tensor in expected.items()}
    assert_equal(cut, got, rtol=1e-10, atol=NO_GRADIENT)


@pytest.fixture(scope="module")
def expected(eight):
    """What one process has after all steps."""
    return eight[:1].run(run, Plan())[0]


def test_eight_then_four_copies_then_four_columns_then_one_process(eight, expected, tmp_path):
    eight.run(run, CUBE, tmp_path, last=2)
    eight[:4].run(run, Plan(dp=4, zero=3, num_microbatches=2), tmp_path, resumed=True, first=2, last=3)
    eight[:4].run(run, Plan(tp=4), tmp_path, resumed=True, first=3, last=4)
    check(expected, eight[:1].run(run, Plan(), tmp_path, resumed=True, first=4), first=4)


OTHERS = [
    Plan(dp=2, tp=2, zero=2, num_microbatches=2),
    Plan(pp=2, tp=2, num_microbatches=2, recompute="full"),
    Plan(dp=2, pp=2, num_chunks=2, num_microbatches=2, schedule="interleaved"),
    Plan(dp=3, zero=1),
]


@pytest.fixture(scope="module", params=OTHERS[:3], ids=str)
def before(eight, request, tmp_path_factory):
    """The folder in which a plan has saved its second step, for all who go on from there."""
    folder = tmp_path_factory.mktemp("before")
    eight[:4].run(run, request.param, folder, last=2)
    return folder


@pytest.mark.parametrize("after", OTHERS[:3], ids=str)
def test_from_any_to_any(eight, expected, tmp_path, before, after):
    shutil.copytree(before, tmp_path, dirs_exist_ok=True)
    check(expected, eight[:4].run(run, after, tmp_path, resumed=True, first=2), first=2)


WITH_CONTEXT = [
    Plan(cp=2, tp=2, sequence_parallel=True),
    Plan(cp=2, pp=2, num_microbatches=2, cp_method="all_gather"),
    Plan(cp=4, zero=3),
    Plan(dp=2, zero=1, cp=2, cp_method="all_to_all"),
    Plan(dp=4),
]


@pytest.mark.parametrize("first, then", [*zip(WITH_CONTEXT[:-1], WITH_CONTEXT[1:], strict=True)], ids=str)
def test_context_parallel_ranks_resume_under_another_plan(eight, expected, tmp_path, first, then):
    eight[:4].run(run, first, tmp_path, last=2)
    check(expected, eight[:4].run(run, then, tmp_path, resumed=True, first=2), first=2)


def test_of_ranks_with_equal_weights_the_first_saves_them(eight, tmp_path):
    eight[:4].run(run, Plan(cp=4), tmp_path, last=1)
    sizes = [path.stat().st_size for path in sorted((tmp_path / "step_1").glob("rank_*.pt"))]
    assert sizes[0] > 20 * max(sizes[1:])


# ---- ZeRO, resumed by another number of ranks ----


class OddNet(nn.Module):
    """Tied and frozen weights, a buffer that changes, and sizes that no number of ranks divides."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(5, 7), nn.Linear(7, 5)])
        self.again = nn.Linear(5, 7, bias=False)
        self.again.weight = self.blocks[0].weight
        self.frozen = nn.Linear(5, 5).requires_grad_(False)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return self.blocks[1](torch.tanh(self.blocks[0](x) + self.again(self.frozen(x))))


def run_odd_net(plan, first, last, folder=None):
    """Steps first … last; a run that begins at 0 saves at its end, and a later one loads before it begins."""
    torch.manual_seed(first)  # other weights for the later run: all of them must come from the checkpoint
    how = dict(loss=nn.functional.mse_loss, optimizer=torch.optim.AdamW, lr=1e-2, weight_decay=0.1)
    model = OddNet().double()
    trainer = Trainer.load(folder, model, plan, **how) if first else Trainer(model, plan, **how)
    losses = []
    for step in range(first, last):
        torch.manual_seed(100 + step)
        losses.append(trainer.step(*torch.randn(2, 12, 5, dtype=torch.float64)))  # 1, 2, 3 and 4 ranks divide 12 rows
    if folder and not first:
        trainer.save(folder)
    return {"losses": torch.stack(losses)} | trainer.full_state()


@pytest.mark.parametrize("before, after", [(2, 3), (4, 1), (1, 4), (3, 2)])
@pytest.mark.parametrize("zero", [1, 2, 3])
def test_zero_goes_on_with_another_number_of_ranks(ranks, tmp_path, zero, before, after):
    expected = ranks[:1].run(run_odd_net, Plan(), 0, 6)[0]
    ranks[:before].run(run_odd_net, Plan(dp=before, zero=zero), 0, 3, tmp_path / "step_3")
    second = ranks[:after].run(run_odd_net, Plan(dp=after, zero=zero), 3, 6, tmp_path / "step_3")
    assert_equal(expected | {"losses": expected["losses"][3:]}, second, rtol=1e-10)


@pytest.fixture
def saved(ranks, tmp_path):
    ranks[:2].run(run, Plan(dp=2, zero=1), tmp_path, last=1)
    return tmp_path


def load_another(folder):
    Trainer.load(folder / "step_1", GPT(GPTConfig.tiny()).double(), Plan(dp=2), **HOW)


def test_a_checkpoint_of_another_model(ranks, saved):
    with pytest.raises(RankError, match=r"another model: its token_embedding.weight is \(67, 32\)"):
        ranks[:2].run(load_another, saved)


def test_a_folder_that_holds_one_already(ranks, saved):
    with pytest.raises(RankError, match="already holds a checkpoint"):
        ranks[:2].run(run, Plan(dp=2, zero=1), saved, last=1)
