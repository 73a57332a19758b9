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
def available_cores() -> int: ...
def team_size(threads: int) -> int: ...

class WeightFormat:
    __members__: dict[str, WeightFormat]

class Activation:
    __members__: dict[str, Activation]

class Head:
    __members__: dict[str, Head]

class Affine:
    def __init__(
        self,
        *,
        weight: int,
        input_stride: int,
        output_stride: int,
        inputs: int,
        outputs: int,
        bias: int,
    ) -> None: ...

class Norm:
    def __init__(self, *, weight: int, bias: int, eps: float) -> None: ...

class Layer:
    def __init__(
        self,
        *,
        qkv: Affine,
        out: Affine,
        expand: Affine,
        contract: Affine,
        norm1: Norm,
        norm2: Norm,
    ) -> None: ...

class Tokens:
    def __init__(
        self,
        *,
        embeddings: list[int],
        positions: int,
        start: int,
        output: Affine,
        levels: int,
        max_length: int,
        head: Head,
        choices: int,
        lowest_log_scale: float,
    ) -> None: ...

class Model:
    def __init__(
        self,
        *,
        format: WeightFormat,
        heads: int,
        head_dim: int,
        hidden: int,
        map: FeatureMap,
        eps: float,
        norm_first: bool,
        activation: Activation,
        layers: list[Layer],
        norm: Norm,
        tokens: Tokens | None,
    ) -> None: ...

class Decoder:
    instruction_set: str
    nbytes: int
    def __init__(self, model: Model, threads: int) -> None: ...
    def run(
        self,
        *,
        batch: int,
        length: int,
        lengths: int,
        positions: int,
        position: int,
        begins: bool,
        inputs: int,
        states: list[int],
        outputs: int,
        waits: int,
        uniform: int,
        temperature: float,
        drawn: int,
        threads: int,
    ) -> None: ...
