"""Predicts a ResNet's step under data parallelism: convolutions as products, norms as bytes, and one all-reduce.

The planner and the explanation of ResNet-152's scaling curve use it. A convolution of k x k over c channels is a matrix
product whose rows are the batch's output pixels and whose depth is k k c (implicit GEMM, as in cuDNN). Batch norm and
ReLU after it move each output element several times. A step is a `StepTime`: bars of seconds, each with its bottleneck.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from helpers.predict.time.collectives import collective_seconds
from helpers.predict.time.kernels import memory_rate, product_seconds
from helpers.predict.time.step import NOMINAL, Bar, Constants, StepTime
from helpers.specs import Cluster
from helpers.specs.checks import check_count

# Bytes per output element in 16 bits: batch norm reads it twice and writes it, ReLU (or the sum of the shortcut) reads
# and writes it; backward reads the output and its gradient twice, then once more for ReLU, and writes two.
NORM_BYTES = {"forward": 10, "backward": 16}
# Bytes per parameter: SGD with momentum reads and writes fp32 weights and momentum (16), reads the gradient (4), and
# writes the 16-bit weights (2).
OPTIMIZER_BYTES = 22


class Convolution(NamedTuple):
    """A convolution with its batch norm.

    pixels: height times width of its output. kernel: k of a k x k convolution. inputs, outputs: numbers of channels.
    """

    pixels: int
    kernel: int
    inputs: int
    outputs: int

    @property
    def params(self) -> int:
        """Parameters, with the two per channel of batch norm."""
        return self.kernel**2 * self.inputs * self.outputs + 2 * self.outputs


@dataclass(frozen=True, kw_only=True)
class ResNet:
    """A ResNet for images of 224 x 224, with bottleneck blocks in four groups (He et al. 2015, table 1).

    blocks: how many blocks each of the four groups has. Where a group halves the image, the 3 x 3 convolution of its
    first block has the stride 2. Raises ValueError for another number of groups.
    """

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
        """The 7 x 7 of stride 2, then 1 x 1, 3 x 3, 1 x 1 of each block, and the shortcut of a group's first block."""
        # The first convolution halves the image of 224 x 224 pixels, and a pooling halves it again, to 56 x 56.
        layers, channels, side = [Convolution(112**2, 7, 3, 64)], 64, 56
        for group, count in enumerate(self.blocks):
            width = 64 * 2**group
            for block in range(count):
                before = side  # the side of the image that enters the block
                if block == 0 and group:
                    side //= 2
                layers.append(Convolution(before**2, 1, channels, width))
                layers.append(Convolution(side**2, 3, width, width))
                layers.append(Convolution(side**2, 1, width, 4 * width))
                if block == 0:
                    layers.append(Convolution(side**2, 1, channels, 4 * width))
                channels = 4 * width
        return tuple(layers)

    @property
    def num_params(self) -> int:
        """Parameters of all convolutions and of the classifier, which reads 2,048 channels and has a bias."""
        return sum(convolution.params for convolution in self.convolutions) + (2048 + 1) * self.num_classes


RESNET_50 = ResNet(name="ResNet-50", blocks=(3, 4, 6, 3))
RESNET_152 = ResNet(name="ResNet-152", blocks=(3, 8, 36, 3))


def resnet_step(
    model: ResNet, images: int, cluster: Cluster, *, constants: Constants = NOMINAL, data_hidden: float = 0.0,
    launch: float = 30e-6,
) -> StepTime:  # fmt: skip
    """Predict a step of `images` images per GPU in 16 bits on all GPUs: DDP, fp32 gradients, SGD with momentum.

    data_hidden: the share of the gradients' all-reduce that backward can hide. launch: seconds of the host per
    convolution with its norm in forward; backward takes as long again.
    """
    check_count("resnet_step", "images", images)
    gpu = cluster.gpu
    products, moved = [0.0, 0.0], [0.0, 0.0]  # nominal seconds of forward and of backward, for products and for memory
    for layer in model.convolutions:
        rows, depth, outputs = images * layer.pixels, layer.kernel**2 * layer.inputs, layer.outputs
        products[0] += product_seconds(rows, outputs, depth, gpu)
        # Backward has two products: the gradient of the input (rows, depth), and that of the weight (depth, outputs).
        products[1] += product_seconds(rows, depth, outputs, gpu) + product_seconds(depth, outputs, rows, gpu)
        for number, size in enumerate(NORM_BYTES.values()):  # forward, backward
            moved[number] += size * rows * outputs / memory_rate(gpu)
    passes = zip(products, moved, strict=True)
    busy = [product / constants.products + memory / constants.memory for product, memory in passes]
    host = launch * constants.launch * len(model.convolutions)  # seconds of the host in each of the two passes
    inside, network = collective_seconds("all_reduce", 4 * model.num_params, cluster.world_size, cluster)  # fp32
    all_reduce = inside / constants.inside + network / constants.network
    # At most the seconds of backward, of the GPU or of the host that launches it, can hide the all-reduce.
    exposed = all_reduce - min(all_reduce * data_hidden, max(busy[1], host))
    optimizer = OPTIMIZER_BYTES * model.num_params / memory_rate(gpu) / constants.memory
    bars = (
        Bar(name="products", seconds=sum(products) / constants.products, binds="tensor cores"),
        Bar(name="norms and activations", seconds=sum(moved) / constants.memory, binds="memory"),
        Bar(name="the host launches", seconds=sum(max(0.0, host - seconds) for seconds in busy), binds="host"),
        Bar(name="gradients", seconds=exposed, binds="network" if network else "NVLink"),
        Bar(name="optimizer", seconds=optimizer, binds="memory"),
        Bar(name="step's constant", seconds=constants.step, binds="host"),
    )
    return StepTime(bars=tuple(bar for bar in bars if bar.seconds > 0))
