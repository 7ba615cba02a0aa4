"""ResNet: stages of bottleneck blocks, each added to its input.

He et al., "Deep Residual Learning for Image Recognition" (2015), https://arxiv.org/abs/1512.03385
"real" is ResNet-50 on ImageNet, 25.6 M parameters, with the stride in the 3x3 convolution.

Batch: images (batch, 3, image, image), labels (batch,). Loss: cross entropy over `classes`.
"""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from .data import image_batch
from .layers import ConvNorm
from .registry import ModelSpec


@dataclass(frozen=True, slots=True)
class ResNetConfig:
    depths: tuple[int, ...] = (1, 1, 1, 1)  # blocks of each stage
    width: int = 16  # of the first stage, doubled by each further one
    image: int = 64
    classes: int = 10
    batch: int = 16


class Bottleneck(nn.Module):
    """(B, inputs, Y, X) -> (B, 4 * width, Y / stride, X / stride)."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.reduce = ConvNorm(inputs, width, 1)
        self.conv = ConvNorm(width, width, 3, stride)
        self.expand = ConvNorm(width, 4 * width, 1)
        fits = inputs == 4 * width and stride == 1
        self.shortcut = nn.Identity() if fits else ConvNorm(inputs, 4 * width, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.reduce(x))
        y = F.relu(self.conv(y))
        return F.relu(self.expand(y) + self.shortcut(x))


class ResNet(nn.Module):
    def __init__(self, config: ResNetConfig) -> None:
        super().__init__()
        self.stem = ConvNorm(3, config.width, 7, 2)
        self.blocks = nn.ModuleList()
        channels = config.width
        for stage, depth in enumerate(config.depths):
            width = config.width * 2**stage
            for block in range(depth):
                stride = 2 if stage > 0 and block == 0 else 1
                self.blocks.append(Bottleneck(channels, width, stride))
                channels = 4 * width
        self.head = nn.Linear(channels, config.classes)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.stem(images)), 3, 2, 1)  # (batch, width, image / 4, image / 4)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(x.mean((2, 3))), labels)


def batch(config: ResNetConfig, seed: int) -> tuple[Tensor, Tensor]:
    return image_batch(config.batch, 3, config.image, config.classes, seed)


SPEC = ModelSpec(
    name="resnet",
    config_type=ResNetConfig,
    presets={
        "tiny": ResNetConfig(depths=(1, 1), width=4, image=16, batch=2),
        "default": ResNetConfig(),
        "real": ResNetConfig(depths=(3, 4, 6, 3), width=64, image=224, classes=1000, batch=32),
    },
    build=ResNet,
    batch=batch,
)
