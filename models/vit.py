"""Vision transformer: an image as a sequence of patches, and a class token that reads them.

Dosovitskiy et al., "An Image is Worth 16x16 Words" (2020), https://arxiv.org/abs/2010.11929
"real" is ViT-B/16 on ImageNet, 86.6 M parameters.

Batch: images (batch, 3, image, image), labels (batch,). Loss: cross entropy over `classes`.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .data import image_batch
from .layers import PreNormBlock, check_heads, dropout, init_small
from .registry import ModelSpec


@dataclass(frozen=True, slots=True)
class ViTConfig:
    layers: int = 4
    width: int = 128
    heads: int = 4
    image: int = 64
    patch: int = 8
    classes: int = 10
    batch: int = 4
    dropout: float = 0.0

    def __post_init__(self) -> None:
        check_heads(self.heads, self.width)
        if self.image % self.patch:
            raise ValueError(f"patch={self.patch} must divide image={self.image}")


class ViT(nn.Module):
    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.dropout = config.dropout
        self.patches = nn.Conv2d(3, config.width, config.patch, config.patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, config.width))
        self.position = nn.Parameter(torch.empty(1 + (config.image // config.patch) ** 2, config.width))
        self.blocks = nn.ModuleList(
            PreNormBlock(config.width, config.heads, config.dropout, causal=False) for _ in range(config.layers)
        )
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.classes)
        nn.init.normal_(self.position, std=0.02)
        self.apply(init_small)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)  # (batch, patches, width)
        x = torch.cat((self.class_token.expand(len(x), -1, -1), x), dim=1) + self.position
        x = dropout(x, self.dropout, self.training)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x[:, 0])), labels)


def batch(config: ViTConfig, seed: int) -> tuple[Tensor, Tensor]:
    return image_batch(config.batch, 3, config.image, config.classes, seed)


SPEC = ModelSpec(
    name="vit",
    config_type=ViTConfig,
    presets={
        "tiny": ViTConfig(layers=2, width=16, heads=2, image=8, patch=4, batch=2),
        "default": ViTConfig(),
        "real": ViTConfig(layers=12, width=768, heads=12, image=224, patch=16, classes=1000, batch=32),
    },
    build=ViT,
    batch=batch,
)
