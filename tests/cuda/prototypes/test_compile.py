"""Every rung to machine code, as CuPy compiles it, for the architectures that it is meant for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from linattn_cuda.prototypes import LADDER, Rung
from linattn_cuda.prototypes.ladder import DTYPES, KERNELS, Problem, pad_width
from tests.cuda.emulated_build import ROOT
from tests.cuda.machine_code import dump

nvrtc = pytest.importorskip("cupy", reason="CuPy is not installed").cuda.nvrtc

ARCHITECTURES = ("sm_75", "sm_80", "sm_90", "sm_120")
HALF = torch.bfloat16
# Of this checkout, whatever is installed.
FOLDERS = (ROOT / "kernels-cuda" / "include", KERNELS)


def compile_rung(rung: Rung, arch: str, dtype: torch.dtype = HALF, dim: int = 64) -> bytes:
    """Machine code of its kernels by CuPy's compiler, as `cupy.RawModule` asks for it on a GPU."""
    width = pad_width(dim)
    symbols = rung.symbols(Problem(1, 1, width, width, 64, dtype.itemsize), dtype)
    program = nvrtc.createProgram(rung.source.read_text("utf-8"), "kernels.cu", (), ())
    try:
        for symbol in symbols.values():
            nvrtc.addNameExpression(program, symbol)
        options = (f"-arch={arch}", "--std=c++17", *(f"-I{folder}" for folder in FOLDERS))
        nvrtc.compileProgram(program, (*options, "--device-as-default-execution-space"))
        # CuPy takes the last byte, a zero of the ELF file, for the end of a string.
        return nvrtc.getCUBIN(program) + b"\0"
    finally:
        nvrtc.destroyProgram(program)


def architectures(rung: Rung) -> list[str]:
    major, minor = rung.capability
    return [x for x in ARCHITECTURES if int(x[3:]) >= 10 * major + minor]


@pytest.mark.parametrize(
    ("rung", "arch"),
    [
        pytest.param(rung, arch, id=f"{rung.name}-{arch}")
        for rung in LADDER.values()
        for arch in architectures(rung)
    ],
)
def test_machine_code(rung: Rung, arch: str, tmp_path: Path) -> None:
    image = compile_rung(rung, arch)

    assert image.startswith(b"\x7fELF")
    for kernel in rung.kernels:
        assert kernel.encode() in image
    file = tmp_path / "image.cubin"
    file.write_bytes(image)
    listing = "".join(dump("-sass", file=file))
    on_tensor_cores = rung.name not in ("recurrent", "chunked")
    assert ("HMMA.16816.F32.BF16" in listing) == on_tensor_cores
    # Copies that pass by the registers.
    assert ("LDGSTS" in listing) == (rung.name in ("overlapped", "split"))
    assert "STL" not in listing, "registers are spilled"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rung", LADDER.values(), ids=list(LADDER))
def test_every_dtype_and_the_widest_head(rung: Rung, dtype: torch.dtype) -> None:
    assert compile_rung(rung, "sm_90", dtype, 16)
    if dtype == torch.bfloat16:
        assert compile_rung(rung, "sm_90", dtype, 128)
        widest = Problem(1, 128, 128, 128, 64, dtype.itemsize)
        assert max(launch.shared for launch in rung.plan(widest)) <= 227 << 10
