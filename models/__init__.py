"""A zoo of small, readable PyTorch models to plan, trace and train: one file each, one registry.

    loaded = load("gpt", "default", {"layers": "12"})
    loaded.model(*loaded.batch).backward()

Importing this package does not import torch; a model's file is imported when the model is asked for.
"""

from .registry import LoadedModel, ModelSpec, configure, get, load, names

__all__ = ["LoadedModel", "ModelSpec", "configure", "get", "load", "names"]
