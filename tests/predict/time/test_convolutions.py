"""ResNets by layers: published parameters and operations, the ring of the sources' curve, published images a second."""

from dataclasses import replace

import pytest

from helpers.predict.time.convolutions import RESNET_50, RESNET_152, ResNet, resnet_step
from helpers.predict.time.step import Constants
from helpers.specs import CLUSTERS, Link

ONE = replace(CLUSTERS["8 A100"], gpus_per_node=1)


@pytest.mark.parametrize(
    "model, params, multiplies", [(RESNET_50, 25_557_032, 4.09e9), (RESNET_152, 60_192_808, 11.51e9)]
)
def test_parameters_exactly_and_operations_as_published(model, params, multiplies):
    """torchvision's table of weights: resnet50 25,557,032 and 4.09 G; resnet152 60,192,808 and 11.51 G."""
    assert model.num_params == params
    counted = sum(one.pixels * one.kernel**2 * one.inputs * one.outputs for one in model.convolutions)
    assert counted + 2048 * 1000 == pytest.approx(multiplies, rel=0.01)


def test_the_gradients_of_resnet_152_take_eighteen_milliseconds_round_sixteen_at_200_gigabits():
    cluster = replace(ONE, num_nodes=16, inter=Link.from_gigabits(200, latency=5e-6))
    bars = {bar.name: bar for bar in resnet_step(RESNET_152, 64, cluster).bars}
    assert bars["gradients"].seconds == pytest.approx(18e-3, rel=0.1) and bars["gradients"].binds == "network"


def test_images_a_second_of_an_a100_lie_near_nvidias():
    """NVIDIA, DeepLearningExamples, ResNet-50 v1.5 for PyTorch, one A100 80 GB, mixed precision, 256 images: 2,470
    (its README's table of training performance, container 21.03)."""
    step = resnet_step(RESNET_50, 256, ONE)
    assert 256 / step.seconds == pytest.approx(2470, rel=0.2)


def test_what_backward_covers_is_not_exposed_and_a_small_batch_waits_for_the_host():
    cluster = replace(ONE, num_nodes=16, inter=Link.from_gigabits(200, latency=5e-6))
    plain, hidden = (resnet_step(RESNET_152, 64, cluster, data_hidden=share) for share in (0.0, 1.0))
    assert hidden.seconds < plain.seconds and "gradients" not in {bar.name for bar in hidden.bars}
    assert resnet_step(RESNET_50, 1, ONE).binds == "host"
    assert resnet_step(RESNET_50, 256, ONE, constants=Constants(memory=0.5)).binds == "memory"


def test_bad_shapes_get_a_sentence():
    with pytest.raises(ValueError, match="how many for each of four groups"):
        ResNet(name="odd", blocks=(1, 2, 3))
    with pytest.raises(ValueError, match="images is 0"):
        resnet_step(RESNET_50, 0, ONE)
