"""Imported first by scripts: Ctrl-C while they import torch, which takes seconds, is one line.

`run_script` takes over later.
"""

from __future__ import annotations

import os
import signal

signal.signal(signal.SIGINT, lambda *_: (os.write(2, b"interrupted\n"), os._exit(130)))
