"""Types of the compiled module."""

Strided = tuple[int, int, int, int, int]
State = tuple[int, int]

threading: str
__version__: str

def instruction_sets() -> list[str]: ...
def instruction_set() -> str: ...
def use_instruction_set(name: str) -> None: ...

class Call:
    def __init__(
        self,
        query: Strided,
        key: Strided,
        value: Strided,
        sizes: tuple[int, int, int, int, int, int, int],
        kinds: tuple[int, int, int],
        eps: float,
        causal: bool,
        threads: int,
    ) -> None: ...

def attention_forward(
    call: Call,
    key_lengths: list[int],
    cu_seqlens: list[int],
    initial: State,
    last: State,
    out: int,
    normalizer: int,
) -> None: ...
def attention_backward(
    call: Call,
    key_lengths: list[int],
    cu_seqlens: list[int],
    grad_out: Strided,
    grad_last: State,
    given: State,
    kept: tuple[int, int, int],
    gradients: tuple[int, int, int],
    grad_initial: State,
) -> None: ...
def step(
    query: Strided,
    key: Strided,
    value: Strided,
    s: Strided,
    z: Strided,
    out: int,
    sizes: tuple[int, int, int, int],
    kinds: tuple[int, int, int],
    eps: float,
    threads: int,
) -> None: ...
def available_cores() -> int: ...
def team_size(threads: int) -> int: ...

class FeatureMap:
    __members__: dict[str, FeatureMap]

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
