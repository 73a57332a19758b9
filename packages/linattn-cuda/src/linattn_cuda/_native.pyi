"""Types of the compiled module. Built without CUDA kernels, it holds no function."""

from collections.abc import Mapping
from typing import Any

__version__: str
built_with: str

class Dtype:
    __members__: dict[str, Dtype]

class FeatureMap:
    __members__: dict[str, FeatureMap]
    def __int__(self) -> int: ...

class Precision:
    highest: Precision
    high: Precision

# A struct of linattn/calls.h by the names of its fields, those that are left out zero; a schedule's
# are `segments` and `relay`.
Fields = Mapping[str, Any]

def forward_workspace(call: Fields) -> int: ...
def backward_workspace(call: Fields) -> int: ...
def attention_forward(call: Fields) -> None: ...
def attention_backward(call: Fields) -> None: ...
def step(call: Fields) -> None: ...
def device_attributes(index: int) -> tuple[int, int, int, int]: ...
def shared_bytes(
    dim: int, value_dim: int, query_dtype: Dtype, value_dtype: Dtype, precision: Precision
) -> int: ...
def step_shared_bytes(dim: int) -> int: ...
def best_schedule(
    heads: int, length: int, dim: int, value_dim: int, causal: bool, multiprocessors: int
) -> tuple[int, bool]: ...
