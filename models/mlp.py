"""Multi-layer perceptron with ReLU.

"real" has the layers of Ciresan et al., "Deep Big Simple Neural Nets Excel on Handwritten Digit Recognition"
(2010), https://arxiv.org/abs/1003.0358, 12.1 M parameters.

Batch: x (batch, features), labels (batch,). Loss: cross entropy over `classes`.
"""

from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .registry import ModelSpec


@dataclass(frozen=True, slots=True)
class MLPConfig:
    features: int = 256
    hidden: tuple[int, ...] = (256, 256, 256, 256)
    classes: int = 10
    batch: int = 2048


class MLP(nn.Module):
    def __init__(self, config: MLPConfig) -> None:
        super().__init__()
        widths = (config.features, *config.hidden)
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self.head = nn.Linear(widths[-1], config.classes)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        for layer in self.hidden:
            x = F.relu(layer(x))
        return F.cross_entropy(self.head(x), labels)


def batch(config: MLPConfig, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(config.batch, config.features, generator=generator)
    return x, torch.randint(config.classes, (config.batch,), generator=generator)


SPEC = ModelSpec(
    name="mlp",
    config_type=MLPConfig,
    presets={
        "tiny": MLPConfig(features=8, hidden=(16, 16), classes=4, batch=4),
        "default": MLPConfig(),
        "real": MLPConfig(features=29 * 29, hidden=(2500, 2000, 1500, 1000, 500), batch=4096),
    },
    build=MLP,
    batch=batch,
)
