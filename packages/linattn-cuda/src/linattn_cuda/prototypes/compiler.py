"""From a rung's source to machine code, by NVRTC; needs no GPU."""

from __future__ import annotations

import functools
import importlib
from pathlib import Path
from typing import Any

from linattn_cuda import nvrtc
from linattn_cuda.compiling import headers

KERNELS = Path(__file__).parent / "kernels"


def cupy_cuda() -> Any:
    """The module `cupy.cuda`, loaded where it is first needed: CuPy is an extra.

    Raises:
        ModuleNotFoundError: without CuPy, with what to install.
    """
    try:
        return importlib.import_module("cupy.cuda")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "CuPy launches the prototypes and is not installed; "
            "install linattn-cuda with its extra [cupy]."
        ) from error


@functools.cache
def compiled(
    source: str, kernels: tuple[str, ...], dtype: str, dim: int, value_dim: int, arch: str
) -> nvrtc.Image:
    """The kernels of `kernels/<source>.cu` for one dtype, pair of widths and architecture.

    Raises:
        RuntimeError: NVRTC is missing, or did not compile it; the message holds its log.
    """
    path = KERNELS / f"{source}.cu"
    arguments = f"<linattn::Dtype::{dtype}, {dim}, {value_dim}>"
    names = {f"linattn::prototypes::{kernel}{arguments}": kernel for kernel in kernels}
    try:
        image = nvrtc.compiled(path.read_text("utf-8"), [*names], arch, (headers(), KERNELS))
    except RuntimeError as error:
        raise RuntimeError(f"NVRTC did not compile {path} for {arch}: {error}") from error
    return nvrtc.Image(image.code, {names[x]: symbol for x, symbol in image.symbols.items()})
