"""Imported before torch by scripts that share a machine: idle threads of OpenMP soon sleep.

By default they spin so long that a training beside one busy process falls to a fraction of its
speed. With fewer turns it keeps more of its speed there, and is a little slower alone. Benchmarks
leave the default. What a person has set holds.
"""

from __future__ import annotations

import os

if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "5000")  # of GNU's OpenMP, which torch brings with it
