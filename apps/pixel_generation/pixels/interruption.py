"""Ctrl-C while a script starts; imports nothing that takes long."""

from __future__ import annotations

import os
import signal


def end_quietly() -> None:
    """Makes Ctrl-C end the process with one line; `run_script` takes over later."""
    signal.signal(signal.SIGINT, lambda *_: (os.write(2, b"interrupted\n"), os._exit(130)))
