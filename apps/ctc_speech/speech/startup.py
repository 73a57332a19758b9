"""Imported first by scripts: linattn_lab's preparations, or one sentence where it is missing."""

from __future__ import annotations

import sys
from pathlib import Path

try:
    import linattn_lab.startup
    import linattn_lab.threads  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "linattn_lab":
        raise
    script = Path(sys.argv[0])
    sys.exit(
        f"{script}: expected the package linattn_lab, got none installed; "
        f"{script.with_name('README.md')} says how to install it."
    )
