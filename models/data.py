"""Example batches that several models share: random, on the CPU, the same for the same seed."""

import torch
from torch import Tensor


def language_batch(vocab: int, batch: int, seq: int, seed: int) -> tuple[Tensor, Tensor]:
    """Tokens (batch, seq) and the tokens that follow them (batch, seq)."""
    generator = torch.Generator().manual_seed(seed)
    text = torch.randint(vocab, (batch, seq + 1), generator=generator)
    return text[:, :-1].clone(), text[:, 1:].clone()  # clones, as two views of one tensor would be aliased


def image_batch(batch: int, channels: int, size: int, classes: int, seed: int) -> tuple[Tensor, Tensor]:
    """Images (batch, channels, size, size) and their classes (batch,)."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(batch, channels, size, size, generator=generator)
    return images, torch.randint(classes, (batch,), generator=generator)


def segmentation_batch(batch: int, channels: int, size: int, classes: int, seed: int) -> tuple[Tensor, Tensor]:
    """Images (batch, channels, size, size) and the class of each pixel (batch, size, size)."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(batch, channels, size, size, generator=generator)
    return images, torch.randint(classes, (batch, size, size), generator=generator)
