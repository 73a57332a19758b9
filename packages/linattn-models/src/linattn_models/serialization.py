"""Models on disk: one folder with `config.json` and `model.safetensors`; nothing is unpickled."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from linattn_models.autoregressive import AutoregressiveTransformer
from linattn_models.ctc import CTCBiLSTM
from linattn_models.files import replaced_folder
from linattn_models.transformer import Transformer
from linattn_models.validation import one_of

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
FORMAT_VERSION = 1

Model = Transformer | AutoregressiveTransformer | CTCBiLSTM

_OWN_KEYS = ("format_version", "model", "extra")  # what `save` adds to a model's `to_dict`
_CLASSES: dict[str, type[Transformer] | type[AutoregressiveTransformer] | type[CTCBiLSTM]] = {
    "Transformer": Transformer,
    "AutoregressiveTransformer": AutoregressiveTransformer,
    "CTCBiLSTM": CTCBiLSTM,
}


def save(model: Model, folder: str | Path, extra: Mapping[str, Any] | None = None) -> None:
    """Writes the model's configuration and weights into `folder`, whole or not at all.

    Args:
        model: a `Transformer`, an `AutoregressiveTransformer` or a `CTCBiLSTM`, on any device.
        folder: made if need be; a model saved there before is replaced.
        extra: JSON values to keep beside the configuration, such as the data's name;
            `read_config(folder)["extra"]` gives them back.

    Raises:
        ValueError: a folder with other things in it, or `extra` that is not JSON.
        OSError: the disk is full or cannot be written.
    """
    kind = type(model).__name__
    one_of("The class of the model", kind, _CLASSES)
    config = {
        "format_version": FORMAT_VERSION,
        "model": kind,
        **model.to_dict(),
        "extra": dict(extra or {}),
    }
    try:
        text = json.dumps(config, indent=2, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"extra must hold JSON values only: {error}.") from None
    tensors = {name: x.detach().contiguous() for name, x in model.state_dict().items()}
    with replaced_folder(Path(folder), (CONFIG_FILE, WEIGHTS_FILE)) as fresh:
        (fresh / CONFIG_FILE).write_text(text + "\n", encoding="utf-8")
        try:
            save_file(tensors, fresh / WEIGHTS_FILE)
        except SafetensorError as error:
            raise OSError(f"The weights could not be written to {folder}: {error}.") from None


def load(folder: str | Path) -> Model:
    """The model that `save` wrote, on the CPU, in evaluation mode, in the dtype it was saved in.

    Raises:
        FileNotFoundError: no such folder, or one of its two files is absent.
        ValueError: a configuration that is not JSON, has a key too many or too few or another
            version; weights that are damaged or do not fit the configuration.
    """
    folder = Path(folder)
    config = read_config(folder)
    tensors = _read_weights(folder / WEIGHTS_FILE)
    try:
        # Building draws weights that are replaced at once: leave the caller's random state alone.
        with torch.random.fork_rng(devices=[]):
            shape = {key: value for key, value in config.items() if key not in _OWN_KEYS}
            model: Model = _CLASSES[config["model"]].from_dict(shape)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{folder / CONFIG_FILE} describes no model: {error}") from None
    _check_fit(folder / WEIGHTS_FILE, model.state_dict(), tensors)
    model.load_state_dict(tensors, assign=True)
    return model.eval()


def read_config(folder: str | Path) -> dict[str, Any]:
    """What `config.json` in a saved model's folder says.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not JSON, another version of the format, or an unknown kind of model.
    """
    path = Path(folder) / CONFIG_FILE
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; expected a folder that `save` wrote.")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}.") from None
    if not isinstance(config, dict) or config.get("format_version") != FORMAT_VERSION:
        version = config.get("format_version") if isinstance(config, dict) else None
        raise ValueError(
            f"{path} has format_version {version!r} and this version of linattn-models reads "
            f"{FORMAT_VERSION}."
        )
    one_of(f"{path}: the model", config.get("model"), _CLASSES)
    return config


def _read_weights(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; the folder holds no whole model.")
    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged or no safetensors file: {error}.") from None


def _check_fit(path: Path, expected: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> None:
    """Refuses tensors that are missing, unknown, or of another shape or kind of dtype."""
    missing = sorted(expected.keys() - given.keys())
    unknown = sorted(given.keys() - expected.keys())
    if missing:
        near = difflib.get_close_matches(missing[0], unknown, n=1)
        hint = f"; it has {near[0]!r}, which the model lacks: renamed?" if near else ""
        raise ValueError(
            f"{path} lacks {len(missing)} of the model's tensors, the first "
            f"{missing[0]!r}{hint or '.'}"
        )
    if unknown:
        raise ValueError(
            f"{path} has {len(unknown)} tensors that the configured model lacks, the first "
            f"{unknown[0]!r}; was it saved from another configuration?"
        )
    for name, tensor in expected.items():
        if given[name].shape != tensor.shape:
            raise ValueError(
                f"{path}: {name!r} has shape {tuple(given[name].shape)} and the configured model "
                f"expects {tuple(tensor.shape)}; was it saved from another configuration?"
            )
        if given[name].is_floating_point() != tensor.is_floating_point():
            raise ValueError(
                f"{path}: {name!r} is {given[name].dtype} where the model has {tensor.dtype}."
            )
