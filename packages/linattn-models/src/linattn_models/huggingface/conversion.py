"""Replaces the softmax attention of pretrained models, layer by layer, by linear attention."""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
import transformers
from torch import Tensor, nn
from transformers import GenerationConfig, PreTrainedModel
from transformers.utils import GENERATION_CONFIG_NAME, SAFE_WEIGHTS_NAME

from linattn_core.errors import expected, quote
from linattn_models.basics.validation import at_least, instance, json_object
from linattn_models.huggingface.converted import (
    HEAD_DIMS,
    LEARNED,
    NAME,
    ConvertedAttention,
    cache_name,
    shape_of,
)
from linattn_models.huggingface.decays import Decay, read_decay
from linattn_models.huggingface.interface import refuse_decay, sees_only_the_past
from linattn_models.huggingface.padding import check_left_padded
from linattn_models.huggingface.pieces import find_misfit
from linattn_models.huggingface.support import dispatches_by_name
from linattn_models.weights.model_files import read_weights

Model = TypeVar("Model", bound=nn.Module)

# Attributes of layers that compute more than softmax of scaled products, and what they mean.
_MORE_THAN_SOFTMAX = {
    "has_relative_attention_bias": "it adds a bias to its scores",
    "relative_attention_bias": "it adds a bias to its scores",
    "attn_logit_softcapping": "it caps its scores",
    "is_cross_attention": "its keys come from another sequence",
    "is_encoder_decoder": "its model is an encoder with a decoder",
    "sinks": "it has attention sinks",
    "sliding_window": "it sees a sliding window alone",
}


def convert(
    model: Model,
    *,
    num_features: int | None = None,
    window_size: int = 0,
    feature_map: str = LEARNED,
    decay: Decay | None = None,
) -> Model:
    """Replaces every attention layer of a model, in place, by linear attention.

    For models that dispatch attention by name, such as GPT-2, GPT-NeoX, Llama with grouped heads,
    BERT and ViT. All weights stay. Each layer is wrapped in a `ConvertedAttention`, whose feature
    maps are untrained: train them by `transfer_attention`, then fine-tune the whole model or use
    LoRA. Causal models then generate from a state of fixed size; `from_transformers` makes a Llama,
    Mistral, Qwen2 or GPT-2 one of our models, which generates faster.

    With a `window_size` w, each query uses softmax for the last w keys, its own included, and
    linear attention for the keys before them (see `ConvertedAttention`). The model starts nearer to
    its teacher. The state also holds these w keys and values; once it does, it does not grow.

    A model that was trained with `register()` keeps what it learned by its feature map, "elu", and
    its decay: it computes the same, and generates from a state.

    Args:
        model: a `PreTrainedModel`; pass a copy if you need the original model too.
        num_features: F of each head's map, even; twice the head dim by default.
        window_size: w, for causal models; 0 for no window.
        feature_map: "hedgehog", learned by each head; or a name that `linear_attention` knows, of
            a map that takes neither a num_features nor a window.
        decay: as for `register`, for causal models; not beside a window.

    Returns:
        The model. `save_pretrained` saves it, `load_converted` loads it. A language model is
        better saved as ours: see `LinattnForCausalLM.from_transformers`.

    Raises:
        ValueError, TypeError: a layer whose attention cannot be replaced, with the reason; a model
            without attention layers; what is no model; a num_features that is not positive and
            even; a negative window_size, or one for layers that are not causal; an unknown
            feature_map, or one with a num_features or a window; a decay out of range, beside a
            window, or for layers that are not causal. The model is then as it was.

    Cost: a causal model reads eight tokens, whole and in two pieces: a layer whose outputs differ,
    because it keeps more in its cache than keys and values, cannot be replaced.
    """
    window_size = _check_arguments(model, num_features, window_size, feature_map)
    decay = read_decay(decay)
    if window_size and decay is not None:
        raise ValueError(expected("decay", "None beside a window", decay, "choose one of the two"))
    layers = dict(_attention_layers(model))
    if not layers:
        wanted = "a model of transformers with layers that dispatch attention by name"
        raise ValueError(expected("convert", wanted, f"a {type(model).__name__} without any"))
    for name, attention in layers.items():
        if window_size and not sees_only_the_past(attention, None):
            reason = "it is not causal, as a window needs: pass window_size=0"
            raise _refusal(name, attention, reason)
        if decay is not None and not sees_only_the_past(attention, None):
            refuse_decay(f"{name}, a {type(attention).__name__} that is not causal")
    replaced = {
        name: ConvertedAttention(attention, num_features, window_size, feature_map, decay)
        for name, attention in layers.items()
    }
    with _undone_if_refused(model, layers):
        for name, layer in replaced.items():
            model.set_submodule(name, layer.train(layer.attention.training))
            cast(Any, layer.attention).config._attn_implementation = NAME
        if misfit := find_misfit(model, replaced):
            name, reason = misfit
            raise _refusal(name, layers[name], reason)
    marked = cast(Any, model)
    # Always a number: transformers does not save fields that are None.
    marked.config.linattn_features = layer.feature_map.feature_dim(shape_of(layer.attention)[2])
    marked.config.linattn_window = window_size
    marked.config.linattn_feature_map = feature_map
    marked.config.linattn_decay = decay  # not saved where it is None
    # from_pretrained takes this name, and the layers that it builds refuse to run.
    marked.config.attn_implementation = NAME
    marked._is_stateful = True  # no token can be taken back, so generation is not speculative
    if hasattr(model, "generate"):
        model.register_forward_pre_hook(_check_last_logits, with_kwargs=True)
    return model


@contextmanager
def _undone_if_refused(model: nn.Module, layers: Mapping[str, nn.Module]) -> Iterator[None]:
    """Puts the layers back if an error leaves the block."""
    names = [cast(Any, layer).config._attn_implementation for layer in layers.values()]
    try:
        yield
    except Exception:
        for (name, layer), implementation in zip(layers.items(), names, strict=True):
            model.set_submodule(name, layer)
            cast(Any, layer).config._attn_implementation = implementation
        raise


def _check_last_logits(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuses padding on the right in a forward that gives the last position's logits alone.

    `generate` draws a row's next token from them. The layers refuse only the token after that.
    """
    keep = kwargs.get("logits_to_keep")
    compiling = torch.compiler.is_compiling()  # a whole graph cannot depend on the mask's values
    if isinstance(keep, int) and keep == 1 and not compiling:
        check_left_padded(kwargs.get("attention_mask"), allows_empty=True)


def _check_arguments(
    model: object, num_features: object, window_size: object, feature_map: object
) -> int:
    """The size of the window. Refuses what is not a model, and settings that do not go together."""
    instance("model", model, nn.Module)
    size = at_least("window_size", window_size, 0)
    instance("feature_map", feature_map, str)
    if feature_map != LEARNED and (num_features is not None or size):
        wanted = f"{LEARNED!r} with a num_features or a window_size"
        raise ValueError(expected("feature_map", wanted, quote(feature_map)))
    return size


def _attention_layers(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The attention layers to replace, with their names."""
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
    if not dispatches_by_name(type(module.config)):
        return "its model does not dispatch attention by name"
    parameters = inspect.signature(module.forward).parameters
    if "key_value_states" in parameters:
        return "its keys may come from another sequence"
    if inspect.Parameter.VAR_KEYWORD not in [x.kind for x in parameters.values()]:
        return "it passes no arguments on to its attention function"
    if module.is_causal and cache_name(module) is None:
        return "it takes its cache by an unknown name"
    if not any(hasattr(module, name) for name in HEAD_DIMS):
        return "its head dim has an unknown name"
    return ""


def _refusal(name: str, module: nn.Module, reason: str) -> ValueError:
    got = f"a {type(module).__name__}"
    return ValueError(expected(name, "an attention layer that can be replaced", got, reason))


def load_converted(folder: str | Path, **options: Any) -> PreTrainedModel:
    """Loads the model that `save_pretrained` wrote after `convert`.

    `from_pretrained` alone would build softmax layers, whose weights have other names. Language
    models are better saved as ours: see `LinattnForCausalLM.from_transformers`.

    Args:
        folder: the folder with config.json and weights.
        **options: as for `from_pretrained`.

    Raises:
        ValueError, TypeError: what is no folder of a model; a model that was not converted, an
            adapter alone, or weights that are not those of the config: some are missing, left over,
            or of another shape.
    """
    cls = _saved_class(folder)
    both = options.pop("output_loading_info", False)
    config, options = cls.config_class.from_pretrained(folder, return_unused_kwargs=True, **options)
    with torch.device("meta"):
        names = [name for name, _ in _attention_layers(cls(copy.deepcopy(config)))]
    weights, new = _divide(_read_tensors(Path(folder)), names)
    model, info = cls.from_pretrained(
        None, config=config, state_dict=weights, output_loading_info=True,
        ignore_mismatched_sizes=True, **options,
    )  # fmt: skip
    _refuse_weights(folder, {kind: info[kind] for kind in _NOT_LOADED})
    learned = config.linattn_feature_map == LEARNED
    convert(
        model,
        num_features=config.linattn_features if learned else None,
        window_size=config.linattn_window,
        feature_map=config.linattn_feature_map,
        decay=getattr(config, "linattn_decay", None),
    )
    _load_new(folder, model, names, new)
    if Path(folder, GENERATION_CONFIG_NAME).is_file():
        model.generation_config = GenerationConfig.from_pretrained(folder)
    model.name_or_path = str(folder)
    return (model, info) if both else cast(PreTrainedModel, model)


def _read_tensors(folder: Path) -> dict[str, Tensor]:
    """The tensors of all files of weights."""
    files = sorted(folder.glob("model*.safetensors")) or [folder / SAFE_WEIGHTS_NAME]
    return {name: x for file in files for name, x in read_weights(file).items()}


def _divide(
    tensors: Mapping[str, Tensor], layers: Sequence[str]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The weights of the model by their names before `convert`, and those that it added."""
    converted = re.compile(rf"({'|'.join(map(re.escape, layers))})\.(attention\.)?(.*)")
    weights, new = {}, {}
    for name, x in tensors.items():
        match = converted.fullmatch(name)
        if match is None or match[2]:
            weights[name if match is None else f"{match[1]}.{match[3]}"] = x
        else:
            new[name] = x
    return weights, new


def _load_new(
    folder: str | Path, model: nn.Module, layers: Sequence[str], tensors: Mapping[str, Tensor]
) -> None:
    """Loads the weights that `convert` added to the layers."""
    own = {
        f"{layer}.{name}": x
        for layer in layers
        for name, x in model.get_submodule(layer).state_dict().items()
        if not name.startswith("attention.")
    }
    both = own.keys() & tensors.keys()
    _refuse_weights(folder, {
        "missing_keys": own.keys() - both,
        "mismatched_keys": [name for name in both if own[name].shape != tensors[name].shape],
        "unexpected_keys": tensors.keys() - both,
    })  # fmt: skip
    model.load_state_dict(tensors, strict=False)


def _saved_class(folder: str | Path) -> Any:
    """The class of the converted model in a folder."""
    instance("folder", folder, str, Path)
    wanted = "a converted model of transformers"
    if not (path := Path(folder, "config.json")).is_file():
        got = "a folder without config.json" if Path(folder).is_dir() else "no folder"
        advice = "pass the folder that save_pretrained wrote after convert"
        if Path(folder, "adapter_config.json").is_file():
            got = "an adapter alone"
            advice = "save the model that its merge_and_unload() returns"
        raise ValueError(expected(str(folder), wanted, got, advice))
    config = json_object(path.read_bytes(), str(path))
    names = config.get("architectures") or ["no class of a model"]
    cls = getattr(transformers, names[0], None)
    fields = ("linattn_features", "linattn_window", "linattn_feature_map")
    if not all(name in config for name in fields) or cls is None:
        advice = "load it by from_pretrained and convert it"
        raise ValueError(expected(str(folder), wanted, names[0], advice))
    return cls


# The kinds of weights that are not loaded.
_NOT_LOADED = {
    "missing_keys": "none",
    "mismatched_keys": "another shape",
    "unexpected_keys": "ones that no layer has",
}


def _refuse_weights(folder: str | Path, unfit: Mapping[str, Iterable[Any]]) -> None:
    """Refuses weights that do not match the model, which would leave some of its weights random."""
    for kind, found in unfit.items():
        # transformers gives a mismatched name in a tuple with both shapes.
        names = sorted(x if isinstance(x, str) else x[0] for x in found)
        if names:
            others = f" and {len(names) - 3} others" if len(names) > 3 else ""
            got = f"{_NOT_LOADED[kind]}: {', '.join(names[:3])}{others}"
            advice = "load the folder that save_pretrained wrote after convert, as it is"
            raise ValueError(expected(str(folder), "the weights of its config", got, advice))
