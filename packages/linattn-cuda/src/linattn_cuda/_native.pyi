"""Types of the compiled module. Built without CUDA kernels, it holds the two strings alone."""

Strided = tuple[int, int, int, int, int]
State = tuple[int, int]

__version__: str
built_with: str

class Call:
    def __init__(
        self,
        query: Strided,
        key: Strided,
        value: Strided,
        sizes: tuple[int, int, int, int, int, int, int],
        kinds: tuple[int, int, int, int],
        lengths: tuple[int, int],
        eps: float,
        causal: bool,
        schedule: tuple[int, bool],
    ) -> None: ...

def forward_workspace(call: Call) -> int: ...
def backward_workspace(call: Call) -> int: ...
def attention_forward(
    call: Call,
    initial: State,
    last: State,
    out: int,
    normalizer: int,
    workspace: int,
    stream: int,
) -> None: ...
def attention_backward(
    call: Call,
    grad_out: Strided,
    grad_last: State,
    given: State,
    kept: tuple[int, int],
    gradients: tuple[int, int, int],
    grad_initial: State,
    workspace: int,
    stream: int,
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
    stream: int,
) -> None: ...
def device_attributes(index: int) -> tuple[int, int, int, int]: ...
def shared_bytes(
    dim: int, value_dim: int, query_dtype: int, value_dtype: int, precision: int
) -> int: ...
def step_shared_bytes(dim: int) -> int: ...
def best_schedule(
    heads: int, length: int, dim: int, value_dim: int, causal: bool, multiprocessors: int
) -> tuple[int, bool]: ...
