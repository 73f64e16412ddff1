"""DataParallel from scratch: equal to one process, its traffic equal to the formula, and what it is known to lose."""

import threading

import pytest
import torch
from torch import nn

from helpers.parallel.data_parallel import DataParallel, gather, parallel_apply, replicate, scatter
from helpers.parallel.shared.virtual_devices import Devices, VirtualDevices
from helpers.predict.traffic.data_parallel import data_parallel_traffic, master_link_bytes
from helpers.workloads import GPT, MLP, GPTConfig, SmallResNet, characters, synthetic, token_loss


def gpt_case():
    torch.manual_seed(0)
    return GPT(GPTConfig.tiny()).double(), *characters(2000).batch(0, 12, 16), token_loss


def mlp_case():
    torch.manual_seed(0)
    return MLP([16, 8, 4]).double(), *synthetic(11, 16, 4, dtype=torch.float64), nn.functional.cross_entropy


def resnet_case(norm=lambda channels: nn.GroupNorm(2, channels)):
    torch.manual_seed(0)
    images, labels = torch.randn(9, 1, 8, 8, dtype=torch.float64), torch.arange(9)
    return SmallResNet(width=4, norm=norm).double(), images, labels, nn.functional.cross_entropy


def train(model, forward, inputs, targets, loss_of, steps=3):
    """Losses, then every gradient and every weight after some steps of AdamW."""
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-8), []
    for _ in range(steps):
        loss = loss_of(forward(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses + [p.grad for p in model.parameters()] + [p.detach() for p in model.parameters()]


@pytest.mark.parametrize("case", [gpt_case, mlp_case, resnet_case])
@pytest.mark.parametrize("num_devices", [1, 2, 3, 4])
def test_equal_to_one_process(case, num_devices):
    model, *data = case()
    expected = train(model, model, *data)
    model, *data = case()
    with VirtualDevices(num_devices) as devices:
        actual = train(model, DataParallel(model, devices), *data)
        for one, many in zip(expected, actual, strict=True):
            assert (one - many).norm() <= 1e-10 * one.norm() + 1e-13
            assert devices.home(many) == 0


def test_real_devices_give_the_same_and_log_the_same():
    model, *data = gpt_case()
    expected = train(model, model, *data, steps=1)
    model, *data = gpt_case()
    devices = Devices(["cpu", "cpu", "cpu"])
    actual = train(model, DataParallel(model, devices), *data, steps=1)
    assert all((one - many).norm() <= 1e-10 * one.norm() + 1e-13 for one, many in zip(expected, actual, strict=True))
    assert devices.bytes_by_purpose()["parameters"] == GPTConfig.tiny().num_parameters * 8 * 2


def test_traffic_through_the_master_equals_the_formula():
    model, tokens, targets, loss_of = gpt_case()
    with VirtualDevices(4) as devices:
        logits = DataParallel(model, devices)(tokens)
        loss_of(logits, targets).backward()
    num_parameters = sum(p.numel() for p in model.parameters())
    sizes = {"input_bytes": tokens.numel() * 8, "output_bytes": logits.numel() * 8, "dtype_bytes": 8}
    predicted = data_parallel_traffic(num_parameters, num_devices=4, **sizes)
    assert devices.sent(0) + devices.received(0) == master_link_bytes(predicted)
    weights = num_parameters * 8 * 3
    assert devices.bytes_by_purpose() == {
        "the batch": tokens.numel() * 8 * 3 // 4,
        "parameters": weights,
        "outputs": logits.numel() * 8 * 3 // 4,
        "gradients of outputs": logits.numel() * 8 * 3 // 4,
        "gradients of parameters": weights,
    }
    assert all(0 in (copy.source, copy.destination) for copy in devices.copies)  # nothing goes past the master


def test_the_master_holds_more_than_the_others():
    model, tokens, targets, loss_of = gpt_case()
    with VirtualDevices(4) as devices:
        loss_of(DataParallel(model, devices)(tokens), targets).backward()
        peaks = [devices.peak(i) for i in range(4)]
        assert peaks[1] == peaks[2] == peaks[3] < peaks[0]
        assert [devices.bytes_on(i) for i in (1, 2, 3)] == [0, 0, 0]  # replicas live for one forward and backward


def test_replica_buffers_are_lost_but_the_first():
    model, images, labels, loss_of = resnet_case(norm=nn.BatchNorm2d)
    devices = VirtualDevices(3)
    replicas = replicate(model, devices, 3)
    parallel_apply(replicas, scatter([images], devices), devices)
    means = [replica.stem_norm.running_mean for replica in replicas]
    assert means[0] is model.stem_norm.running_mean  # written by replica 0 alone
    assert not torch.equal(means[0], means[1]) and not torch.equal(means[1], means[2])
    alone, *_ = resnet_case(norm=nn.BatchNorm2d)
    alone(images[:3])
    assert torch.equal(model.stem_norm.running_mean, alone.stem_norm.running_mean)
    assert model.stem_norm.num_batches_tracked == 1


def test_batch_norm_sees_a_share_and_so_differs_from_one_process():
    model, *data = resnet_case(norm=nn.BatchNorm2d)
    expected = train(model, model, *data, steps=1)
    model, *data = resnet_case(norm=nn.BatchNorm2d)
    actual = train(model, DataParallel(model, VirtualDevices(3)), *data, steps=1)
    assert abs(expected[0] - actual[0]) > 1e-3


def test_attributes_set_in_forward_are_lost_everywhere():
    class Counting(nn.Linear):
        count = 0

        def forward(self, x):
            self.count += 1
            return super().forward(x)

    model = Counting(3, 2)
    DataParallel(model, VirtualDevices(2))(torch.ones(4, 3))
    assert model.count == 0


def test_tied_weights_stay_tied_and_travel_once():
    model, tokens, *_ = gpt_case()
    devices = VirtualDevices(2)
    replica = replicate(model, devices, 2)[1]
    assert replica.head.weight is replica.token_embedding.weight is not model.head.weight
    assert sum(copy.num_bytes for copy in devices.copies) == GPTConfig.tiny().num_parameters * 8


def test_frozen_and_unused_parameters():
    class Partly(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.frozen, self.unused = (
                nn.Linear(3, 3),
                nn.Linear(3, 3).requires_grad_(False),
                nn.Linear(3, 3),
            )

        def forward(self, x):
            return self.frozen(self.used(x))

    model = Partly()
    DataParallel(model, VirtualDevices(2))(torch.ones(4, 3)).sum().backward()
    assert model.used.weight.grad is not None
    assert model.frozen.weight.grad is None and model.unused.weight.grad is None


class Spy(nn.Module):
    """Notes what its thread is like."""

    def __init__(self):
        super().__init__()
        self.layer, self.seen = nn.Linear(4, 4), []

    def forward(self, x):
        out = self.layer(x)
        self.seen.append((threading.get_ident(), out.dtype, torch.is_grad_enabled()))
        return out


def test_threads_get_no_grad_and_are_threads():
    spy = Spy()
    with torch.no_grad():
        DataParallel(spy, VirtualDevices(3))(torch.ones(3, 4))
    assert [seen[2] for seen in spy.seen] == [False] * 3
    assert threading.get_ident() not in {seen[0] for seen in spy.seen}


def test_an_error_in_a_replica_names_it_and_keeps_its_type():
    class Fails(nn.Linear):
        def forward(self, x):
            if x[0, 0] > 1:
                raise KeyError("boom")
            return super().forward(x)

    x = torch.tensor([[0.0], [0.0], [5.0], [5.0]])
    with pytest.raises(KeyError, match="boom") as caught:
        DataParallel(Fails(1, 1), VirtualDevices(2))(x)
    assert caught.value.__notes__ == ["in replica 1 of 2, in a thread of its own"]


def test_small_batches_use_fewer_devices():
    model, devices = MLP([4, 2]), VirtualDevices(4)
    assert DataParallel(model, devices)(torch.ones(2, 4)).shape == (2, 2)
    assert {copy.destination for copy in devices.copies} == {0, 1}
    assert [len(share[0]) for share in scatter([torch.ones(10, 1)], devices)] == [3, 3, 3, 1]


def test_scatter_hands_other_arguments_to_all_and_refuses_misfits():
    devices = VirtualDevices(2)
    shares = scatter([torch.arange(4), "mode", torch.tensor(2.0)], devices)
    assert [share[1:] for share in shares] == [("mode", torch.tensor(2.0))] * 2
    with pytest.raises(ValueError, match=r"\[3, 4\]"):
        scatter([torch.ones(3), torch.ones(4)], devices)
    with pytest.raises(ValueError, match="at least one"):
        scatter(["no tensor"], devices)


def test_gather_of_one_number_a_replica_and_of_no_tensor():
    devices = VirtualDevices(2)
    assert gather([torch.tensor(1.0), torch.tensor(2.0)], devices).tolist() == [1.0, 2.0]
    with pytest.raises(ValueError, match="dict from a replica"):
        gather([{}, {}], devices)


def test_a_module_elsewhere_is_refused():
    with pytest.raises(ValueError, match="layers.0.weight is on meta"):
        DataParallel(MLP([2, 2]).to("meta"), VirtualDevices(2))


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU nn.DataParallel does something")
def test_torch_data_parallel_does_nothing_on_cpu():
    spy = Spy()
    wrapped = nn.DataParallel(spy)
    wrapped(torch.ones(4, 4))
    assert wrapped.device_ids == []
    assert len(spy.seen) == 1 and spy.seen[0][0] == threading.get_ident()
