"""The backend of calls that do not name one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from linattn_core import registry
from linattn_core.checks import check_backend_name

#: What `backend="auto"` stands for: "auto", or the name given to the latest open `use_backend`.
current = "auto"

_lock = threading.Lock()
_open: list[list[str]] = []  # a list of one name is told from another with the same name


@contextmanager
def use_backend(name: str) -> Iterator[None]:
    """Within it, calls with `backend="auto"` take this backend, or raise its refusal.

        with linattn_core.use_backend("cpu"):
            out = model(x)

    As with torch's `sdpa_kernel`, the choice is the process's: threads share it, and the latest
    that is open counts. A call that names a backend keeps it. A backward pass takes the backend of
    its forward pass, wherever it runs; a forward pass that `torch.utils.checkpoint` repeats takes
    the choice of the place where it is repeated, so open `use_backend` around `backward()` too.

    Args:
        name: one of `backends()`, or "auto".

    Raises:
        ValueError: no backend of that name is live.
        TypeError: no name.
    """
    check_backend_name(name)
    if name != "auto":
        registry.named(name)
    own = [name]
    with _lock:
        _open.append(own)
        _choose()
    try:
        yield
    finally:
        with _lock:
            _open[:] = [other for other in _open if other is not own]
            _choose()


def _choose() -> None:
    global current
    current = _open[-1][0] if _open else "auto"
