"""Edits of saved models, as other programs and hands make them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file


def change_config(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Writes the configuration anew after `change`."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))


def change_weights(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Writes the weights anew after `change`, and removes the digest of those that were saved."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)
    change_config(folder, lambda config: config.pop("sha256"))
