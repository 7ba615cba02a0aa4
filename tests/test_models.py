"""The model zoo: each model trains, traces as one graph and has its published size; the registry is strict."""

import dataclasses
import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

import optpart_models as zoo
from optpart_models.moe import Mixture, MoEConfig

PUBLISHED = {  # numbers of parameters; of mlp, unet, fcn and lstm the papers or their readers give millions only
    ("mlp", "real"): 12_115_010,
    ("gpt", "real"): 124_439_808,
    ("llama", "real"): 8_030_261_248,
    ("llama", "llama70b"): 70_553_706_496,
    ("bert", "real"): 110_106_428,
    ("t5", "real"): 222_903_552,
    ("vit", "real"): 86_567_656,
    ("resnet", "real"): 25_557_032,
    ("mobilenet", "real"): 4_231_976,
    ("unet", "real"): 31_036_546,
    ("vgg", "real"): 138_357_544,
    ("fcn", "real"): 134_489_759,
    ("convnext", "real"): 28_589_128,
    ("moe", "real"): 46_702_792_704,
    ("lstm", "real"): 66_022_000,
    ("diffusion", "real"): 35_746_307,
}

every_model = pytest.mark.parametrize("name", zoo.names())


def step(model: nn.Module, batch: tuple[Tensor, ...]) -> tuple[Tensor, list[Tensor]]:
    """The loss and the gradients of all parameters of one step."""
    model.zero_grad()
    loss: Tensor = model(*batch)
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    missing = [name for name, weight in model.named_parameters() if weight.grad is None]
    assert not missing, f"no gradient: {missing}"
    return loss.detach(), [weight.grad for weight in model.parameters() if weight.grad is not None]


@every_model
def test_loss_is_a_finite_scalar_and_every_parameter_has_a_gradient(name: str) -> None:
    loaded = zoo.load(name, "tiny")
    loss, gradients = step(loaded.model, loaded.batch)
    assert loss.shape == ()
    assert loss.isfinite()
    assert all(gradient.isfinite().all() and gradient.any() for gradient in gradients)


@every_model
def test_learns_its_batch(name: str) -> None:
    loaded = zoo.load(name, "tiny")
    optimizer = torch.optim.Adam(loaded.model.parameters(), lr=0.01)
    before, _ = step(loaded.model, loaded.batch)
    for _ in range(20):
        optimizer.step()
        after, _ = step(loaded.model, loaded.batch)
    assert after < before


@every_model
def test_one_seed_makes_one_model(name: str) -> None:
    state = torch.get_rng_state()
    first, second, other = (zoo.load(name, "tiny", seed=seed) for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(map(torch.equal, first.model.parameters(), second.model.parameters()))
    assert all(map(torch.equal, first.model.buffers(), second.model.buffers()))
    assert all(map(torch.equal, first.batch, second.batch))
    assert not all(map(torch.equal, first.model.parameters(), other.model.parameters()))
    assert not all(map(torch.equal, first.batch, other.batch))


@every_model
def test_batch_has_no_aliases(name: str) -> None:
    batch = zoo.load(name, "tiny").batch
    assert len({tensor.untyped_storage().data_ptr() for tensor in batch}) == len(batch)
    assert all(tensor.is_contiguous() for tensor in batch)


@every_model
def test_traces_as_one_graph(name: str) -> None:
    torch.compiler.reset()
    loaded = zoo.load(name, "tiny")
    loss, gradients = step(loaded.model, loaded.batch)
    compiled = torch.compile(loaded.model, backend="eager", fullgraph=True)
    compiled_loss: Tensor = compiled(*loaded.batch)
    loaded.model.zero_grad()
    compiled_loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    assert torch.equal(compiled_loss, loss)
    for weight, gradient in zip(loaded.model.parameters(), gradients, strict=True):
        assert weight.grad is not None
        torch.testing.assert_close(weight.grad, gradient)


@pytest.mark.parametrize("name", [name for name in zoo.names() if hasattr(zoo.get(name).config_type, "dropout")])
def test_dropout_acts_in_training_only(name: str) -> None:
    plain = zoo.load(name, "tiny")
    loaded = zoo.load(name, "tiny", {"dropout": 0.5})
    first, second = (step(loaded.model, loaded.batch)[0] for _ in range(2))
    assert first != second
    assert torch.equal(loaded.model.eval()(*loaded.batch), plain.model.eval()(*plain.batch))


@pytest.mark.parametrize("name", ["gpt", "llama", "moe", "lstm", "t5"])
def test_no_token_sees_the_next(name: str) -> None:
    overrides = {"balance": 0.0} if name == "moe" else {}
    loaded = zoo.load(name, "tiny", overrides)
    *_, tokens, targets = loaded.batch
    targets[:, 3:] = -100  # no loss there
    before = loaded.model(*loaded.batch)
    tokens[:, 3:] = (tokens[:, 3:] + 1) % loaded.config.vocab
    assert torch.equal(loaded.model(*loaded.batch), before)
    tokens[:, 2] = (tokens[:, 2] + 1) % loaded.config.vocab
    assert not torch.equal(loaded.model(*loaded.batch), before)


def test_mixture_is_the_weighted_sum_of_the_chosen_experts() -> None:
    config = MoEConfig(width=8, heads=4, kv_heads=2, hidden=16, seq=8, experts=4, chosen=2, capacity=2.0)
    torch.manual_seed(0)
    mixture = Mixture(config)
    x = torch.randn(2, config.seq, config.width)
    weight, expert = mixture.router(x).softmax(-1).topk(config.chosen)
    weight = weight / weight.sum(-1, keepdim=True)
    hidden = F.silu(x[:, :, None, None] @ mixture.gate) * (x[:, :, None, None] @ mixture.up)
    answers = (hidden @ mixture.down).squeeze(3)  # of all experts to all tokens
    picked = answers.gather(2, expert[..., None].expand(-1, -1, -1, config.width))
    torch.testing.assert_close(mixture(x)[0], (picked * weight[..., None]).sum(2))


def test_full_experts_pass_tokens_by() -> None:
    config = MoEConfig(width=8, heads=4, kv_heads=2, hidden=16, seq=8, experts=2, chosen=1, capacity=0.5)
    mixture = Mixture(config)  # of two places for each expert
    out, balance = mixture(torch.ones(1, config.seq, config.width))  # all choose the same
    assert out[0, :2].any(-1).all()
    assert not out[0, 2:].any()
    assert balance > 1


def test_tied_gpt_shares_one_weight() -> None:
    loaded = zoo.load("gpt", "tiny", {"tied": "true"})
    assert loaded.model.get_parameter("head.weight") is loaded.model.get_parameter("token.weight")
    assert step(loaded.model, loaded.batch)[0].isfinite()


def test_diffusion_goes_down_and_up() -> None:
    loaded = zoo.load("diffusion", "tiny", {"multiples": "1,2", "blocks": 2, "attention": "4"})
    assert step(loaded.model, loaded.batch)[0].isfinite()


@pytest.mark.parametrize(("name", "preset"), PUBLISHED)
def test_published_size(name: str, preset: str) -> None:
    loaded = zoo.load(name, preset, fake=True)
    assert sum(weight.numel() for weight in loaded.model.parameters()) == PUBLISHED[name, preset]


@every_model
def test_fake_model_takes_a_step(name: str) -> None:
    loaded = zoo.load(name, "real" if name == "llama" else "tiny", fake=True)
    tensors = (*loaded.batch, *loaded.model.parameters(), *loaded.model.buffers())
    modes = {tensor.fake_mode for tensor in tensors if isinstance(tensor, FakeTensor)}
    assert all(isinstance(tensor, FakeTensor) for tensor in tensors)
    assert len(modes) == 1
    with modes.pop():
        loss, _ = step(loaded.model, loaded.batch)
    assert loss.shape == ()


def test_names_do_not_import_torch() -> None:
    code = "import sys, optpart_models; print(*optpart_models.names()); sys.exit('torch' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert tuple(done.stdout.split()) == zoo.names()


@every_model
def test_spec_is_complete(name: str) -> None:
    spec = zoo.get(name)
    assert spec.name == name
    assert spec.title
    assert {"tiny", "default", "real"} <= set(spec.presets)
    for config in spec.presets.values():
        assert type(config) is spec.config_type
        text = {key: str(value).strip("()") for key, value in dataclasses.asdict(config).items()}
        assert zoo.configure(spec, "tiny", {k: v.rstrip(",") for k, v in text.items()}) == config


def test_configure_parses_by_type() -> None:
    gpt = zoo.configure(zoo.get("gpt"), "default", {"layers": "12", "dropout": "0.1", "tied": "True"})
    assert (gpt.layers, gpt.dropout, gpt.tied) == (12, 0.1, True)
    assert zoo.configure(zoo.get("gpt"), "default", {"layers": 12, "dropout": 0, "tied": False}).dropout == 0.0
    assert zoo.configure(zoo.get("resnet"), "tiny", {"depths": "2, 2,2"}).depths == (2, 2, 2)
    assert zoo.configure(zoo.get("resnet"), "tiny", {"depths": [3, 4]}).depths == (3, 4)
    assert zoo.configure(zoo.get("resnet"), "tiny", {"depths": "3"}).depths == (3,)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("layer", "2", "no setting of gpt is called 'layer', did you mean 'layers'?.*width, heads"),
        ("layers", "two", "gpt: layers must be a positive integer, not 'two'"),
        ("layers", "2,2", "layers must be a positive integer"),
        ("layers", 0, "layers must be a positive integer, not 0"),
        ("layers", 1.5, "layers must be a positive integer, not 1.5"),
        ("layers", True, "layers must be a positive integer, not True"),
        ("dropout", "nan", "dropout must be a number that is not negative"),
        ("tied", "maybe", "tied must be true or false"),
        ("heads", "3", "heads=3 must divide width=16"),
    ],
)
def test_configure_refuses(key: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        zoo.configure(zoo.get("gpt"), "tiny", {key: value})


def test_unknown_names_are_named() -> None:
    with pytest.raises(ValueError, match=r"no model is called 'lama', did you mean 'llama'\?.*mlp, gpt"):
        zoo.get("lama")
    with pytest.raises(ValueError, match=r"no model is called 'zzz'\. There is: mlp"):
        zoo.load("zzz")
    with pytest.raises(ValueError, match="no preset of gpt is called 'huge'"):
        zoo.configure(zoo.get("gpt"), "huge")
    with pytest.raises(ValueError, match="depths must be positive integers such as 2,2,2, not '2,,2'"):
        zoo.configure(zoo.get("resnet"), "tiny", {"depths": "2,,2"})
