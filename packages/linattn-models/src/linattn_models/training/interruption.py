"""Ctrl-C and SIGTERM as a request, so that the step in hand is finished and kept."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any

_STDERR = 2
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """While entered, the first SIGINT or SIGTERM sets `requested`; a second interrupts at once.

    Outside the main thread, where Python allows no signal handler, signals are left alone.
    """

    def __init__(self) -> None:
        self.requested = False
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._previous.items():
            if handler is not None:  # set by other than Python, and not to be put back from there
                signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt(f"stopped at once by a second {signal.Signals(number).name}")
        self.requested = True
        with contextlib.suppress(OSError):  # not print, which may be what was interrupted
            os.write(_STDERR, b"\nstopping after this step; once more stops at once\n")
