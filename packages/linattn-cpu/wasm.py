"""Compiles liblinattn for browsers: python packages/linattn-cpu/wasm.py FILE.

It takes the compiler of the package `ziglang`, which brings the C++ library for WebAssembly.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

NATIVE = Path(__file__).parent / "native"
SOURCES = (
    *(f"library/{name}.cpp" for name in ("alone", "library", "model_file", "sequences")),
    "library/tensor_file.cpp", "instruction_sets.cpp", "memory.cpp", "packed_decoder.cpp",
    "kernels/decoder/decode.cpp",
)  # fmt: skip
OPTIONS = (
    "-target", "wasm32-wasi", "-mexec-model=reactor", "-std=gnu++17", "-O3",
    "-fno-math-errno", "-msimd128", "-fignore-exceptions", "-fno-rtti", "-DNDEBUG",
    "-DLINATTN_ISA=baseline", "-Wno-psabi",
)  # fmt: skip


def compile_library(file: Path) -> None:
    """Compiles the functions of linattn.h."""
    template = (NATIVE / "compiled_sets.hpp.in").read_text()
    declared = [
        line.partition("(")[0].split()[-1].lstrip("*")
        for line in (NATIVE / "library" / "linattn.h").read_text().splitlines()
        if line.startswith("LINATTN_API")
    ]
    exports = [f"-Wl,--export={name}" for name in ("malloc", "free", *declared)]
    with tempfile.TemporaryDirectory() as generated:
        sets = template.replace("@LINATTN_COMPILED_SETS@", "X(baseline)")
        Path(generated, "compiled_sets.hpp").write_text(sets)
        command = [
            sys.executable, "-m", "ziglang", "c++", *OPTIONS, f"-I{NATIVE}", f"-I{generated}",
            *(str(NATIVE / source) for source in SOURCES), *exports, "-Wl,--strip-all",
            "-o", str(file),
        ]  # fmt: skip
        subprocess.run(command, check=True)


if __name__ == "__main__":
    compile_library(Path(sys.argv[1]))
