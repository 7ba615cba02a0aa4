"""U-Net: segmentation by a path down and a path up, which reads what the path down saw at its level.

Ronneberger et al., "U-Net: Convolutional Networks for Biomedical Image Segmentation" (2015),
https://arxiv.org/abs/1505.04597. "real" has the published channels, 31 M parameters, on images of 512; the
convolutions are padded, so nothing is cropped, and batch norm follows each, as is common since.

Batch: images (batch, 1, image, image), classes of the pixels (batch, image, image). Loss: cross entropy.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .data import segmentation_batch
from .layers import ConvNorm
from .registry import ModelSpec


@dataclass(frozen=True, slots=True)
class UNetConfig:
    levels: int = 3  # halvings of the image
    width: int = 16  # channels at full size, doubled by each level
    image: int = 64
    classes: int = 2
    batch: int = 4

    def __post_init__(self) -> None:
        if self.image % 2**self.levels:
            raise ValueError(f"image={self.image} cannot be halved levels={self.levels} times")


class Double(nn.Module):
    """Two convolutions: (B, inputs, Y, X) -> (B, outputs, Y, X)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first = ConvNorm(inputs, outputs, 3)
        self.second = ConvNorm(outputs, outputs, 3)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.second(F.relu(self.first(x))))


class UNet(nn.Module):
    def __init__(self, config: UNetConfig) -> None:
        super().__init__()
        widths = [config.width * 2**level for level in range(config.levels + 1)]
        self.stem = Double(1, widths[0])
        self.down = nn.ModuleList(Double(w, 2 * w) for w in widths[:-1])
        self.widen = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, 2) for w in widths[-2::-1])
        self.up = nn.ModuleList(Double(2 * w, w) for w in widths[-2::-1])
        self.head = nn.Conv2d(widths[0], config.classes, 1)

    def forward(self, images: Tensor, classes: Tensor) -> Tensor:
        x = self.stem(images)
        seen = []
        for down in self.down:
            seen.append(x)
            x = down(F.max_pool2d(x, 2))
        for widen, up in zip(self.widen, self.up, strict=True):
            x = up(torch.cat((seen.pop(), widen(x)), dim=1))
        return F.cross_entropy(self.head(x), classes)  # over (batch, classes, image, image)


def batch(config: UNetConfig, seed: int) -> tuple[Tensor, Tensor]:
    return segmentation_batch(config.batch, 1, config.image, config.classes, seed)


SPEC = ModelSpec(
    name="unet",
    config_type=UNetConfig,
    presets={
        "tiny": UNetConfig(levels=1, width=4, image=8, batch=2),
        "default": UNetConfig(),
        "real": UNetConfig(levels=4, width=64, image=512, batch=4),
    },
    build=UNet,
    batch=batch,
)
