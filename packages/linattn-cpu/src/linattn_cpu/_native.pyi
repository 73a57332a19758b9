"""Types of the compiled module."""

from collections.abc import Mapping
from typing import Any

threading: str
__version__: str

def instruction_sets() -> list[str]: ...
def instruction_set() -> str: ...
def use_instruction_set(name: str) -> None: ...
def fused_multiply_adds(threads: int, steps: int) -> int: ...

class Dtype:
    __members__: dict[str, Dtype]

class FeatureMap:
    __members__: dict[str, FeatureMap]

# The fields of a struct of native/*.hpp by name; missing fields are zero.
Fields = Mapping[str, Any]

def attention_forward(call: Fields) -> None: ...
def attention_backward(call: Fields) -> None: ...
def step(call: Fields) -> None: ...
def available_cores() -> int: ...
def team_size(threads: int) -> int: ...

class WeightFormat:
    __members__: dict[str, WeightFormat]

class Activation:
    __members__: dict[str, Activation]

class Head:
    __members__: dict[str, Head]

class Decoder:
    instruction_set: str
    nbytes: int
    def __init__(self, model: Fields, threads: int) -> None: ...
    def run(self, call: Fields) -> None: ...

class CachedMemory:
    most_kept: int
    def __init__(self, bytes: int) -> None: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    @staticmethod
    def kept() -> int: ...
    @staticmethod
    def empty() -> None: ...
