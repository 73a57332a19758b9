"""Tests of linattn_triton alone; the contract suite covers what every backend promises."""

from __future__ import annotations

import pytest

pytest.importorskip("linattn_triton", reason="linattn-triton is not installed")
