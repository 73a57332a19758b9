"""Imported first by scripts, before torch and tqdm.

Ctrl-C while torch is imported, which takes seconds, is one line; `run_script` takes over later.
Bars of tqdm are drawn on a terminal only, unless a call says otherwise by `disable`: they would
fill a file.
"""

from __future__ import annotations

import os
import signal
import sys

signal.signal(signal.SIGINT, lambda *_: (os.write(2, b"interrupted\n"), os._exit(130)))
if not sys.stderr.isatty():
    os.environ.setdefault("TQDM_DISABLE", "1")
