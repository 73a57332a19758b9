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
