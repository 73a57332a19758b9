"""Every configuration compiles for GPUs that are not here, to tensor cores and little memory."""

from __future__ import annotations

import os
import re
import tempfile

import pytest

pytest.importorskip("triton", reason="triton is not installed")

from linattn_triton import causal
from linattn_triton.configurations import TABLE
from tests.triton.compiled import AMD, KERNELS, NVIDIA, SHARED, WITHOUT_PRODUCTS, Build

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1", reason="kernels are interpreted, not compiled"
)
PRODUCTS = re.compile(r"mma\.sync|wgmma\.mma|tcgen05\.mma|v_mfma")
# The assembler of triton 3.6 and 3.7 compiles these wrongly.
LEFT_IN_REGISTERS = re.compile(r"wgmma\.mma_async\S*\s*\{[^}]*\},\s*\{")
DTYPES = ("bf16", "fp16", "fp32")
# The most bytes of a thread in local memory, by dtype and width. Fewer columns of a program would
# leave more registers, but all programs of a head read its rows. Rows of 256, and the products of
# float32 in six parts, need more than there are in any case.
MOST_LOCAL = {
    "bf16": {32: 0, 64: 320, 128: 320, 256: 640},
    "fp16": {32: 16, 64: 320, 128: 320, 256: 320},
    "fp32": {32: 160, 64: 320, 128: 720, 256: 1_040},
}


def check(build: Build) -> None:
    compiled = build.compile()
    assert compiled.metadata.shared <= SHARED[build.target.arch], build
    code = compiled.asm.get("ptx") or compiled.asm["amdgcn"]
    assert bool(PRODUCTS.search(code)) == (build.kernel in KERNELS), build
    assert not LEFT_IN_REGISTERS.search(code), build
    if build.target.backend == "cuda":
        assert local_bytes(compiled.asm["cubin"]) <= MOST_LOCAL[build.dtype][build.width], build


def local_bytes(cubin: bytes) -> int:
    """Bytes of a thread in local memory, of the one kernel in a file of machine code."""
    machine_code = pytest.importorskip("tests.cuda.machine_code")
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        (kernel,) = machine_code.kernels_of(file.name).values()
    return int(kernel.spilled)


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


# Every kernel with products, at every width, for every GPU. The dtype, and whether all arguments
# are there, take turns: every two values of these five meet, and so do every kernel, width and
# dtype. The whole product is six times as much to compile. Then those without products.
BUILDS = [
    Build(kernel, width, DTYPES[(k + w + t) % 3], target, with_all=(k + t) % 2 == 0)
    for k, kernel in enumerate(KERNELS)
    for w, width in enumerate(sorted({width for width, _ in TABLE}))
    for t, target in enumerate((*NVIDIA.values(), AMD))
]


BUILDS += [
    Build(kernel, 64, dtype, target, with_all=with_all)
    for kernel in WITHOUT_PRODUCTS
    for target in (*NVIDIA.values(), AMD)
    for dtype, with_all in (("bf16", False), ("fp32", True))
]


@pytest.mark.slow
@pytest.mark.parametrize("build", BUILDS, ids=name)
def test_every_configuration(build: Build) -> None:
    check(build)
