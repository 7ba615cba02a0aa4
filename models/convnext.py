"""ConvNeXt: a convolutional network in the shape of a transformer.

Liu et al., "A ConvNet for the 2020s" (2022), https://arxiv.org/abs/2201.03545
"real" is ConvNeXt-T on ImageNet, 28.6 M parameters; stochastic depth is left out.

Batch: images (batch, 3, image, image), labels (batch,). Loss: cross entropy over `classes`.
Inside, channels come last: B batch, Y and X space, C channels.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .data import image_batch
from .registry import ModelSpec


@dataclass(frozen=True, slots=True)
class ConvNeXtConfig:
    depths: tuple[int, ...] = (1, 1, 2, 1)  # blocks of each stage
    widths: tuple[int, ...] = (24, 48, 96, 192)  # channels of each stage
    image: int = 64
    classes: int = 10
    batch: int = 16

    def __post_init__(self) -> None:
        if len(self.depths) != len(self.widths):
            raise ValueError(f"depths={self.depths} and widths={self.widths} must be of the same length")
        if self.image < 2 ** (len(self.depths) + 1):
            raise ValueError(f"image={self.image} is too small for {len(self.depths)} stages")


class Conv(nn.Conv2d):
    """A convolution with the channels last: (B, Y, X, C) -> (B, Y', X', C')."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


class Block(nn.Module):
    """(B, Y, X, C) -> (B, Y, X, C)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = Conv(width, width, 7, 1, 3, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 1e-6))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x))
        out: Tensor = x + self.scale * self.down(F.gelu(self.up(y)))
        return out


class ConvNeXt(nn.Module):
    def __init__(self, config: ConvNeXtConfig) -> None:
        super().__init__()
        widths = config.widths
        self.layers = nn.Sequential(Conv(3, widths[0], 4, 4), nn.LayerNorm(widths[0], eps=1e-6))
        for stage, depth in enumerate(config.depths):
            if stage > 0:
                inputs = widths[stage - 1]
                self.layers.extend((nn.LayerNorm(inputs, eps=1e-6), Conv(inputs, widths[stage], 2, 2)))
            self.layers.extend(Block(widths[stage]) for _ in range(depth))
        self.norm = nn.LayerNorm(widths[-1], eps=1e-6)
        self.head = nn.Linear(widths[-1], config.classes)
        self.apply(init)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        x = self.layers(images.permute(0, 2, 3, 1))
        return F.cross_entropy(self.head(self.norm(x.mean((1, 2)))), labels)


def init(module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d | nn.Linear):
        nn.init.normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def batch(config: ConvNeXtConfig, seed: int) -> tuple[Tensor, Tensor]:
    return image_batch(config.batch, 3, config.image, config.classes, seed)


SPEC = ModelSpec(
    name="convnext",
    config_type=ConvNeXtConfig,
    presets={
        "tiny": ConvNeXtConfig(depths=(1, 1), widths=(8, 16), image=16, batch=2),
        "default": ConvNeXtConfig(),
        "real": ConvNeXtConfig((3, 3, 9, 3), (96, 192, 384, 768), image=224, classes=1000, batch=32),
    },
    build=ConvNeXt,
    batch=batch,
)
