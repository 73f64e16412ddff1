"""Provides SmallResNet, a residual network for images of 8 x 8 to 32 x 32, and counts the parameters of a ResNet.

The normalisation layer is an argument, so that a chapter can replace batch norm.

Legend: B = batch, C = channels, H, W = height and width. Source: He et al. 2015, arXiv:1512.03385, figure 2.
"""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

Norm = Callable[[int], nn.Module]  # makes a normalisation layer for a number of channels


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions with a shortcut around them: (B, C_in, H, W) to (B, C_out, H / stride, W / stride)."""

    def __init__(self, in_channels: int, out_channels: int, stride: int, norm: Norm):
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False)
        self.norm1 = norm(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.norm2 = norm(out_channels)
        is_same_shape = stride == 1 and in_channels == out_channels
        self.shortcut = nn.Identity() if is_same_shape else nn.Conv2d(in_channels, out_channels, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(out)) + self.shortcut(x))


class SmallResNet(nn.Module):
    """A stem, three residual blocks of width, 2 width and 4 width channels, an average over the image, and a head.

    Forward: images (B, in_channels, H, W), H and W at least 4, to logits (B, num_classes). `norm` makes a layer from a
    number of channels: `nn.BatchNorm2d`, or `lambda c: nn.GroupNorm(4, c)`. Raises ValueError for a size below 1.
    """

    def __init__(self, num_classes: int = 10, width: int = 16, norm: Norm = nn.BatchNorm2d, in_channels: int = 1):
        super().__init__()
        if min(num_classes, width, in_channels) < 1:
            raise ValueError(
                f"SmallResNet(num_classes={num_classes}, width={width}, in_channels={in_channels}): expected 1 or more"
            )
        self.stem = nn.Conv2d(in_channels, width, 3, padding=1, bias=False)
        self.stem_norm = norm(width)
        widths = [(width, width, 1), (width, 2 * width, 2), (2 * width, 4 * width, 2)]
        self.blocks = nn.ModuleList(ResidualBlock(a, b, stride, norm) for a, b, stride in widths)
        self.head = nn.Linear(4 * width, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        x = F.relu(self.stem_norm(self.stem(images)))  # (B, width, H, W)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))  # (B, num_classes)


def resnet_parameters(blocks: tuple[int, ...] = (3, 4, 6, 3), num_classes: int = 1000) -> int:
    """The number of parameters of a ResNet made of bottlenecks (He et al. 2015, table 1).

    blocks: how many bottlenecks each stage has. (3, 4, 6, 3) is ResNet-50 and (3, 8, 36, 3) is ResNet-152.

    A k x k convolution has k k C_in C_out weights and no bias; a batch norm has two parameters per channel. A
    bottleneck is a 1 x 1 convolution to `width` channels, a 3 x 3, and a 1 x 1 to four times the width, each with a
    batch norm. The first one of a stage has a 1 x 1 convolution as its shortcut, too.
    """
    total, channels = 7 * 7 * 3 * 64 + 2 * 64, 64  # the stem
    for stage, repeats in enumerate(blocks):
        width = 64 * 2**stage
        for block in range(repeats):
            shortcut = (channels + 2) * 4 * width if block == 0 else 0
            total += (channels + 2) * width + (9 * width + 2) * width + (width + 2) * 4 * width + shortcut
            channels = 4 * width
    return total + (channels + 1) * num_classes
