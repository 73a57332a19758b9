"""Packed weights are kept between calls of generate, and packed again when the model changed."""

from __future__ import annotations

import copy
import gc
import io
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from linattn_core import registry, use_backend
from linattn_models import AutoregressiveTransformer, CannotCompile, Categorical
from linattn_models.decoding import compiled
from tests.models.decoding.decoders import long_model, needs_cpu_backend
from tests.models.tiny import seeded

pytestmark = needs_cpu_backend


@pytest.fixture(autouse=True)
def packings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one with each model whose weights are packed."""
    calls: list[int] = []
    compile_decoder = registry.compile_decoder

    def counting(*arguments: Any) -> Any:
        calls.append(1)
        return compile_decoder(*arguments)

    monkeypatch.setattr(registry, "compile_decoder", counting)
    return calls


def draw(model: AutoregressiveTransformer, decoder: str = "compiled") -> Tensor:
    return model.generate(3, temperature=0.0, decoder=decoder)


def test_two_calls_pack_once(packings: list[int]) -> None:
    model = long_model()
    first = draw(model)
    assert torch.equal(draw(model, "auto"), first) and len(packings) == 1
    list(model.stream(2))
    model.generate(2, prefix=first[:2, :4])
    assert len(packings) == 1


def optimized(model: AutoregressiveTransformer) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model.loss(model.generate(4, decoder="eager", generator=seeded())).backward()
    optimizer.step()


def scaled(model: AutoregressiveTransformer) -> None:
    with torch.no_grad():
        model.output.weight.mul_(-3.0)


def scaled_by_numpy(model: AutoregressiveTransformer) -> None:
    array = model.output.weight.detach().numpy()
    array *= -3.0


def another_eps(model: AutoregressiveTransformer) -> None:
    model.transformer.norm.eps = 10.0


class Other(Categorical):
    """Equal to a `Categorical`, but of another class."""


def another_head(model: AutoregressiveTransformer) -> None:
    model.head = Other(7)


# What counts as a change of weights is in tests/models/weights/test_weights_record.py.
@pytest.mark.parametrize("change", [optimized, scaled_by_numpy, another_eps, another_head])
def test_each_change_packs_again(
    packings: list[int], change: Callable[[AutoregressiveTransformer], None]
) -> None:
    model = long_model()
    draw(model)
    change(model)
    assert torch.equal(draw(model), draw(model, "eager"))
    assert len(packings) == 2
    draw(model)
    assert len(packings) == 2


def test_a_new_hook_is_run_again(packings: list[int]) -> None:
    model = long_model()
    draw(model)
    handle = model.output.register_forward_hook(lambda *_: None)
    with pytest.raises(CannotCompile, match="hooks"):
        draw(model)
    assert torch.equal(draw(model, "auto"), draw(model, "eager"))
    handle.remove()
    draw(model)
    assert len(packings) == 1


@pytest.mark.parametrize("how", ["deepcopy", "save"])
def test_copies_know_nothing_of_packed_weights(packings: list[int], how: str) -> None:
    model = long_model()
    names, attributes = set(model.state_dict()), set(vars(model))
    expected = draw(model)
    assert set(model.state_dict()) == names and set(vars(model)) == attributes
    if how == "deepcopy":
        other = copy.deepcopy(model)
    else:
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        other = torch.load(file, weights_only=False)
    assert torch.equal(draw(other), expected) and len(packings) == 2
    scaled(other)
    assert torch.equal(draw(model), expected) and len(packings) == 2
    assert torch.equal(draw(other), draw(other, "eager"))


def test_nothing_outlives_the_model() -> None:
    model = long_model()
    draw(model)
    assert model in compiled._cache
    before = len(compiled._cache)
    del model
    gc.collect()
    assert len(compiled._cache) < before


def test_threads_share_one_packing(packings: list[int]) -> None:
    model = long_model()
    expected = draw(model, "eager")
    with ThreadPoolExecutor(4) as pool:
        drawn = list(pool.map(lambda _: [draw(model) for _ in range(5)], range(4)))
    assert all(torch.equal(tokens, expected) for each in drawn for tokens in each)
    assert len(packings) == 1


def test_weights_made_in_inference_mode() -> None:
    with torch.inference_mode():
        model = long_model()
        draw(model)
        model.output.weight.mul_(-3.0)
    assert torch.equal(draw(model), draw(model, "eager"))


def test_use_backend_chooses_the_decoder(packings: list[int]) -> None:
    model = long_model(Categorical(7))
    with use_backend("reference"):
        eager = draw(model, "auto")
        with pytest.raises(CannotCompile, match="reference"):
            draw(model, "compiled")
    assert torch.equal(eager, draw(model, "eager"))
    before = len(packings)
    with use_backend("cpu"):
        draw(model, "compiled")
    assert len(packings) == before + 1
