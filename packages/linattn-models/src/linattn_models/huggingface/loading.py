"""Loads converted models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import transformers
from torch import nn
from transformers import PreTrainedModel

from linattn_core.errors import expected
from linattn_models.huggingface.conversion import convert

# The kinds of weights that from_pretrained reports as not loaded.
_NOT_LOADED = {
    "missing_keys": "none",
    "mismatched_keys": "another shape",
    "unexpected_keys": "ones that no layer has",
}


def load_converted(folder: str | Path, **options: Any) -> PreTrainedModel:
    """Loads the model that `save_pretrained` wrote after `convert`.

    `from_pretrained` alone would build softmax layers, whose weights have other names.

    Args:
        folder: the folder with config.json and weights.
        **options: as for `from_pretrained`.

    Raises:
        ValueError, TypeError: what is no folder of a model; a model that was not converted, an
            adapter alone, or weights that are not those of the config: some are missing, left over,
            or of another shape.
    """
    cls = _saved_class(folder)

    def build(self: nn.Module, config: Any, *args: Any, **kwargs: Any) -> None:
        cls.__init__(self, config, *args, **kwargs)
        window_size = getattr(config, "linattn_window", 0)  # models saved before had none
        convert(self, num_features=config.linattn_features, window_size=window_size)

    loader: Any = type(cls.__name__, (cls,), {"__init__": build, "__module__": cls.__module__})
    both = options.pop("output_loading_info", False)
    options["ignore_mismatched_sizes"] = True  # they are refused below, in our words
    model, info = loader.from_pretrained(folder, output_loading_info=True, **options)
    _check_weights(folder, info)
    return (model, info) if both else model


def _saved_class(folder: str | Path) -> Any:
    """The class of the converted model in a folder."""
    if not isinstance(folder, (str, Path)):
        raise TypeError(expected("folder", "a path", f"a value of type {type(folder).__name__}"))
    wanted = "a converted model of transformers"
    if not (path := Path(folder, "config.json")).is_file():
        got = "a folder without config.json" if Path(folder).is_dir() else "no folder"
        advice = "pass the folder that save_pretrained wrote after convert"
        if Path(folder, "adapter_config.json").is_file():
            got = "an adapter alone"
            advice = "save the model that its merge_and_unload() returns"
        raise ValueError(expected(str(folder), wanted, got, advice))
    try:
        config = json.loads(path.read_bytes())
    except ValueError:
        config = None
    if not isinstance(config, dict) or "model_type" not in config:
        raise ValueError(expected(str(path), "a model's config with its model_type", "none"))
    names = config.get("architectures") or ["no class of a model"]
    cls = getattr(transformers, names[0], None)
    if "linattn_features" not in config or cls is None:
        advice = "load it by from_pretrained and convert it"
        raise ValueError(expected(str(folder), wanted, names[0], advice))
    return cls


def _check_weights(folder: str | Path, info: dict[str, Any]) -> None:
    """Refuses weights that do not match the model, which would leave some of its weights random."""
    for kind, what in _NOT_LOADED.items():
        # A mismatched name comes in a tuple with both shapes.
        names = sorted(x if isinstance(x, str) else x[0] for x in info[kind])
        if names:
            others = f" and {len(names) - 3} others" if len(names) > 3 else ""
            got = f"{what}: {', '.join(names[:3])}{others}"
            advice = "load the folder that save_pretrained wrote after convert, as it is"
            raise ValueError(expected(str(folder), "the weights of its config", got, advice))
