"""What the compiler made of the kernels: every architecture, tensor cores, registers."""

from __future__ import annotations

import os
import re

import pytest

from tests.cuda.machine_code import (
    ALONE,
    MOST_SPILLED,
    architectures,
    code,
    cuda_module,
    dump,
    kernels_of,
)


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
