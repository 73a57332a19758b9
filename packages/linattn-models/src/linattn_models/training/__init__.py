"""Training runs that are folders: resumable bit for bit, with one process or many.

`train` makes a run, `RunFolder` reads it. All of this needs the extra `[train]`.
"""

from __future__ import annotations

from linattn_models.basics.optional import require_packages

require_packages(
    "linattn_models.training", "accelerate", "filelock", "pydantic", "tensorboard", "tqdm"
)

from linattn_models.training.allocation import freed_memory_kept  # noqa: E402
from linattn_models.training.averaging import average_weights  # noqa: E402
from linattn_models.training.config import TrainingConfig, TrainingFlags, adamw_flags  # noqa: E402
from linattn_models.training.data import Order, TensorData, TrainingData  # noqa: E402
from linattn_models.training.processes import (  # noqa: E402
    gather_lists,
    is_main_process,
    main_process_first,
    sum_over_processes,
    take_share,
)
from linattn_models.training.run import train  # noqa: E402
from linattn_models.training.run_folder import RunFolder, write_json  # noqa: E402
from linattn_models.training.runtime import (  # noqa: E402
    deterministic_kernels,
    environment,
    make_accelerator,
)
from linattn_models.training.updater import Updater  # noqa: E402

__all__ = [
    "Order",
    "RunFolder",
    "TensorData",
    "TrainingConfig",
    "TrainingData",
    "TrainingFlags",
    "Updater",
    "adamw_flags",
    "average_weights",
    "deterministic_kernels",
    "environment",
    "freed_memory_kept",
    "gather_lists",
    "is_main_process",
    "main_process_first",
    "make_accelerator",
    "sum_over_processes",
    "take_share",
    "train",
    "write_json",
]
