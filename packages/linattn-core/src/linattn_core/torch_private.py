"""What torch offers under private names alone, and tricks in the place of what it does not offer.

Each has a test in tests/core/test_torch_private.py that says what breaks without it; nothing else
in the package calls a name of torch that begins with an underscore.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
import torch.utils._pytree as pytree
from torch.autograd import forward_ad

R = TypeVar("R")


def register_namedtuple(kind: type[tuple[object, ...]], name: str) -> None:
    """Lets exported programs that take or return such a named tuple be saved and loaded.

    torch.export.save writes named tuples only under a name that it was told, and torch.load reads
    back only what it was told is safe.
    """
    pytree._register_namedtuple(kind, serialized_type_name=name)
    torch.serialization.add_safe_globals([kind])


def in_forward_mode() -> bool:
    """Whether a forward-mode derivative is being taken; asked in every call, so it has to be cheap.

    `forward_ad.unpack_dual` tells it of one tensor, and cannot be traced by torch.compile.
    """
    return forward_ad._current_level >= 0


def outside_every_mode(make: Callable[[], R]) -> R:
    """What `make` returns where no mode is on: for a value that outlives the caller's mode.

    Modes (inference, a default device, the fake tensors of torch.export, vmap) are a thread's own,
    and torch has no public call that leaves them all: a new thread begins without.
    """
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(make).result()
