"""Checks that a converted model gives the same for tokens in pieces as for all at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from linattn_models.basics.modes import evaluating
from linattn_models.huggingface.cache import CACHE, StateLayer
from linattn_models.huggingface.converted import ConvertedAttention

_TOKENS, _FIRST = 8, 5
Layers: TypeAlias = Mapping[str, ConvertedAttention]
Outputs: TypeAlias = dict[str, list[Tensor]]


def find_misfit(model: nn.Module, layers: Layers) -> tuple[str, str] | None:
    """The first layer whose outputs depend on how eight tokens are cut, with the reason.

    None where all agree; also for a model that makes no cache from tokens, and for one without
    weights (on the device "meta").

    Args:
        model: converted, on its device.
        layers: all its converted layers, by name.
    """
    by_tokens = getattr(model, "main_input_name", "") == "input_ids"
    if not by_tokens or any(x.is_meta for x in model.parameters()):
        return None
    weight = next(model.parameters())
    tokens = torch.arange(_TOKENS, device=weight.device)[None] % _vocabulary(model)
    with torch.no_grad(), evaluating(model):
        with _record(layers) as pieces:
            cache = _read(model, tokens[:, :_FIRST], None)
            if cache is None:
                return None
            _read(model, tokens[:, _FIRST:], cache)
        for name, layer in layers.items():
            if reason := _find_misplaced(layer, cache, len(pieces[name])):
                return name, reason
        with _record(layers) as whole:
            model(input_ids=tokens, use_cache=False)
    tolerance = max(1e-3, 8 * torch.finfo(weight.dtype).eps)
    for name in layers:
        (wanted,), got = whole[name], torch.cat(pieces[name], 1)
        difference, size = (got - wanted).norm(), wanted.norm()
        if not difference <= tolerance * size:  # a pruned layer: both are 0
            return name, f"tokens in pieces change its output by {float(difference / size):.0%}"
    return None


def _vocabulary(model: Any) -> int:
    return int(model.get_input_embeddings().weight.shape[0])


def _read(model: nn.Module, tokens: Tensor, cache: Any) -> Any:
    """The cache after the tokens; one of the model's own kind where none is given."""
    return getattr(model(input_ids=tokens, use_cache=True, **{CACHE: cache}), CACHE, None)


def _find_misplaced(layer: ConvertedAttention, cache: Any, calls: int) -> str:
    """Why the cache does not hold the state of both pieces where the layer says; else empty."""
    attention: Any = layer.attention
    index: int = attention.layer_idx
    states = getattr(cache, "layers", ())  # other caches have none
    state = states[index] if index < len(states) else None
    if not isinstance(state, StateLayer) or not state.seen:
        return "it keeps no state in the cache"
    if calls != 2 or state.seen != _TOKENS:
        return "it calls its attention function more than once a forward"
    return ""


@contextmanager
def _record(layers: Layers) -> Iterator[Outputs]:
    """The outputs (1, N, E) of each call of each layer within the block."""
    outputs: Outputs = {name: [] for name in layers}

    def keep(name: str) -> Any:
        return lambda module, args, output: outputs[name].append(
            output[0] if isinstance(output, tuple) else output
        )

    hooks = [layer.register_forward_hook(keep(name)) for name, layer in layers.items()]
    try:
        yield outputs
    finally:
        for hook in hooks:
            hook.remove()
