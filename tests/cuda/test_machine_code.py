"""What the compiler made of the kernels: every architecture, tensor cores, registers."""

from __future__ import annotations

import os
import re
from itertools import pairwise

import pytest

from tests.cuda.machine_code import (
    ALONE,
    MOST_SPILLED,
    architectures,
    code,
    cuda_module,
    dump,
    exposed_loads,
    instructions_of,
    kernels_of,
)

# How many loads from shared memory a tensor core waits for in each product, as this nvcc compiles
# it for this architecture. By the arguments of its shape: parts, A, E, C, whether it is a pair.
COUNTED = "nvcc 13.0", "90"
EXPOSED = {
    (1, 32, 32, 64, 0): 12,
    (1, 32, 32, 64, 1): 20,
    (1, 64, 64, 32, 0): 25,
    (1, 64, 64, 32, 1): 47,
    (1, 128, 64, 32, 0): 55,
    (1, 256, 32, 32, 0): 106,
    (2, 32, 32, 32, 0): 16,
    (2, 32, 32, 32, 1): 15,
    (2, 64, 64, 16, 0): 16,
    (2, 64, 64, 16, 1): 48,
    (2, 128, 64, 16, 0): 59,
    (2, 256, 64, 16, 0): 60,
    (3, 32, 32, 32, 0): 8,
    (3, 32, 32, 32, 1): 7,
    (3, 64, 64, 16, 0): 19,
    (3, 64, 64, 16, 1): 15,
    (3, 128, 64, 16, 0): 27,
    (3, 256, 32, 16, 0): 27,
}


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    cuda_module()


def on_tensor_cores() -> list[str]:
    """All but 7.5, which has none for bfloat16 and calls a function in their place."""
    return [x for x in architectures() if x != "75"] or pytest.skip("built for sm 75 alone")


def test_every_architecture_is_in_the_module() -> None:
    machine, ptx = (
        {x for line in dump(option) for x in re.findall(r"sm_(\d+[af]?)", line)}
        for option in ("-lelf", "-lptx")
    )

    assert (machine, ptx) == (set(code().machine), set(code().ptx))
    if "CUDAARCHS" not in os.environ:
        assert (machine, ptx) == ({"75", "80", "90", "100", "120"}, {"120"})


def test_products_run_on_tensor_cores() -> None:
    """Every product, and no other kernel."""
    for architecture in on_tensor_cores():
        kernels = kernels_of(str(cuda_module().__file__), "-arch", f"sm_{architecture}")
        products = {name for name in kernels if "product" in name}

        assert len(products) == 18, architecture
        assert {name for name, x in kernels.items() if x.products} == products, architecture


def test_products_leave_room_for_others() -> None:
    """Sixteen warps a multiprocessor hide each other's waits; that is worth some spilled registers.

    Of the widest kernels in several parts, shared memory holds one block alone.
    """
    for architecture in on_tensor_cores():
        kernels = kernels_of(str(cuda_module().__file__), "-arch", f"sm_{architecture}")
        products = {name: x for name, x in kernels.items() if "product" in name}
        limits = {name: 255 if ALONE.search(name) else 128 for name in products}
        assert all(x.registers <= limits[name] for name, x in products.items()), architecture
        spilled = {name: x.spilled for name, x in products.items() if x.spilled > MOST_SPILLED}
        assert not spilled, architecture


@pytest.fixture(scope="module")
def products() -> dict[tuple[int, ...], list[str]]:
    """The instructions of each product, by the arguments of its shape."""
    compiler, architecture = COUNTED
    if compiler not in cuda_module().built_with or architecture not in architectures():
        pytest.skip(f"instructions are counted as {compiler} compiles for sm {architecture}")
    kernels = instructions_of(str(cuda_module().__file__), "-arch", f"sm_{architecture}")
    return {
        tuple(map(int, re.findall(r"L[ib](\d+)E", name))): instructions
        for name, instructions in kernels.items()
        if "product" in name
    }


def test_operands_are_loaded_before_they_are_needed(
    products: dict[tuple[int, ...], list[str]],
) -> None:
    """A load that a product needs within seven instructions is waited for: no more than listed."""
    exposed = {shape: exposed_loads(lines, within=7) for shape, lines in products.items()}

    assert exposed.keys() == EXPOSED.keys()
    assert {s: (n, EXPOSED[s]) for s, n in exposed.items() if n > EXPOSED[s]} == {}


def test_products_follow_one_another(products: dict[tuple[int, ...], list[str]]) -> None:
    """Three quarters of them have at most three other instructions before the next."""
    for shape, lines in products.items():
        places = [i for i, line in enumerate(lines) if "HMMA." in line]
        between = sorted(b - a - 1 for a, b in pairwise(places))
        assert between[len(between) * 3 // 4] <= 3, (shape, between)


def test_global_memory_is_read_before_products(products: dict[tuple[int, ...], list[str]]) -> None:
    """Rows arrive by asynchronous copies, and so do the tensors of a derivative up to 64 dims.

    Wider kernels load the latter between products: eight numbers, of 16 or of 32 bits, or two
    vectors.
    """
    for shape, lines in products.items():
        places = [i for i, line in enumerate(lines) if "HMMA." in line]
        loads = [i for i, line in enumerate(lines) if "LDG." in line]
        between = sum(places[0] < i < places[-1] for i in loads)
        assert between == (0 if shape[1] <= 64 else 18), shape


def test_features_take_no_branch(products: dict[tuple[int, ...], list[str]]) -> None:
    """Eight exponentials of elu follow one another, and so do eight of its derivative."""
    for shape, lines in products.items():
        exponentials = [i for i, line in enumerate(lines) if "MUFU.EX2" in line]
        branches = {i for i, line in enumerate(lines) if re.search(r"\b(BRA|BSSY)\b", line)}
        runs = 1 + sum(not branches.isdisjoint(range(*x)) for x in pairwise(exponentials))
        assert len(exponentials) == 8 * runs, shape
