"""What the compiler made of the kernels: every architecture, tensor cores, nothing spilled."""

from __future__ import annotations

import os
import re
from itertools import pairwise

import pytest

from tests.cuda.machine_code import (
    HALF,
    architectures,
    code,
    cuda_module,
    dump,
    exposed_loads,
    kernels_of,
    lines_of,
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
    """Every product, and no other kernel; those of half precision spill nothing."""
    for architecture in on_tensor_cores():
        kernels = kernels_of(str(cuda_module().__file__), "-arch", f"sm_{architecture}")
        products = {name for name in kernels if "product" in name}

        assert len(products) == 18, architecture
        assert {name for name, x in kernels.items() if x.products} == products, architecture
        half = {name: kernels[name].spilled for name in products if HALF.search(name)}
        assert half == dict.fromkeys(half, 0), architecture


def read_architecture() -> str:
    """The one whose instructions are read."""
    found = next((x for x in ("90", "80", "100") if x in architectures()), None)
    return found or pytest.skip(f"built for sm {', '.join(architectures())}")


def test_operands_are_loaded_before_they_are_needed() -> None:
    """Most loads from shared memory have eight instructions' time, and products follow closely."""
    instructions: dict[str, list[str]] = {}
    for name, line in lines_of("-sass", "-arch", f"sm_{read_architecture()}"):
        if "ProductShapeILi1E" in name and re.search(r"/\*[0-9a-f]{4,}\*/.*;", line):
            instructions.setdefault(name, []).append(line)

    for name, lines in instructions.items():
        soon, loads = exposed_loads(lines, within=7)
        assert soon <= loads / 2, f"{name}: {soon} of {loads} loads are waited for"
        products = [i for i, line in enumerate(lines) if " HMMA." in line]
        apart = sorted(b - a - 1 for a, b in pairwise(products))
        assert apart[len(apart) * 3 // 4] <= 2, f"{name}: {apart}"


def test_a_relay_reads_a_whole_state_before_it_writes_one() -> None:
    """Loads between two stores: 35 numbers a thread, where each waited for a store before."""
    architecture = read_architecture()
    loads = [0]
    for name, line in lines_of("-sass", "-arch", f"sm_{architecture}"):
        if "ProductShapeILi1ELi64ELi64E" not in name:
            continue
        if re.search(r"\bLDG?\.", line):
            loads[-1] += 1
        elif re.search(r"\bSTG?\.", line):
            loads.append(0)

    assert max(loads[1:]) >= 32
