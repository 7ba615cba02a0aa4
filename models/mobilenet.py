"""MobileNet: a depthwise convolution for space and a 1x1 convolution for channels in place of each full one.

Howard et al., "MobileNets: Efficient Convolutional Neural Networks for Mobile Vision Applications" (2017),
https://arxiv.org/abs/1704.04861. "real" is MobileNet of width 1.0 at 224, 4.2 M parameters.

Batch: images (batch, 3, image, image), labels (batch,). Loss: cross entropy over `classes`.
"""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from .data import image_batch
from .layers import ConvNorm
from .registry import ModelSpec


@dataclass(frozen=True, slots=True)
class MobileNetConfig:
    depths: tuple[int, ...] = (1, 1, 1, 2, 1)  # layers of each stage
    width: int = 16  # of the stem, doubled by each stage
    image: int = 64
    classes: int = 10
    batch: int = 16


class Separable(nn.Module):
    """(B, inputs, Y, X) -> (B, outputs, Y / stride, X / stride)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.depthwise = ConvNorm(inputs, inputs, 3, stride, groups=inputs)
        self.pointwise = ConvNorm(inputs, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.pointwise(F.relu(self.depthwise(x))))


class MobileNet(nn.Module):
    def __init__(self, config: MobileNetConfig) -> None:
        super().__init__()
        self.stem = ConvNorm(3, config.width, 3, 2)
        self.layers = nn.ModuleList()
        channels = config.width
        for stage, depth in enumerate(config.depths):
            for layer in range(depth):
                stride = 2 if stage > 0 and layer == 0 else 1
                outputs = config.width * 2 ** (stage + 1)
                self.layers.append(Separable(channels, outputs, stride))
                channels = outputs
        self.head = nn.Linear(channels, config.classes)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        x = F.relu(self.stem(images))  # (batch, width, image / 2, image / 2)
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(x.mean((2, 3))), labels)


def batch(config: MobileNetConfig, seed: int) -> tuple[Tensor, Tensor]:
    return image_batch(config.batch, 3, config.image, config.classes, seed)


SPEC = ModelSpec(
    name="mobilenet",
    config_type=MobileNetConfig,
    presets={
        "tiny": MobileNetConfig(depths=(1, 1), width=4, image=8, batch=2),
        "default": MobileNetConfig(),
        "real": MobileNetConfig(depths=(1, 2, 2, 6, 2), width=32, image=224, classes=1000, batch=32),
    },
    build=MobileNet,
    batch=batch,
)
