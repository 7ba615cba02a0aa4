"""Gradients of `transformers` models with random weights (extra ``models``; skipped where it is not installed).

The language models are wrapped so that the loss is computed outside of them, which gives one graph; capture
goes through torch.compile.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch

from optpart import Partitioner, check_gradients

os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip("transformers", reason="the extra 'models' is not installed")

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}


class Logits(torch.nn.Module):
    """A model's last hidden state, as one tensor."""

    def __init__(self, model: torch.nn.Module, **fixed: Any) -> None:
        super().__init__()
        self.model, self.fixed = model, fixed

    def forward(self, *args: torch.Tensor) -> torch.Tensor:
        out = self.model(*args, return_dict=True, **self.fixed)
        return out.logits if hasattr(out, "logits") else out.last_hidden_state


def tokens() -> torch.Tensor:
    return torch.randint(0, 64, (2, 16), generator=torch.Generator().manual_seed(0))


def gpt2() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    config = transformers.GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=4, use_cache=False)
    return Logits(transformers.GPT2LMHeadModel(config)), (tokens(),)


def llama() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    config = transformers.LlamaConfig(vocab_size=64, num_key_value_heads=2, use_cache=False, **SMALL)
    return Logits(transformers.LlamaForCausalLM(config)), (tokens(),)


def bert() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    return Logits(transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=64, **SMALL))), (tokens(),)


def vit() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    config = transformers.ViTConfig(image_size=16, patch_size=8, **SMALL)
    images = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    return Logits(transformers.ViTModel(config, add_pooling_layer=False)), (images,)


def t5() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    config = transformers.T5Config(
        vocab_size=64, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, use_cache=False, decoder_start_token_id=0
    )

    class EncoderDecoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = transformers.T5ForConditionalGeneration(config)

        def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = self.model(input_ids=source, decoder_input_ids=target).logits
            return logits

    return EncoderDecoder(), (tokens(), tokens())


@pytest.mark.filterwarnings("default")  # the library's own warnings are not ours to fail on
@pytest.mark.parametrize("budget", [None, 0.3])
@pytest.mark.parametrize("build", [gpt2, llama, bert, vit, t5], ids=lambda f: f.__name__)
def test_gradients(build: Callable[[], tuple[torch.nn.Module, tuple[torch.Tensor, ...]]], budget: float | None) -> None:
    torch.manual_seed(0)
    model, args = build()
    partitioner = Partitioner(memory_budget=budget, time_limit=5, on_failure="raise")
    check = check_gradients(model.train(), args, partitioner=partitioner, loss=lambda y: y.float().square().mean())
    assert partitioner.partitions, "the model was not partitioned"
    assert check.equal_bitwise, check
    assert check.agree, check
    assert check.fallbacks == 0
