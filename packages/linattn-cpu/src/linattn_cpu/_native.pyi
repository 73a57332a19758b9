"""Types of the compiled module."""

from collections.abc import Mapping
from typing import Any

threading: str
__version__: str

def instruction_sets() -> list[str]: ...
def instruction_set() -> str: ...
def use_instruction_set(name: str) -> None: ...

class Dtype:
    __members__: dict[str, Dtype]

class FeatureMap:
    __members__: dict[str, FeatureMap]

# A struct of native/calls.hpp by the names of its fields, those that are left out zero.
Fields = Mapping[str, Any]

def attention_forward(call: Fields) -> None: ...
def attention_backward(call: Fields) -> None: ...
def step(call: Fields) -> None: ...

Dense = tuple[int, int, int, int, int, int]
Norm = tuple[int, int, float]
Layer = tuple[Dense, Dense, Dense, Dense, Norm, Norm]
TokenCoding = tuple[list[int], int, int, Dense, int, int, int, int, float]

class Decoder:
    instruction_set: str
    nbytes: int
    def __init__(
        self,
        shape: tuple[int, int, int, int, int, float, bool, int],
        layers: list[Layer],
        norm: Norm,
        tokens: TokenCoding | None,
        threads: int,
    ) -> None: ...
    def run(
        self,
        batch: int,
        inputs: int,
        lengths: int,
        first: int,
        position: int,
        begins: bool,
        given: int,
        states: list[int],
        outputs: int,
        waits: int,
        uniform: int,
        temperature: float,
        drawn: int,
        threads: int,
    ) -> None: ...
