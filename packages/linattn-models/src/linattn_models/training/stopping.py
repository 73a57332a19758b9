"""Ctrl-C and SIGTERM ask a run to stop after its current step."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from types import FrameType
from typing import Any

_STDERR = 2
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """Inside the `with` block, the first SIGINT or SIGTERM sets `requested`; a second interrupts.

    Outside the main thread Python allows no signal handlers, and this does nothing.
    """

    def __init__(self) -> None:
        self.requested = False
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            if handler is not None:  # installed from C, which Python cannot put back
                signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt(f"stopped at once by a second {signal.Signals(number).name}")
        self.requested = True
        with contextlib.suppress(OSError):  # not print, which may be what was interrupted
            os.write(_STDERR, b"\nstopping after this step; once more stops at once\n")
