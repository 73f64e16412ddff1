"""Which optimizers may be cut: told by trying, for torch's own and for people's."""

import pytest
import torch

from helpers.parallel.zero.sharded_optimizer import check_elementwise

YES = ["SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "Adagrad", "Adadelta", "ASGD"]


@pytest.mark.parametrize("name", YES)
def test_torchs_elementwise_ones_pass(name):
    check_elementwise(getattr(torch.optim, name), [{}, {"lr": 0.02}], {"lr": 0.1})


REASONS = {
    "Adafactor": "a step on the parts of a matrix gave other values",
    "Muon": "it does not take a part of a tensor",
    "LBFGS": r"its step\(\) needs a closure",
}


@pytest.mark.parametrize("name", REASONS)
def test_the_others_are_refused_with_the_reason(name):
    with pytest.raises(ValueError, match=f"{name} is not elementwise: {REASONS[name]}.*SGD, Adam, AdamW"):
        check_elementwise(getattr(torch.optim, name), [{}], {})


class Noisy(torch.optim.SGD):
    """Adds its own noise: on another shard it would be other noise."""

    def step(self, closure=None):
        super().step()
        for group in self.param_groups:
            for p in group["params"]:
                p.data += 0.01 * torch.randn_like(p)


class WholeNorm(torch.optim.SGD):
    """LAMB's idea, in a group of its own."""

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.data -= group["lr"] * p.grad / p.grad.norm() * (p.norm() if group.get("trust") else p.grad.norm())


def test_peoples_own_are_tried_out():
    with pytest.raises(ValueError, match="Noisy is not elementwise"):
        check_elementwise(Noisy, [{}], {"lr": 0.1})
    check_elementwise(WholeNorm, [{}], {"lr": 0.1})
    with pytest.raises(ValueError, match="WholeNorm is not elementwise"):
        check_elementwise(WholeNorm, [{}, {"trust": True}], {"lr": 0.1})


def test_wrong_options_stay_the_optimizers_own_complaint():
    with pytest.raises(ValueError, match="Invalid learning rate"):
        check_elementwise(torch.optim.Adam, [{}], {"lr": -1.0})


def test_the_callers_randomness_is_left_alone():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    check_elementwise(torch.optim.AdamW, [{}], {})
    assert torch.equal(torch.rand(2), expected)
