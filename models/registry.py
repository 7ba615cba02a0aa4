"""The registry of the zoo: which models there are, how they are configured, how they are built.

A model's file defines a frozen dataclass of settings, the module, a function for an example batch, and
`SPEC`, which ties them together. The module called on the batch returns a scalar loss, so one training step
is `model(*batch).backward()`. Nothing here imports torch before a model is asked for.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, get_type_hints

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

C = TypeVar("C")

TITLES: Mapping[str, str] = {
    "mlp": "Multi-layer perceptron",
    "gpt": "GPT-2, a decoder-only transformer",
    "llama": "Llama 3, a decoder with grouped-query attention, SwiGLU and rotary positions",
    "bert": "BERT, a bidirectional encoder with masked-token and next-sentence losses",
    "t5": "T5, an encoder-decoder with relative position biases",
    "vit": "Vision transformer",
    "resnet": "ResNet with bottleneck blocks and batch norm",
    "mobilenet": "MobileNet, depthwise separable convolutions",
    "unet": "U-Net for segmentation",
    "vgg": "VGG, plain stacks of convolutions",
    "fcn": "FCN-8s, fully convolutional segmentation",
    "convnext": "ConvNeXt",
    "moe": "Mixture-of-experts decoder with top-k routing",
    "lstm": "LSTM language model, unrolled over time",
    "diffusion": "Denoising diffusion U-Net with attention and timestep embedding",
}


@dataclass(frozen=True, slots=True)
class ModelSpec(Generic[C]):
    """One model of the zoo.

    `presets` are settings by name: "tiny" (for tests), "default" (trains on a CPU in under a second a step),
    "real" (the published size, to be traced on fake tensors) and perhaps more. `build` makes the module, with
    weights from torch's global generator; `batch` makes the example batch on the CPU, from a given seed.
    """

    name: str
    config_type: type[C]
    presets: Mapping[str, C]
    build: Callable[[C], nn.Module]
    batch: Callable[[C, int], tuple[Tensor, ...]]

    @property
    def title(self) -> str:
        """A line of plain words on what the model is."""
        return TITLES[self.name]


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A built model and its example batch: `model(*batch)` is a scalar loss."""

    spec: ModelSpec[Any]
    config: Any
    model: nn.Module
    batch: tuple[Tensor, ...]


def names() -> tuple[str, ...]:
    """The names of all models, without importing any."""
    return tuple(TITLES)


def get(name: str) -> ModelSpec[Any]:
    """The model called `name`; imports its file. ValueError for an unknown name."""
    if name not in TITLES:
        raise ValueError(_unknown("model", name, names()))
    return cast("ModelSpec[Any]", importlib.import_module(f".{name}", __package__).SPEC)


def configure(
    spec: ModelSpec[C],
    preset: str = "default",
    overrides: Mapping[str, object] | None = None,
) -> C:
    """The settings of `preset` with some replaced.

    A string is parsed by the type of the setting: a tuple is written "2,2,2", a bool "true" or "false".
    ValueError for a preset or setting that does not exist, and for a value of the wrong type, out of range or
    at odds with another setting.
    """
    if preset not in spec.presets:
        raise ValueError(_unknown(f"preset of {spec.name}", preset, tuple(spec.presets)))
    types = get_type_hints(spec.config_type)
    values: dict[str, object] = {}
    for key, value in (overrides or {}).items():
        if key not in types:
            raise ValueError(_unknown(f"setting of {spec.name}", key, tuple(types)))
        try:
            values[key] = _parse(value, types[key])
        except ValueError:
            wanted = _WANTED[types[key]]
            raise ValueError(f"{spec.name}: {key} must be {wanted}, not {value!r}") from None
    config: Any = spec.presets[preset]
    return cast("C", dataclasses.replace(config, **values))


def load(
    name: str,
    preset: str = "default",
    overrides: Mapping[str, object] | None = None,
    seed: int = 0,
    device: str | torch.device = "cpu",
    fake: bool = False,
) -> LoadedModel:
    """Build a model and its batch, the same for the same seed; the global generator is left as it was.

    With `fake`, weights and batch are fake tensors of one FakeTensorMode and take no memory; the mode is the
    `fake_mode` of each of them.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    spec = get(name)
    config = configure(spec, preset, overrides)
    with torch.random.fork_rng(devices=[]), FakeTensorMode() if fake else nullcontext():
        torch.default_generator.manual_seed(seed)
        if fake:  # a fake parameter cannot be moved, so it is made where it belongs
            with torch.device(device):
                model = spec.build(config)
        else:  # made on the CPU and moved: the same weights on every device
            model = spec.build(config).to(device)
        batch = tuple(tensor.to(device) for tensor in spec.batch(config, seed))
    return LoadedModel(spec, config, model, batch)


_WANTED: Mapping[Any, str] = {
    int: "a positive integer",
    float: "a number that is not negative",
    bool: "true or false",
    str: "a string",
    tuple[int, ...]: "positive integers such as 2,2,2",
}


def _parse(value: object, wanted: Any) -> object:
    """`value`, or the text that says it, as a setting of type `wanted`; ValueError if it does not fit."""
    text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value).strip()
    if wanted is str:
        return text
    if wanted is bool:
        return ("false", "true").index(text.lower()) == 1
    if wanted is float:
        number = float(text)
        if not 0 <= number < float("inf"):
            raise ValueError
        return number
    integers = tuple(int(item) for item in text.split(","))
    if min(integers) < 1 or (wanted is int and len(integers) > 1):
        raise ValueError
    return integers[0] if wanted is int else integers


def _unknown(what: str, name: str, known: tuple[str, ...]) -> str:
    """The message for a name that is not known, with the closest that is."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f", did you mean {close[0]!r}?" if close else "."
    return f"no {what} is called {name!r}{hint} There is: {', '.join(known)}"
