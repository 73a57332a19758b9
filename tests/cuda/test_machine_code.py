"""What the compiler made of the kernels: every architecture, tensor cores, registers."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from tests.cuda.machine_code import (
    ALONE,
    LEAN,
    MOST_SPILLED,
    architectures,
    code,
    cuda_module,
    dump,
    instructions_of,
    kernels_of,
    turn_of_loop,
)

# Instructions are read as this nvcc schedules them for this architecture.
READ = "nvcc 13.0", "90"


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
    if len(machine) > 1:  # not built for one machine
        assert (machine, ptx) == ({"75", "80", "90", "100", "120"}, {"120"})


def test_products_run_on_tensor_cores_and_leave_room_for_others() -> None:
    """Every product, and no other kernel.

    Sixteen warps a multiprocessor hide each other's waits; that is worth some spilled registers. Of
    the widest kernels in several parts, shared memory holds one block alone, and of the lean ones
    one to three.
    """
    for architecture in on_tensor_cores():
        kernels = kernels_of(str(cuda_module().__file__), "-arch", f"sm_{architecture}")
        products = {name: x for name, x in kernels.items() if "product" in name}
        assert len(products) == 18 + 30, architecture
        assert {name for name, x in kernels.items() if x.products} == set(products), architecture
        roomy = {name for name in products if ALONE.search(name) or LEAN.search(name)}
        most = {name: 255 if name in roomy else 128 for name in products}
        assert all(x.registers <= most[name] for name, x in products.items()), architecture
        spilled = {name: x.spilled for name, x in products.items() if x.spilled > MOST_SPILLED}
        assert not spilled, architecture


@pytest.fixture(scope="module")
def instructions() -> dict[str, list[str]]:
    """Those of each product."""
    compiler, architecture = READ
    if compiler not in cuda_module().built_with or architecture not in architectures():
        pytest.skip(f"instructions are read as {compiler} compiles for sm {architecture}")
    kernels = instructions_of(str(cuda_module().__file__), "-arch", f"sm_{architecture}")
    return {name: lines for name, lines in kernels.items() if "product" in name}


@pytest.fixture(scope="module")
def products(instructions: dict[str, list[str]]) -> dict[tuple[int, ...], list[str]]:
    """The instructions of each generic product, by the arguments of its shape."""
    return {
        tuple(map(int, re.findall(r"L[ib](\d+)E", name))): lines
        for name, lines in instructions.items()
        if not LEAN.search(name)
    }


@pytest.mark.parametrize(("width", "most"), [(64, 950), (128, 1350)])
def test_lean_products_issue_few_instructions(
    width: int, most: int, instructions: dict[str, list[str]]
) -> None:
    """Of a warp for 64 positions, whose rows see all of these."""
    shapes = re.compile(f"LeanShapeILi{width}E.*WalkE[012]E")
    turns = [turn_of_loop(x) for name, x in instructions.items() if shapes.search(name)]
    assert len(turns) == 9
    assert max(turns) <= most


# Those of queries, the pair, which has two products, sums over queries, and the first with these.
@pytest.mark.parametrize(("walk", "most"), [(3, 1050), (4, 2 * 700), (5, 450), (6, 1350)])
def test_lean_gradients_issue_few_instructions(
    walk: int, most: int, instructions: dict[str, list[str]]
) -> None:
    turns = [turn_of_loop(x) for name, x in instructions.items() if f"WalkE{walk}E" in name]
    assert len(turns) == 3
    assert max(turns) <= most


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
