"""What makes two runs the same run: the part of `config.json` that a resume may not change."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from linattn_models.training.config import FREE_ON_RESUME, TrainingConfig

DESCRIBED = ("app", "preset", "dataset", "attention")
_OWN = ("model", "training", "examples")
_FREE = frozenset(f"training.{name}" for name in FREE_ON_RESUME)


def run_config(
    describe: Mapping[str, object],
    model_config: Mapping[str, object],
    config: TrainingConfig,
    examples: int,
) -> dict[str, Any]:
    """The content of `config.json`.

    Raises:
        ValueError: if `describe` misses one of `DESCRIBED` or takes a name of ours.
        TypeError: if a value is not JSON.
    """
    missing = [name for name in DESCRIBED if name not in describe]
    if missing:
        raise ValueError(
            f"describe must name {', '.join(DESCRIBED)}; {', '.join(missing)} is missing"
        )
    taken = [name for name in _OWN if name in describe]
    if taken:
        raise ValueError(f"describe may not name {taken[0]!r}: config.json holds it already")
    content = {
        **describe,
        "model": dict(model_config),
        "training": config.to_dict(),
        "examples": examples,
    }
    # Through JSON and back: a tuple and the list it is read back as must compare equal.
    return dict(json.loads(json.dumps(content)))


def fingerprint(config: Mapping[str, Any]) -> str:
    """A digest of what a resume may not change in a `config.json`."""
    content = json.dumps(_fixed(config), sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def require_same_run(before: Mapping[str, Any], now: Mapping[str, Any], folder: Path) -> None:
    """Refuses to resume the run that was begun as `before` when it is described as `now`.

    Raises:
        ValueError: naming every field that differs, with both values.
    """
    old, new = _fixed(before), _fixed(now)
    names = sorted(
        name for name in old.keys() | new.keys() if _shown(old, name) != _shown(new, name)
    )
    if names:
        listed = "; ".join(f"{n} was {_shown(old, n)} and is now {_shown(new, n)}" for n in names)
        raise ValueError(
            f"the run in {folder} cannot be resumed with another configuration ({listed}): resume "
            "with the same values, or start a new run in another folder"
        )


def _fixed(config: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in _flatten(config, "").items() if name not in _FREE}


def _flatten(value: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, item in value.items():
        if isinstance(item, Mapping):
            flat.update(_flatten(item, f"{prefix}{name}."))
        else:
            flat[f"{prefix}{name}"] = item
    return flat


def _shown(flat: Mapping[str, Any], name: str) -> str:
    return json.dumps(flat[name]) if name in flat else "absent"
