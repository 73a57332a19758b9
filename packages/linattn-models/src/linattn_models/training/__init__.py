"""Training runs that are folders: resumable bit for bit, on one process or many.

`train` makes a run, `RunFolder` reads it, `run_script` turns a `main` into a command,
`require_at_least` checks its flags, `markdown_table` sets its numbers. All of it needs the extra
`[train]`.
"""

from __future__ import annotations

from importlib.util import find_spec

_missing = [name for name in ("accelerate", "tensorboard", "tqdm") if find_spec(name) is None]
if _missing:
    raise ImportError(
        f"linattn_models.training needs {', '.join(_missing)}, which the extra [train] brings: "
        "pip install linattn-models[train]"
    )

from linattn_models.training.config import TrainingConfig  # noqa: E402
from linattn_models.training.data import TensorData, TrainingData  # noqa: E402
from linattn_models.training.loop import train  # noqa: E402
from linattn_models.training.run_folder import RunFolder  # noqa: E402
from linattn_models.training.script import require_at_least, run_script  # noqa: E402
from linattn_models.training.tables import figure, markdown_table  # noqa: E402

__all__ = [
    "RunFolder",
    "TensorData",
    "TrainingConfig",
    "TrainingData",
    "figure",
    "markdown_table",
    "require_at_least",
    "run_script",
    "train",
]
