"""Each thing that is forgotten parts the curve at the stop, and nothing does when all is saved."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.optim import AdamW

import helpers
from helpers.elastic import resume_without as module
from helpers.elastic.resume_without import GENERATORS, PARTS, STEPS, STOP, StatefulTraining, resume_without

ALONE = [what for what in PARTS if not what.startswith("rng")]


def first_difference(what: str, **how) -> int:
    """After how many steps the curves part; all of them, if they never do."""
    undisturbed, other = resume_without(what, **how)
    assert len(undisturbed) == len(other) == STEPS
    return next((step for step, (a, b) in enumerate(zip(undisturbed, other, strict=True)) if a != b), STEPS)


@pytest.mark.parametrize("what", ALONE)
def test_the_curve_parts_only_when_it_is_forgotten(what):
    assert first_difference(what, forget=False) == STEPS
    assert first_difference(what) in (
        STOP,
        STOP + 1,
    )  # the first loss after the stop is of weights that nobody has changed yet


def test_saved_generators_are_plain_data_that_go_on_where_they_were(tmp_path):
    """So that their file is read with weights_only=True, which runs nothing that stands in a file."""
    torch.save(module.generators(), tmp_path / "generators.pt")
    expected = drawn()
    module.set_generators(torch.load(tmp_path / "generators.pt", weights_only=True))
    assert drawn() == expected
    sources = [path.read_text(encoding="utf-8") for path in Path(helpers.__file__).parent.rglob("*.py")]
    assert not [text for text in sources if "weights_only=" + "False" in text]


def drawn() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))


@pytest.mark.parametrize("only", [(name,) for name in GENERATORS])
def test_each_generator_of_a_rank_counts(ranks, only):
    assert first_difference("rng", ranks=ranks, only=only) == STOP


def test_the_generators_of_all_ranks_go_on_and_rank_0s_are_not_enough(ranks):
    assert first_difference("rng", forget=False, ranks=ranks) == STEPS
    assert first_difference("rng_of_rank_0", ranks=ranks) == STOP


def test_a_forgotten_loss_scale_skips_steps_once_more():
    training = StatefulTraining(fp16=True)
    training.run(STOP)
    skipped, state = training.scaler.skipped, training.state()
    resumed = StatefulTraining(fp16=True)
    resumed.load(module.state_without("loss_scale", state))
    resumed.run(STEPS)
    assert skipped >= 3 and resumed.scaler.skipped >= skipped - 1, "its gradients have become a little smaller"


@pytest.mark.parametrize(("steps", "share"), [(8, 2.05), (10_000, 0.316)])
def test_a_forgotten_step_makes_adams_next_update_larger_at_first_and_smaller_late(steps, share):
    update = {}
    for forget in (False, True):
        weight = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
        optimizer = AdamW([weight], lr=1.0, weight_decay=0.0)
        weight.grad = torch.ones_like(weight)
        means = {"exp_avg": 1 - 0.9**steps, "exp_avg_sq": 1 - 0.999**steps}  # of gradients that were 1
        step = torch.tensor(0.0 if forget else float(steps))
        optimizer.state[weight] = {name: torch.tensor([mean]).double() for name, mean in means.items()} | {"step": step}
        optimizer.step()
        update[forget] = -weight.item()
    assert update[False] == pytest.approx(1, rel=1e-6) and update[True] == pytest.approx(share, rel=0.01)


def test_an_epoch_shows_every_sample_once_and_the_next_one_in_another_order():
    training = StatefulTraining(fp16=False)
    seen = [training.next_samples()[0] for _ in range(2 * module.SAMPLES // module.ROWS)]
    first, second = torch.cat(seen).chunk(2)
    assert len(first) == module.SAMPLES and not torch.equal(first, second)
    assert sorted(first.tolist()) == sorted(second.tolist())


def test_what_is_not_known_is_said():
    with pytest.raises(ValueError, match="resume_without\\('clock'\\): expected one of sampler, "):
        resume_without("clock")
