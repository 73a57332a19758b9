"""Where liblinattn is, for compilers: python -m linattn_cpu.library --cflags --libs."""

from __future__ import annotations

import argparse
from pathlib import Path

from linattn_cpu import _native

HOME = Path(_native.__file__).parent  # in an editable installation, not where this file is
FLAGS = {
    "cflags": f"-I{HOME / 'include'}",
    "libs": f"-L{HOME / 'lib'} -llinattn -Wl,-rpath,{HOME / 'lib'}",
    "cmake": str(HOME / "lib" / "cmake"),
    "pkgconfig": str(HOME / "lib" / "pkgconfig"),
    "run": str(HOME / "bin" / "linattn-run"),
}
HELP = {
    "cflags": "where the header linattn.h is",
    "libs": "where the library is",
    "cmake": "the folder for CMAKE_PREFIX_PATH and find_package(linattn)",
    "pkgconfig": "the folder for PKG_CONFIG_PATH and pkg-config linattn",
    "run": "the path of the command linattn-run",
}


def main() -> None:
    """Prints the flags that the arguments ask for, in one line."""
    parser = argparse.ArgumentParser("python -m linattn_cpu.library", description=__doc__)
    for name, text in HELP.items():
        parser.add_argument(f"--{name}", action="store_true", help=text)
    asked = vars(parser.parse_args())
    if not any(asked.values()):
        parser.error(f"expected at least one of {', '.join(f'--{name}' for name in FLAGS)}.")
    print(" ".join(FLAGS[name] for name in FLAGS if asked[name]))


if __name__ == "__main__":
    main()
