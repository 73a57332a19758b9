"""Imported first by scripts, before torch and tqdm.

Ctrl-C while torch is imported, which takes seconds, is one line; `run_script` takes over later.
A package that is not installed is one sentence, which names the README of the script's folder.
Bars of tqdm are drawn on a terminal only, unless a call says otherwise by `disable`: they would
fill a file.
"""

from __future__ import annotations

import os
import signal
import sys
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType


def _say_what_is_missing(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    sentence = _missing_package(error)
    if sentence is None or os.environ.get("LINATTN_DEBUG") == "1":
        sys.__excepthook__(kind, error, traceback)
    if sentence is not None:
        print(sentence, file=sys.stderr)


def _missing_package(error: BaseException) -> str | None:
    """What to install, or None if the error is about something else."""
    if not isinstance(error, ImportError):
        return None
    if not error.name:  # a package of ours that says which extra it needs
        return str(error)
    package = error.name.partition(".")[0]
    if find_spec(package) is not None:
        return None
    script = Path(sys.argv[0])
    return (
        f"{script}: expected the package {package}, got none installed; "
        f"{script.with_name('README.md')} says how to install it."
    )


sys.excepthook = _say_what_is_missing
signal.signal(signal.SIGINT, lambda *_: (os.write(2, b"interrupted\n"), os._exit(130)))
if not sys.stderr.isatty():
    os.environ.setdefault("TQDM_DISABLE", "1")
