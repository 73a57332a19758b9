"""Every configuration compiles for GPUs that are not here, to tensor cores and little memory."""

from __future__ import annotations

import os
import re

import pytest

pytest.importorskip("triton", reason="triton is not installed")

from linattn_triton import causal
from linattn_triton.configurations import TABLE
from tests.triton.compiled import AMD, KERNELS, NVIDIA, SHARED, Build

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1", reason="kernels are interpreted, not compiled"
)
PRODUCTS = re.compile(r"mma\.sync|wgmma\.mma|tcgen05\.mma|v_mfma")
DTYPES = ("bf16", "fp16", "fp32")


def check(build: Build) -> None:
    compiled = build.compile()
    assert compiled.metadata.shared <= SHARED[build.target.arch], build
    assert PRODUCTS.search(compiled.asm.get("ptx") or compiled.asm["amdgcn"]), build


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_the_hot_kernel(dtype: str) -> None:
    check(Build(causal.forward, 64, dtype, NVIDIA[90]))


@pytest.mark.slow
@pytest.mark.parametrize("target", [*NVIDIA.values(), AMD], ids=lambda x: str(x.arch))
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", sorted({width for width, _ in TABLE}))
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda x: str(x.__name__))
def test_every_configuration(kernel: object, width: int, dtype: str, target: object) -> None:
    for with_all in (False, True):
        check(Build(kernel, width, dtype, target, with_all))
