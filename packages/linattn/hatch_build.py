"""What linattn requires: the packages beside it in a checkout, or their releases."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

# Without what has to be compiled: an extra adds packages, and no extra could leave one out.
REQUIRED = ("linattn-core", "linattn-models")
EXTRAS = {
    "cpu": ("linattn-cpu",),
    "cuda": ("linattn-cuda", "linattn-triton"),
    "triton": ("linattn-triton",),
    "serving": ("linattn-models[serving]",),
    "ray": ("linattn-models[ray]",),
    "train": ("linattn-models[train]",),
    "tokenizers": ("linattn-models[tokenizers]",),
    "transformers": ("linattn-models[transformers]",),
}


class Requirements(MetadataHookInterface):
    """Writes the requirements; LINATTN_RELEASE=1 asks for those of a release in a checkout, too."""

    def update(self, metadata: dict[str, Any]) -> None:
        version = metadata["version"]
        metadata["dependencies"] = [self.require(name, version) for name in REQUIRED]
        metadata["optional-dependencies"] = {
            extra: [self.require(name, version) for name in names]
            for extra, names in EXTRAS.items()
        }

    def require(self, requirement: str, version: str) -> str:
        """Returns the requirement with the folder of its package, or with this version."""
        name = requirement.partition("[")[0]
        folder = Path(self.root).parent / name
        if folder.is_dir() and not os.environ.get("LINATTN_RELEASE"):
            # The dot keeps pip from caching. It takes a link that ends in NAME-WORD for a version
            # of NAME, and would install an old wheel of this folder after its sources changed.
            return f"{requirement} @ {folder.as_uri()}/."
        return f"{requirement}=={version}"
