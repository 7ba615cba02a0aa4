"""Denoising diffusion: a U-Net of residual blocks that know the timestep, with attention at some sizes.

Ho et al., "Denoising Diffusion Probabilistic Models" (2020), https://arxiv.org/abs/2006.11239
"real" is their CIFAR-10 model, 35.7 M parameters.

Batch: images (batch, 3, image, image), noise of the same shape, timesteps (batch,) below `steps`.
Loss: mean squared error of the noise that the network sees in the noisy images.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .layers import dropout
from .registry import ModelSpec


@dataclass(frozen=True, slots=True)
class DiffusionConfig:
    width: int = 32  # channels at full size
    multiples: tuple[int, ...] = (1, 2, 2)  # of the width, at each level; a level halves the image
    blocks: int = 1  # residual blocks of a level on the way down; one more on the way up
    attention: tuple[int, ...] = (16,)  # sizes of image at which the blocks attend
    groups: int = 8  # of the group norms
    image: int = 32
    steps: int = 1000
    batch: int = 4
    dropout: float = 0.0  # in the residual blocks; 0.1 in the paper

    def __post_init__(self) -> None:
        if self.width % self.groups or self.width % 2 or self.width < 4:
            raise ValueError(f"width={self.width} must be even, at least 4 and a multiple of groups={self.groups}")
        if self.image % 2 ** (len(self.multiples) - 1):
            raise ValueError(f"image={self.image} cannot be halved {len(self.multiples) - 1} times")


class Residual(nn.Module):
    """x (B, inputs, Y, X), time (B, 4 * width) -> (B, outputs, Y, X)."""

    def __init__(self, config: DiffusionConfig, inputs: int, outputs: int) -> None:
        super().__init__()
        self.dropout = config.dropout
        self.norm1 = nn.GroupNorm(config.groups, inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, 1, 1)
        self.time = nn.Linear(4 * config.width, outputs)
        self.norm2 = nn.GroupNorm(config.groups, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1)
        self.shortcut = nn.Identity() if inputs == outputs else nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(time))[:, :, None, None]
        y = dropout(F.silu(self.norm2(y)), self.dropout, self.training)
        out: Tensor = self.shortcut(x) + self.conv2(y)
        return out


class Attention(nn.Module):
    """Attention of all pixels to all, with one head: (B, C, Y, X) -> (B, C, Y, X)."""

    def __init__(self, config: DiffusionConfig, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(config.groups, channels)
        self.qkv = nn.Conv2d(channels, 3 * channels, 1)
        self.out = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).flatten(2).transpose(1, 2).chunk(3, dim=-1)  # each (B, Y * X, C)
        y = F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0]
        out: Tensor = x + self.out(y.transpose(1, 2).view_as(x))
        return out


class Block(nn.Module):
    """A residual block, and attention where the size asks for it: (B, inputs, Y, X) -> (B, outputs, Y, X)."""

    def __init__(self, config: DiffusionConfig, inputs: int, outputs: int, attend: bool) -> None:
        super().__init__()
        self.residual = Residual(config, inputs, outputs)
        self.attention = Attention(config, outputs) if attend else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        out: Tensor = self.attention(self.residual(x, time))
        return out


class Diffusion(nn.Module):
    signal: Tensor
    frequency: Tensor

    def __init__(self, config: DiffusionConfig) -> None:
        super().__init__()
        width = config.width
        channels = [width * multiple for multiple in config.multiples]
        sizes = [config.image >> level for level in range(len(channels))]
        attend = [size in config.attention for size in sizes]

        # The share of the image left in the noisy one at each step, and the waves that tell the steps apart.
        signal = (1 - torch.linspace(1e-4, 0.02, config.steps)).cumprod(0)
        self.register_buffer("signal", signal, persistent=False)
        frequency = torch.exp(-math.log(10_000) * torch.arange(width // 2) / (width // 2 - 1))
        self.register_buffer("frequency", frequency, persistent=False)
        self.time = nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, 4 * width))

        self.stem = nn.Conv2d(3, width, 3, 1, 1)
        self.down = nn.ModuleList()  # every layer of it leaves its output for the way up
        skips = [width]
        for level, outputs in enumerate(channels):
            for _ in range(config.blocks):
                self.down.append(Block(config, skips[-1], outputs, attend[level]))
                skips.append(outputs)
            if level < len(channels) - 1:
                self.down.append(nn.Conv2d(outputs, outputs, 3, 2, 1))
                skips.append(outputs)
        inputs = channels[-1]
        self.middle1 = Block(config, inputs, inputs, attend=True)
        self.middle2 = Block(config, inputs, inputs, attend=False)
        self.up = nn.ModuleList()
        for level, outputs in reversed(list(enumerate(channels))):
            for _ in range(config.blocks + 1):
                self.up.append(Block(config, inputs + skips.pop(), outputs, attend[level]))
                inputs = outputs
            if level > 0:
                self.up.append(nn.Conv2d(outputs, outputs, 3, 1, 1))
        self.norm = nn.GroupNorm(config.groups, width * config.multiples[0])
        self.head = nn.Conv2d(width * config.multiples[0], 3, 3, 1, 1)

    def forward(self, images: Tensor, noise: Tensor, timesteps: Tensor) -> Tensor:
        signal = self.signal[timesteps][:, None, None, None]
        noisy = signal.sqrt() * images + (1 - signal).sqrt() * noise
        angle = timesteps[:, None] * self.frequency
        time = self.time(torch.cat((angle.sin(), angle.cos()), dim=-1))  # (batch, 4 * width)

        x = self.stem(noisy)
        skips = [x]
        for layer in self.down:
            x = layer(x, time) if isinstance(layer, Block) else layer(x)
            skips.append(x)
        x = self.middle2(self.middle1(x, time), time)
        for layer in self.up:
            if isinstance(layer, Block):
                x = layer(torch.cat((x, skips.pop()), dim=1), time)
            else:
                x = layer(F.interpolate(x, scale_factor=2))
        return F.mse_loss(self.head(F.silu(self.norm(x))), noise)


def batch(config: DiffusionConfig, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shape = (config.batch, 3, config.image, config.image)
    images = torch.randn(shape, generator=generator)
    noise = torch.randn(shape, generator=generator)
    return images, noise, torch.randint(config.steps, (config.batch,), generator=generator)


_CIFAR = DiffusionConfig(width=128, multiples=(1, 2, 2, 2), blocks=2, groups=32, batch=32)

SPEC = ModelSpec(
    name="diffusion",
    config_type=DiffusionConfig,
    presets={
        "tiny": DiffusionConfig(width=8, multiples=(1,), attention=(8,), groups=4, image=8, batch=2),
        "default": DiffusionConfig(),
        "real": _CIFAR,
    },
    build=Diffusion,
    batch=batch,
)
