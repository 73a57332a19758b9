"""liblinattn by ctypes, as a program in another language calls it."""

from __future__ import annotations

import ctypes
import importlib.util
import subprocess
import sys
from collections.abc import Sequence
from ctypes import POINTER, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_void_p
from pathlib import Path

import pytest
import torch
from torch import Tensor

import linattn_cpu

CROSS = Path(__file__).parents[2] / "packages" / "linattn-cpu" / "cross.py"
FILE = Path(linattn_cpu.__file__).parent / "lib" / "liblinattn.so"


def compile_for(target: str, file: Path) -> None:
    """Compiles for browsers ("wasm") or another processor; skips where there is no compiler."""
    if importlib.util.find_spec("ziglang") is None:
        pytest.skip("ziglang is not installed: run nox -s web")
    subprocess.run([sys.executable, CROSS, target, file], check=True)


class Sampling(ctypes.Structure):
    """`linattn_sampling`."""

    _fields_ = [
        ("temperature", c_double), ("top_p", c_double), ("min_p", c_double),
        ("repetition_penalty", c_double), ("top_k", c_int64), ("seed", c_int64),
        ("sample", c_int64),
    ]  # fmt: skip


SIGNATURES: dict[str, tuple[object, list[object]]] = {
    "linattn_abi": (c_int, []),
    "linattn_error": (c_char_p, []),
    "linattn_defaults": (Sampling, []),
    "linattn_open": (c_void_p, [c_char_p, c_int]),
    "linattn_open_bytes": (c_void_p, [c_char_p, c_int64, c_int]),
    "linattn_close": (None, [c_void_p]),
    "linattn_describe": (c_int, [c_void_p, POINTER(c_int64)]),
    "linattn_metadata": (c_char_p, [c_void_p, c_char_p]),
    "linattn_state_new": (c_void_p, [c_void_p, c_int64]),
    "linattn_state_copy": (c_void_p, [c_void_p]),
    "linattn_state_free": (None, [c_void_p]),
    "linattn_state_rows": (c_int64, [c_void_p]),
    "linattn_state_save": (c_int64, [c_void_p, c_char_p, c_int64]),
    "linattn_state_load": (c_void_p, [c_void_p, c_char_p, c_int64]),
    "linattn_read": (c_int, [c_void_p, POINTER(c_int32), c_int64]),
    "linattn_read_vectors": (c_int, [c_void_p, POINTER(c_float), c_int64, POINTER(c_float)]),
    "linattn_parameters": (POINTER(c_float), [c_void_p]),
    "linattn_sample": (c_int, [c_void_p, POINTER(Sampling), POINTER(c_int32)]),
    "linattn_generate": (
        c_int,
        [c_void_p, POINTER(c_int32), c_int64, POINTER(Sampling), c_int64, POINTER(c_int32), c_int64,
         POINTER(c_int32), POINTER(c_int64)],
    ),
    "linattn_encode": (c_int64, [c_void_p, c_char_p, c_int64, POINTER(c_int32), c_int64]),
    "linattn_decode": (c_void_p, [c_void_p, c_int32, POINTER(c_int64)]),
}  # fmt: skip


def load_library() -> ctypes.CDLL:
    """The library beside the package, with its signatures; skips where it was not built."""
    if not FILE.is_file():
        pytest.skip(f"liblinattn is not installed: no {FILE.name} beside linattn_cpu")
    library = ctypes.CDLL(str(FILE))
    for name, (result, arguments) in SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class Failed(Exception):
    """The sentence of `linattn_error`."""


class Model:
    """A model of the library, and one state of it at a time."""

    def __init__(self, source: Path | bytes, threads: int = 1) -> None:
        self.c = load_library()
        if isinstance(source, bytes):
            self.handle = self.c.linattn_open_bytes(source, len(source), threads)
        else:
            self.handle = self.c.linattn_open(str(source).encode(), threads)
        self._check(0 if self.handle else -1)

    def _check(self, status: int) -> None:
        if status < 0:
            raise Failed(self.c.linattn_error().decode(errors="replace"))

    def info(self) -> list[int]:
        """The fields of `linattn_info`."""
        values = (c_int64 * 9)()
        self._check(self.c.linattn_describe(self.handle, values))
        return list(values)

    def new_state(self, rows: int = 1) -> int:
        return self._state(self.c.linattn_state_new(self.handle, rows))

    def load_state(self, content: bytes) -> int:
        return self._state(self.c.linattn_state_load(self.handle, content, len(content)))

    def _state(self, state: int | None) -> int:
        self._check(0 if state else -1)
        assert state is not None
        return state

    def save_state(self, state: int) -> bytes:
        size = self.c.linattn_state_save(state, None, 0)
        self._check(size)
        content = ctypes.create_string_buffer(size)
        self.c.linattn_state_save(state, content, size)
        return content.raw

    def read(self, state: int, tokens: Sequence[int], count: int) -> None:
        self._check(self.c.linattn_read(state, (c_int32 * len(tokens))(*tokens), count))

    def read_vectors(self, state: int, vectors: Tensor) -> Tensor:
        """The outputs (B, N, E) of vectors (B, N, E)."""
        vectors, outputs = vectors.contiguous(), torch.empty_like(vectors)
        places = [ctypes.cast(x.data_ptr(), POINTER(c_float)) for x in (vectors, outputs)]
        length = vectors.shape[1]
        self._check(self.c.linattn_read_vectors(state, places[0], length, places[1]))
        return outputs

    def parameters(self, state: int, numbers: int) -> list[float]:
        return self.c.linattn_parameters(state)[:numbers]

    def generate(
        self,
        state: int,
        prompt: Sequence[int],
        count: int,
        *,
        rows: int = 1,
        channels: int = 1,
        stop: Sequence[int] = (),
        **settings: float,
    ) -> list[list[int]]:
        """The tokens of each row; those of channels one behind the other."""
        sampling = self.c.linattn_defaults()
        for name, value in settings.items():
            setattr(sampling, name, value)
        out = (c_int32 * (rows * count * channels))(*[-7] * rows * count * channels)
        lengths = (c_int64 * rows)()
        each = len(prompt) // (rows * channels)
        status = self.c.linattn_generate(
            state, (c_int32 * len(prompt))(*prompt), each, sampling, count,
            (c_int32 * len(stop))(*stop), len(stop), out, lengths,
        )  # fmt: skip
        self._check(status)
        width = count * channels
        tokens = [list(out[b * width : (b + 1) * width]) for b in range(rows)]
        ends = [length * channels for length in lengths]
        assert all(set(row[end:]) <= {-7} for row, end in zip(tokens, ends, strict=True))
        return [row[:end] for row, end in zip(tokens, ends, strict=True)]
