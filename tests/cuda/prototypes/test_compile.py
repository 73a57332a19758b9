"""Every rung to machine code by NVRTC, with no GPU, for the architectures that it is meant for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from linattn_cuda import nvrtc
from linattn_cuda.prototypes import LADDER, Rung
from linattn_cuda.prototypes.plans import DTYPES
from tests.cuda.machine_code import dump

if nvrtc.find_missing_library():
    pytest.skip(str(nvrtc.find_missing_library()), allow_module_level=True)

ARCHITECTURES = ("sm_75", "sm_80", "sm_90", "sm_120")


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
    image = rung.compile(arch)

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
    assert rung.compile("sm_90", dtype=dtype, dim=16, value_dim=16)
    if dtype == torch.bfloat16:
        assert rung.compile("sm_90", dtype=dtype, dim=128, value_dim=128)
        assert rung.shared_bytes(128, 128, dtype) <= 227 << 10


def test_an_unknown_architecture_is_refused() -> None:
    with pytest.raises(RuntimeError, match="sm_1"):
        LADDER["chunked"].compile("sm_1")
