"""linattn in Hugging Face's transformers.

register                     attn_implementation="linattn" in models that dispatch by name

All of it needs the extra `[transformers]`.
"""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("transformers") is None:
    raise ImportError(
        "linattn_models.huggingface needs transformers, which the extra [transformers] brings: "
        "pip install linattn-models[transformers]"
    )

from linattn_models.huggingface.version import check_version

check_version()

from linattn_models.huggingface.interface import register  # noqa: E402

__all__ = ["register"]
