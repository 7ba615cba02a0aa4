"""FCN-8s: a VGG turned into convolutions, with scores at three scales, added and upsampled to the image.

Long et al., "Fully Convolutional Networks for Semantic Segmentation" (2014), https://arxiv.org/abs/1411.4038
"real" is FCN-8s on VGG16 with the 21 classes of PASCAL VOC, 134 M parameters.

Batch: images (batch, 3, image, image), classes of the pixels (batch, image, image). Loss: cross entropy.
"""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from .data import segmentation_batch
from .registry import ModelSpec
from .vgg import DEPTHS, WIDTHS, check_stages, stages


@dataclass(frozen=True, slots=True)
class FCNConfig:
    depths: tuple[int, ...] = (1, 1, 1, 1, 1)  # convolutions of each stage
    widths: tuple[int, ...] = (16, 32, 64, 64, 64)  # channels of each stage
    hidden: int = 64  # channels of the two layers that were linear in the VGG
    image: int = 64
    classes: int = 8
    batch: int = 16

    def __post_init__(self) -> None:
        check_stages(self.depths, self.widths, self.image)
        if len(self.depths) < 3 or self.image % 2 ** len(self.depths):
            raise ValueError(f"depths={self.depths}: needs three stages or more that can halve image={self.image}")


class FCN(nn.Module):
    def __init__(self, config: FCNConfig) -> None:
        super().__init__()
        self.stages = stages(config.depths, config.widths)
        self.hidden1 = nn.Conv2d(config.widths[-1], config.hidden, 7, 1, 3)
        self.hidden2 = nn.Conv2d(config.hidden, config.hidden, 1)
        scored = (config.hidden, config.widths[-2], config.widths[-3])  # from the coarsest scale
        self.scores = nn.ModuleList(nn.Conv2d(width, config.classes, 1) for width in scored)
        final = 2 ** (len(config.depths) - 2)  # from the finest scored scale to the image: 8 for five stages
        self.upsample = nn.ModuleList(
            nn.ConvTranspose2d(config.classes, config.classes, 2 * f, f, f // 2, bias=False) for f in (2, 2, final)
        )

    def forward(self, images: Tensor, classes: Tensor) -> Tensor:
        scales = [images]
        for stage in self.stages:
            scales.append(stage(scales[-1]))
        top = F.relu(self.hidden2(F.relu(self.hidden1(scales[-1]))))
        y = self.upsample[0](self.scores[0](top))
        y = self.upsample[1](y + self.scores[1](scales[-2]))
        y = self.upsample[2](y + self.scores[2](scales[-3]))  # (batch, classes, image, image)
        return F.cross_entropy(y, classes)


def batch(config: FCNConfig, seed: int) -> tuple[Tensor, Tensor]:
    return segmentation_batch(config.batch, 3, config.image, config.classes, seed)


SPEC = ModelSpec(
    name="fcn",
    config_type=FCNConfig,
    presets={
        "tiny": FCNConfig(depths=(1, 1, 1), widths=(4, 4, 8), hidden=8, image=16, classes=3, batch=2),
        "default": FCNConfig(),
        "real": FCNConfig(DEPTHS, WIDTHS, hidden=4096, image=512, classes=21, batch=4),
    },
    build=FCN,
    batch=batch,
)
