"""The backend of calls that do not name one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from linattn_core import registry

#: What `backend="auto"` stands for: "auto", or the name given to `use_backend`.
current = "auto"


@contextmanager
def use_backend(name: str) -> Iterator[None]:
    """Within it, calls with `backend="auto"` take this backend, or raise its refusal.

        with linattn_core.use_backend("cpu"):
            out = model(x)

    As with torch's `sdpa_kernel`, the choice is the process's: threads share it. A backward pass
    takes the backend of its forward pass, wherever it runs; a call that names a backend keeps it.

    Args:
        name: one of `backends()`, or "auto".

    Raises:
        ValueError: no backend of that name is live.
    """
    global current
    if name != "auto":
        registry.named(name)
    before, current = current, name
    try:
        yield
    finally:
        current = before
