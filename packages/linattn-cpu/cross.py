"""Compiles liblinattn for other machines, by the package `ziglang`, which brings their C libraries.

    python packages/linattn-cpu/cross.py wasm linattn.wasm      for browsers
    python packages/linattn-cpu/cross.py aarch64 linattn-run    the command, for Linux on ARM
    python packages/linattn-cpu/cross.py x86_64 linattn-run     for x86-64; x86_64_v3: with AVX2

They decode with one thread and need no other file. A file that is newer than the sources stays. One
that is interrupted leaves the older file as it was.
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
    "-std=gnu++17", "-O3", "-fno-math-errno", "-ffp-contract=fast", "-DNDEBUG",
    "-DLINATTN_ISA=baseline", "-Wno-psabi",
)  # fmt: skip
TARGETS = {
    "wasm": (
        "-target", "wasm32-wasi", "-mexec-model=reactor", "-msimd128", "-fignore-exceptions",
        "-fno-rtti",
    ),
    "aarch64": ("-target", "aarch64-linux-musl", "-static"),
    "x86_64": ("-target", "x86_64-linux-musl", "-static"),
    "x86_64_v3": ("-target", "x86_64-linux-musl", "-static", "-mcpu=x86_64_v3"),
}  # fmt: skip


def compile_for(target: str, file: Path) -> None:
    """Compiles the functions of linattn.h for browsers, or linattn-run for a processor."""
    sources = [Path(__file__), *NATIVE.rglob("*")]
    newest = max(path.stat().st_mtime for path in sources if path.is_file())
    if file.is_file() and file.stat().st_mtime > newest:
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    template = (NATIVE / "compiled_sets.hpp.in").read_text()
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        sets = template.replace("@LINATTN_COMPILED_SETS@", "X(baseline)")
        Path(folder, "compiled_sets.hpp").write_text(sets)
        parts = _exports() if target == "wasm" else [_command(target, Path(folder))]
        _zig(
            "c++", *TARGETS[target], *OPTIONS, f"-I{NATIVE}", f"-I{folder}",
            *(str(NATIVE / source) for source in SOURCES), *parts, "-Wl,--strip-all",
            "-o", str(Path(folder, file.name)),
        )  # fmt: skip
        Path(folder, file.name).replace(file)


def _exports() -> list[str]:
    """The functions that a page may call."""
    lines = (NATIVE / "library" / "linattn.h").read_text().splitlines()
    declared = [line for line in lines if line.startswith("LINATTN_API")]
    names = [line.partition("(")[0].split()[-1].lstrip("*") for line in declared]
    own = ("malloc", "free", "__stack_pointer")
    return [f"-Wl,--export={name}" for name in (*own, *names)]


def _command(target: str, folder: Path) -> str:
    """The object file of the command."""
    source, compiled = NATIVE / "library" / "run.c", str(folder / "run.o")
    _zig("cc", *TARGETS[target][:2], "-std=c11", "-O2", "-c", str(source), "-o", compiled)
    return compiled


def _zig(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "ziglang", *arguments], check=True)


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in TARGETS:
        sys.exit(__doc__)
    compile_for(sys.argv[1], Path(sys.argv[2]))
