from __future__ import annotations

from tests.training.conftest import unbroken

__all__ = ["unbroken"]
