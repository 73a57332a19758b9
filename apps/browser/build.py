"""Compiles liblinattn for browsers and lays the page beside it: python apps/browser/build.py.

It takes the compiler of the package `ziglang`, and the models of the other applications that are
there (or those that `--digits` and `--text` name).
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from linattn_lab.script import parse_flags, run_script
from linattn_models import export_decoder, load

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
NATIVE = ROOT / "packages" / "linattn-cpu" / "native"
SOURCES = (
    *(f"library/{name}.cpp" for name in ("alone", "library", "model_file", "sequences")),
    "library/tensor_file.cpp", "instruction_sets.cpp", "memory.cpp", "packed_decoder.cpp",
    "kernels/decoder/decode.cpp",
)  # fmt: skip
PAGE = ("index.html", "page.css", "page.js", "linattn.mjs", "offline.js")
OPTIONS = (
    "-target", "wasm32-wasi", "-mexec-model=reactor", "-std=gnu++17", "-O3",
    "-fno-math-errno", "-msimd128", "-fignore-exceptions", "-fno-rtti", "-DNDEBUG",
    "-DLINATTN_ISA=baseline", "-Wno-psabi",
)  # fmt: skip
EXPORTED = ("malloc", "free")


@dataclass(frozen=True)
class Flags:
    """Where from and where to.

    Args:
        out: the folder of the page.
        digits: a saved model of 28x28 pixels.
        text: a saved model of bytes or characters.
    """

    out: Path = ROOT / "build" / "web"
    digits: Path = ROOT / "apps" / "pixel_generation" / "pretrained"
    text: Path = ROOT / "apps" / "text_generation" / "pretrained"


def main(flags: Flags) -> None:
    """Writes the page, the library and the models into one folder."""
    flags.out.mkdir(parents=True, exist_ok=True)
    print("compiling liblinattn for WebAssembly, about a minute", flush=True)
    compile_library(flags.out / "linattn.wasm")
    for name in PAGE:
        shutil.copy(HERE / name, flags.out / name)
    for name in ("digits", "text"):
        export_decoder(load(getattr(flags, name)), flags.out / f"{name}.linattn", "int8")
    print(f"written: {flags.out}; serve it by: python -m http.server -d {flags.out}")


def compile_library(file: Path) -> None:
    """Compiles the functions of linattn.h."""
    generated = file.parent / "generated"
    generated.mkdir(exist_ok=True)
    sets = (
        (NATIVE / "compiled_sets.hpp.in")
        .read_text()
        .replace("@LINATTN_COMPILED_SETS@", "X(baseline)")
    )
    (generated / "compiled_sets.hpp").write_text(sets)
    header = (NATIVE / "library" / "linattn.h").read_text()
    exports = [f"-Wl,--export={name}" for name in (*EXPORTED, *_declared(header))]
    command = [
        sys.executable, "-m", "ziglang", "c++", *OPTIONS, f"-I{NATIVE}", f"-I{generated}",
        *(str(NATIVE / source) for source in SOURCES), *exports, "-Wl,--strip-all", "-o", str(file),
    ]  # fmt: skip
    subprocess.run(command, check=True)
    shutil.rmtree(generated)


def _declared(header: str) -> list[str]:
    """The functions that the header declares."""
    lines = [line for line in header.splitlines() if line.startswith("LINATTN_API")]
    return [line.partition("(")[0].split()[-1].lstrip("*") for line in lines]


if __name__ == "__main__":
    run_script(lambda: main(parse_flags(Flags, description=__doc__)))
