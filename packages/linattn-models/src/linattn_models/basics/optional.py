"""Packages that only some modules need."""

from __future__ import annotations

import shlex
import sys
from importlib.util import find_spec

from linattn_core.errors import expected


def require_packages(module: str, *packages: str) -> None:
    """Raises ImportError in a module that needs packages which are not installed.

    Where `python -m` runs this module, the process ends with the sentence.

    Args:
        packages: as pip names them, such as "ray[serve]".
    """
    missing = [name for name in packages if find_spec(name.partition("[")[0]) is None]
    if not missing:
        return
    wanted = f"the packages {', '.join(packages)}"
    advice = f"`python -m pip install {shlex.join(missing)}` installs what is missing"
    message = expected(module, wanted, f"no {', '.join(missing)}", advice)
    if sys.argv[:1] == ["-m"] and module in sys.orig_argv:
        sys.exit(f"error: {message}")
    raise ImportError(message)
