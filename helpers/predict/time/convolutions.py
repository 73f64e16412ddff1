"""A ResNet's step under data parallelism: convolutions as products, batch norm as bytes, one sum of gradients.

A convolution of k x k over c channels is a product whose rows are the batch's output pixels and whose depth is k k c
(implicit GEMM, which cuDNN uses). What follows it, batch norm and ReLU, moves each output number several times.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from helpers.predict.time.model import NOMINAL, Bar, Constants, StepTime
from helpers.predict.time.terms.collectives import collective_seconds
from helpers.predict.time.terms.products import product_seconds
from helpers.specs import Cluster
from helpers.specs.checks import check_count

# Bytes an output number in 16 bits: batch norm reads it twice and writes it, ReLU (or the sum of the shortcut) reads
# and writes it; backward reads the output and its gradient twice, then once more for ReLU, and writes two.
NORM_BYTES = {"forward": 10, "backward": 16}


class Convolution(NamedTuple):
    """pixels: height times width of the output of one image."""

    pixels: int
    kernel: int
    inputs: int
    outputs: int

    @property
    def params(self) -> int:
        return self.kernel**2 * self.inputs * self.outputs + 2 * self.outputs  # with batch norm's two


@dataclass(frozen=True, kw_only=True)
class ResNet:
    """Bottleneck blocks in four groups (He et al. 2015, table 1), the stride in the 3 x 3; images of 224 x 224."""

    name: str
    blocks: tuple[int, int, int, int]
    num_classes: int = 1000

    def __post_init__(self) -> None:
        if len(self.blocks) != 4:
            raise ValueError(f"ResNet: blocks is {self.blocks!r}, but it must say how many for each of four groups")
        for count in (*self.blocks, self.num_classes):
            check_count("ResNet", "a count", count)

    @property
    def convolutions(self) -> tuple[Convolution, ...]:
        """The 7 x 7 of stride 2, then 1 x 1, 3 x 3, 1 x 1 of each block, and the shortcut of a group's first."""
        found, channels, side = [Convolution(112**2, 7, 3, 64)], 64, 56
        for group, count in enumerate(self.blocks):
            width = 64 * 2**group
            for block in range(count):
                before = side
                if block == 0 and group:
                    side //= 2
                found.append(Convolution(before**2, 1, channels, width))
                found.append(Convolution(side**2, 3, width, width))
                found.append(Convolution(side**2, 1, width, 4 * width))
                if block == 0:
                    found.append(Convolution(side**2, 1, channels, 4 * width))
                channels = 4 * width
        return tuple(found)

    @property
    def num_params(self) -> int:
        return sum(one.params for one in self.convolutions) + (2048 + 1) * self.num_classes


RESNET_50 = ResNet(name="ResNet-50", blocks=(3, 4, 6, 3))
RESNET_152 = ResNet(name="ResNet-152", blocks=(3, 8, 36, 3))


def resnet_step(
    model: ResNet,
    images: int,
    cluster: Cluster,
    *,
    constants: Constants = NOMINAL,
    data_hidden: float = 0.0,
    launch: float = 30e-6,
) -> StepTime:
    """A step of `images` images per GPU in 16 bits on all GPUs of `cluster`: DDP, fp32 gradients, SGD with momentum.

    data_hidden: the share of the gradients' sum that backward may cover. launch: seconds on the host per convolution
    and its norm, forward; backward takes as long again.
    """
    check_count("resnet_step", "images", images)
    gpu, c = cluster.gpu, constants
    products, moved = [0.0, 0.0], [0.0, 0.0]
    for one in model.convolutions:
        rows, depth = images * one.pixels, one.kernel**2 * one.inputs
        products[0] += product_seconds(rows, one.outputs, depth, gpu)
        products[1] += product_seconds(rows, depth, one.outputs, gpu) + product_seconds(depth, one.outputs, rows, gpu)
        for way, size in enumerate(NORM_BYTES.values()):
            moved[way] += size * rows * one.outputs / (0.85 * gpu.memory_bandwidth)
    busy = [product / c.products + byte / c.memory for product, byte in zip(products, moved, strict=True)]
    host = launch * c.launch * len(model.convolutions)
    inside, network = collective_seconds("all_reduce", 4 * model.num_params, cluster.world_size, cluster)
    took = inside / c.inside + network / c.network
    bars = (
        Bar(name="products", seconds=sum(products) / c.products, binds="tensor cores"),
        Bar(name="norms and activations", seconds=sum(moved) / c.memory, binds="memory"),
        Bar(name="the host launches", seconds=sum(max(0.0, host - one) for one in busy), binds="host"),
        Bar(
            name="gradients",
            seconds=took - min(took * data_hidden, max(busy[1], host)),
            binds="network" if network else "NVLink",
        ),
        Bar(name="optimizer", seconds=22 * model.num_params / (0.85 * gpu.memory_bandwidth) / c.memory, binds="memory"),
        Bar(name="step's constant", seconds=c.step, binds="host"),
    )
    return StepTime(bars=tuple(bar for bar in bars if bar.seconds > 0))
