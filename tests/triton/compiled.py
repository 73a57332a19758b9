"""Every kernel compiled for GPUs that are not here, as a launch on one would compile it."""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from linattn_triton import causal, reads
from linattn_triton.configurations import Configuration, choose
from linattn_triton.constants import LANGUAGE_DTYPES, MAPS

NVIDIA = {x: GPUTarget("cuda", x, 32) for x in (80, 90, 100)}
AMD = GPUTarget("hip", "gfx942", 64)
#: Bytes that a block may have: on the smallest GPU from compute capability 8.0 on, and on gfx942.
SHARED = {80: 101_376, 90: 101_376, 100: 101_376, "gfx942": 65_536}

_STRIDES = ("i64", "i64", "i32", "constexpr")
_INTEGERS = {
    "heads", "groups", "length", "dim", "value_dim", "segments", "sequences", "parts", "inner",
    "width", "row_stride", "column_stride", "slots", "numbers", "rows",
}  # fmt: skip
_WIDTHS = {"dim", "value_dim", "inner", "width", "length"}
_FLOATS = {"eps"}
_INT64 = {"key_lengths", "cu_seqlens", "state_indices"}
_OPERANDS = {
    "q",
    "k",
    "v",
    "a",
    "c",
    "x",
    "grad_out",
    "out",
    "grad_query",
    "grad_key",
    "grad_value",
}
_CAUSAL = (causal.forward, causal.query_gradient, causal.key_gradient, causal.value_gradient)
KERNELS = (*_CAUSAL, reads.add_up, reads.read_output, reads.read_gradient)
WITHOUT_PRODUCTS = (causal.scan, reads.normalizer_gradient, reads.step)


class Build(NamedTuple):
    """A kernel for one width, dtype and GPU."""

    kernel: Any
    width: int
    dtype: str
    target: GPUTarget
    with_all: bool = False
    with_mask: bool = False

    @property
    def configuration(self) -> Configuration:
        """That of a launch."""
        return choose(
            self.width, self.width, half=self.dtype == "bf16",
            decay=self.with_all and "decay" in self.kernel.arg_names,
            capability=self.target.arch if self.target.backend == "cuda" else 0,
            heavy=self.kernel in (causal.query_gradient, causal.key_gradient) and self.with_all,
        )  # fmt: skip

    def compile(self) -> Any:
        """The compiled kernel, for contiguous rows; with masks, decay and states, or without."""
        chosen = self.configuration
        amd = self.target.backend == "hip"
        in_two_parts = amd or self.kernel in (causal.query_gradient, reads.read_gradient)
        precision = {
            "bf16": "ieee", "fp16": "bf16x3" if in_two_parts else "tf32", "fp32": "bf16x6",
        }[self.dtype]  # fmt: skip
        settings = {
            "MAP": MAPS["elu"], "MAP_A": 0, "NORMALIZE": True, "SCALED": True, "BACKWARDS": True,
            "CHUNK": chosen.chunk, "WIDTH": self.width, "BLOCK": chosen.block,
            "DOT": LANGUAGE_DTYPES[self.dtype == "bf16"], "PRECISION": precision,
            "COMPENSATE": self.with_all,
        }  # fmt: skip
        signature: dict[str, Any] = {}
        constants: dict[Any, Any] = {}
        for place, name in enumerate(self.kernel.arg_names):
            signature[name] = self._kind(name)
            if signature[name] == "constexpr":
                constants[(place,)] = settings.get(name)
            elif name.endswith("_strides"):
                constants[(place, 3)] = 1
        attributes = {
            at: [["tt.divisibility", 16]]
            for place, name in enumerate(self.kernel.arg_names)
            for at in self._divisible(place, name, str(signature[name]))
        }
        source = ASTSource(self.kernel, signature, constants, attributes)
        options = {"num_warps": chosen.num_warps, "num_stages": chosen.num_stages}
        return triton.compile(source, target=self.target, options=options)

    def _divisible(self, place: int, name: str, kind: str) -> list[tuple[int, ...]]:
        """Arguments that are multiples of 16 at a launch: addresses, widths, strides of rows."""
        if name.endswith("_strides"):
            return [(place, i) for i in range(3)]
        return [(place,)] if kind.startswith("*") or name in _WIDTHS else []

    def _kind(self, name: str) -> Any:
        optional = {"key_lengths", "cu_seqlens", "mask", "decay", "initial_s", "initial_z",
                    "last_s", "last_z", "grad_last_s", "grad_last_z", "grad_initial_s",
                    "grad_initial_z", "grad_decay", "before_s", "before_z", "factors",
                    "first", "grad_normalizer", "state_indices"}  # fmt: skip
        is_passed = self.with_all or (name == "mask" and self.with_mask)
        if name.isupper() or (name in optional and not is_passed):
            return "constexpr"
        if name.endswith("_strides"):
            return _STRIDES
        if name in _INTEGERS:
            return "i32"
        if name in _FLOATS:
            return "fp32"
        if name in _INT64:
            return "*i64"
        if name == "mask":
            return "*i32"
        if name == "before_s" and self.dtype == "bf16":
            return "*bf16"
        return f"*{self.dtype}" if name in _OPERANDS else "*fp32"
