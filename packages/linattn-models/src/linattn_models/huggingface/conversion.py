"""Replaces the softmax attention of pretrained models, layer by layer, by linear attention."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar, cast

import transformers
from torch import nn
from transformers import AutoConfig, PreTrainedModel

from linattn_core.errors import expected
from linattn_models.huggingface.converted import HEAD_DIMS, NAME, ConvertedAttention, cache_name

Model = TypeVar("Model", bound=nn.Module)

# Attributes of layers that compute more than softmax of scaled products, and what they mean.
_MORE_THAN_SOFTMAX = {
    "attn_logit_softcapping": "it caps its scores",
    "is_cross_attention": "its keys come from another sequence",
    "sinks": "it has attention sinks",
    "sliding_window": "it sees a sliding window alone",
}
# The kinds of weights that from_pretrained reports as not loaded.
_NOT_LOADED = {
    "missing_keys": "none",
    "mismatched_keys": "another shape",
    "unexpected_keys": "ones that no layer has",
}


def convert(model: Model, *, num_features: int | None = None) -> Model:
    """Replaces every attention layer of a model, in place, by linear attention.

    For models that dispatch attention by name, such as GPT-2, GPT-NeoX, Llama with grouped heads,
    BERT and ViT. All weights stay. Each layer is wrapped in a `ConvertedAttention`, whose feature
    maps are untrained: train them by `transfer_attention`, then fine-tune the whole model or use
    LoRA. Causal models then generate from a state of fixed size.

    Args:
        model: a `PreTrainedModel`; pass a copy if you need the original model too.
        num_features: F of each head's map, even; twice the head dim by default.

    Returns:
        The model. `save_pretrained` saves it, `load_converted` loads it.

    Raises:
        ValueError: a layer whose attention cannot be replaced, with the reason; or a model without
            attention layers.
    """
    layers = dict(_attention_layers(model))
    if not layers:
        wanted = "a model of transformers with layers that dispatch attention by name"
        raise ValueError(expected("convert", wanted, f"a {type(model).__name__} without any"))
    for name, attention in layers.items():
        parent, _, child = name.rpartition(".")
        replaced = ConvertedAttention(attention, num_features)
        setattr(model.get_submodule(parent), child, replaced.train(attention.training))
        cast(Any, attention.config)._attn_implementation = NAME
    marked = cast(Any, model)
    # Always a number: transformers does not save fields that are None.
    marked.config.linattn_features = 2 * replaced.feature_map.query_weight.shape[-1]
    marked._is_stateful = True  # no token can be taken back, so generation is not speculative
    return model


def load_converted(folder: str | Path, **options: Any) -> PreTrainedModel:
    """Loads the model that `save_pretrained` wrote after `convert`.

    `from_pretrained` alone would build softmax layers, whose weights have other names.

    Args:
        folder: the folder with config.json and weights.
        **options: as for `from_pretrained`.

    Raises:
        ValueError: a folder of a model that was not converted, or whose weights are not those of
            its config: some are missing, left over, or of another shape.
    """
    config = AutoConfig.from_pretrained(folder)
    cls = getattr(transformers, (config.architectures or ["?"])[0], None)
    if not hasattr(config, "linattn_features") or cls is None:
        wanted = "a converted model of transformers"
        advice = "load it by from_pretrained and convert it"
        raise ValueError(expected(str(folder), wanted, f"{config.architectures}", advice))

    def build(self: nn.Module, config: Any, *args: Any, **kwargs: Any) -> None:
        cls.__init__(self, config, *args, **kwargs)
        convert(self, num_features=config.linattn_features)

    loader: Any = type(cls.__name__, (cls,), {"__init__": build, "__module__": cls.__module__})
    both = options.pop("output_loading_info", False)
    options["ignore_mismatched_sizes"] = True  # they are refused below, in our words
    model, info = loader.from_pretrained(folder, output_loading_info=True, **options)
    _check_weights(folder, info)
    return (model, info) if both else model


def _check_weights(folder: str | Path, info: dict[str, Any]) -> None:
    """Refuses weights that do not match the model, which would leave some of its weights random.

    Raises:
        ValueError: with the first three names.
    """
    for kind, what in _NOT_LOADED.items():
        # A mismatched name comes in a tuple with both shapes.
        names = sorted(x if isinstance(x, str) else x[0] for x in info[kind])
        if names:
            others = f" and {len(names) - 3} others" if len(names) > 3 else ""
            got = f"{what}: {', '.join(names[:3])}{others}"
            advice = "load the folder that save_pretrained wrote after convert, as it is"
            raise ValueError(expected(str(folder), "the weights of its config", got, advice))


def _attention_layers(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The attention layers to replace, with their names.

    Raises:
        ValueError: naming the first layer that cannot be replaced.
    """
    for name, module in model.named_modules():
        if isinstance(module, ConvertedAttention):
            raise _refusal(name, module, "it is converted already")
        if _dispatches(module):
            reason = _why_not(module)
            if reason:
                raise _refusal(name, module, reason)
            yield name, module
        elif type(module).__name__.endswith("Attention") and not any(
            map(_dispatches, module.modules())
        ):
            raise _refusal(name, module, "it does not dispatch attention by name")


def _dispatches(module: nn.Module) -> bool:
    """Whether a layer looks its attention function up by name."""
    return all(hasattr(module, name) for name in ("config", "is_causal", "scaling"))


def _why_not(module: nn.Module) -> str:
    """Why a layer cannot be replaced; empty where it can."""
    for name, reason in _MORE_THAN_SOFTMAX.items():
        value = getattr(module, name, getattr(module.config, name, None))
        if value is not None and value is not False:
            return reason
    kinds = [x.kind for x in inspect.signature(module.forward).parameters.values()]
    if inspect.Parameter.VAR_KEYWORD not in kinds:
        return "it passes no arguments on to its attention function"
    if module.is_causal and cache_name(module) is None:
        return "it takes its cache by an unknown name"
    if not any(hasattr(module, name) for name in HEAD_DIMS):
        return "its head dim has an unknown name"
    return ""


def _refusal(name: str, module: nn.Module, reason: str) -> ValueError:
    got = f"a {type(module).__name__}"
    return ValueError(expected(name, "an attention layer that can be replaced", got, reason))
