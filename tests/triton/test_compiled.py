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


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_a_mask_leaves_the_order_of_sums(dtype: str) -> None:
    """A mask that lets every key through changes no bit, so its products must be the same ones."""
    plain, masked = (
        re.findall(r"kWidth = \d", build.compile().asm["ttgir"])
        for build in (
            Build(causal.forward, 16, dtype, NVIDIA[90]),
            Build(causal.forward, 16, dtype, NVIDIA[90], with_mask=True),
        )
    )
    assert plain and set(plain) == set(masked)


def test_operands_of_tf32_are_rounded() -> None:
    """Tensor cores cut the last 13 bits off, so half of the last that stays is added before."""
    assert "-8192" in Build(causal.forward, 16, "fp16", NVIDIA[90]).compile().asm["ptx"]


def name(build: Build) -> str:
    return f"{build.kernel.__name__}-{build.width}-{build.dtype}-{build.target.arch}"


# Every kernel, at every width, for every GPU. The dtype, and whether all arguments are there, take
# turns: every two values of these five meet, and so do every kernel, width and dtype. The whole
# product is six times as much to compile.
BUILDS = [
    Build(kernel, width, DTYPES[(k + w + t) % 3], target, with_all=(k + t) % 2 == 0)
    for k, kernel in enumerate(KERNELS)
    for w, width in enumerate(sorted({width for width, _ in TABLE}))
    for t, target in enumerate((*NVIDIA.values(), AMD))
]


@pytest.mark.slow
@pytest.mark.parametrize("build", BUILDS, ids=name)
def test_every_configuration(build: Build) -> None:
    check(build)
