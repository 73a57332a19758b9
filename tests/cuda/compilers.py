"""What nvcc and NVRTC make of the same kernels; `python -m tests.cuda.compilers` prints a table.

It compares the architectures that the installed module was built for by nvcc. NVRTC needs minutes
for each.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import linattn_cuda._native as native
from linattn_cuda import compiling, nvrtc
from linattn_cuda.device import Code
from tests.cuda.emulated_build import driver_module
from tests.cuda.machine_code import Kernel, kernels_of

# The parts, A, and whether it is a pair, in the name of a product.
_SHAPE = re.compile(r"ProductShapeILi(\d+)ELi(\d+)E.*Lb([01])E")


def kernels_by_nvrtc(architecture: str) -> dict[str, Kernel]:
    """Every kernel, as NVRTC compiles it for an architecture such as "sm_90"."""
    found: dict[str, Kernel] = {}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "image.cubin")
        for kernel in driver_module().kernel_names():
            file.write_bytes(compiling.load_or_compile(kernel, architecture)[0])
            found |= kernels_of(file)
    return found


def kernels_by_nvcc(architecture: str) -> dict[str, Kernel]:
    """Every kernel of the installed module, by name; NVRTC gives the same names."""
    return kernels_of(str(native.__file__), "-arch", architecture)


def _row(architecture: str) -> str:
    nvcc, ours = kernels_by_nvcc(architecture), kernels_by_nvrtc(architecture)
    registers = max(kernel.registers / nvcc[name].registers for name, kernel in ours.items())
    products = all(kernel.products == nvcc[name].products for name, kernel in ours.items())
    spilled = (max(x.spilled for x in kernels.values()) for kernels in (nvcc, ours))
    alone = [
        f"{kernel.spilled} ({_named(name)})"
        for name, kernel in ours.items()
        if kernel.spilled and not nvcc[name].spilled
    ]
    cells = (
        f"{int(architecture.removeprefix('sm_')) / 10:.1f}",
        "yes" if products else "no",
        f"{registers:.2f}",
        *map(str, spilled),
        ", ".join(alone),
    )
    return f"| {' | '.join(cells)} |"


def _named(kernel: str) -> str:
    shape = _SHAPE.search(kernel)
    if shape is None:
        return kernel  # not a product
    parts, width, pair = shape.groups()
    of = "pair of " if pair == "1" else ""
    return f"{of}{parts} part{'s' * (parts != '1')}, {width} dims"


def main() -> None:
    """Prints the table, a row for each architecture as soon as it is known."""
    built = Code.read(native.built_with).machine
    if not built or nvrtc.find_missing_library() is not None:
        raise SystemExit(
            f"expected linattn-cuda built by nvcc, and NVRTC, got {native.built_with!r} and "
            f"{nvrtc.find_missing_library() or 'NVRTC'}; see packages/linattn-cuda/README.md"
        )
    print(f"{native.built_with.split(' for ')[0]}, NVRTC {nvrtc.version()}\n")
    print("| for | same products | registers | nvcc spills | NVRTC spills | NVRTC alone spills |")
    print("|---|---|---:|---:|---:|---|")
    for architecture in built:
        print(_row(f"sm_{architecture}"), flush=True)


if __name__ == "__main__":
    main()
