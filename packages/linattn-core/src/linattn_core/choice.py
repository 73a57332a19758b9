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
_open: list[list[str]] = []  # one-element lists, because `is` must tell equal names apart


@contextmanager
def use_backend(name: str) -> Iterator[None]:
    """Inside the `with` block, calls with `backend="auto"` use this backend or raise its refusal.

        with linattn_core.use_backend("cpu"):
            out = model(x)

    As with torch's `sdpa_kernel`, the choice holds for the whole process: threads share it, and the
    latest open block decides. A call that names a backend is not affected. A backward pass uses the
    backend of its forward pass, wherever it runs. `torch.utils.checkpoint` repeats the forward pass
    inside `backward()`, with the choice that is open there: wrap `backward()` in `use_backend` too.

    Args:
        name: one of `backends()`, or "auto".

    Raises:
        ValueError: no backend of that name is live.
        TypeError: `name` is not a str.
    """
    check_backend_name(name)
    if name != "auto":
        registry.find_backend(name)
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
