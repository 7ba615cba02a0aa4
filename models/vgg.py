"""VGG: stages of 3x3 convolutions, each ended by a pooling, and three linear layers.

Simonyan & Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition" (2014),
https://arxiv.org/abs/1409.1556. "real" is VGG16 on ImageNet, 138 M parameters.

Batch: images (batch, 3, image, image), labels (batch,). Loss: cross entropy over `classes`.
"""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from .data import image_batch
from .layers import dropout
from .registry import ModelSpec


@dataclass(frozen=True, slots=True)
class VGGConfig:
    depths: tuple[int, ...] = (1, 1, 2, 2)  # convolutions of each stage
    widths: tuple[int, ...] = (16, 32, 64, 64)  # channels of each stage
    hidden: int = 128  # of the linear layers
    image: int = 64
    classes: int = 10
    batch: int = 16
    dropout: float = 0.0  # after the linear layers; 0.5 in the paper

    def __post_init__(self) -> None:
        check_stages(self.depths, self.widths, self.image)


def check_stages(depths: tuple[int, ...], widths: tuple[int, ...], image: int) -> None:
    """ValueError unless there are as many depths as widths and every stage has an image to halve."""
    if len(depths) != len(widths):
        raise ValueError(f"depths={depths} and widths={widths} must be of the same length")
    if image < 2 ** len(depths):
        raise ValueError(f"image={image} must be at least {2 ** len(depths)} for {len(depths)} stages")


class Stage(nn.Module):
    """Convolutions and a pooling: (B, inputs, Y, X) -> (B, width, Y / 2, X / 2)."""

    def __init__(self, inputs: int, width: int, depth: int) -> None:
        super().__init__()
        convs = [nn.Conv2d(inputs if i == 0 else width, width, 3, 1, 1) for i in range(depth)]
        for conv in convs:
            nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
        self.convs = nn.ModuleList(convs)

    def forward(self, x: Tensor) -> Tensor:
        for conv in self.convs:
            x = F.relu(conv(x))
        return F.max_pool2d(x, 2)


def stages(depths: tuple[int, ...], widths: tuple[int, ...]) -> nn.ModuleList:
    """The stages of a VGG on images of three channels."""
    return nn.ModuleList(map(Stage, (3, *widths), widths, depths))


class VGG(nn.Module):
    def __init__(self, config: VGGConfig) -> None:
        super().__init__()
        self.dropout = config.dropout
        self.stages = stages(config.depths, config.widths)
        features = config.widths[-1] * (config.image >> len(config.depths)) ** 2
        self.hidden1 = nn.Linear(features, config.hidden)
        self.hidden2 = nn.Linear(config.hidden, config.hidden)
        self.head = nn.Linear(config.hidden, config.classes)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        x = images
        for stage in self.stages:
            x = stage(x)
        x = dropout(F.relu(self.hidden1(x.flatten(1))), self.dropout, self.training)
        x = dropout(F.relu(self.hidden2(x)), self.dropout, self.training)
        return F.cross_entropy(self.head(x), labels)


def batch(config: VGGConfig, seed: int) -> tuple[Tensor, Tensor]:
    return image_batch(config.batch, 3, config.image, config.classes, seed)


DEPTHS, WIDTHS = (2, 2, 3, 3, 3), (64, 128, 256, 512, 512)  # of VGG16

SPEC = ModelSpec(
    name="vgg",
    config_type=VGGConfig,
    presets={
        "tiny": VGGConfig(depths=(1, 1), widths=(4, 8), hidden=16, image=8, batch=2),
        "default": VGGConfig(),
        "real": VGGConfig(DEPTHS, WIDTHS, hidden=4096, image=224, classes=1000, batch=32),
    },
    build=VGG,
    batch=batch,
)
