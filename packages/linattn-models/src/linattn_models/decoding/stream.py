"""What `stream` returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import Tensor

from linattn_core.errors import expected
from linattn_models.decoding.loop import Run
from linattn_models.state import DecodingState


class TokenStream(Iterator[Tensor]):
    """The tokens of each step, as soon as they are drawn; what `stream` returns."""

    def __init__(self, run: Run, read_state: Callable[[], DecodingState] | None) -> None:
        # Copied outside inference mode, because autograd refuses tensors made inside.
        self._tokens = (run.sequences.hide_complete(step, token) for step, token in enumerate(run))
        self._read_state = read_state

    def __next__(self) -> Tensor:
        return next(self._tokens)

    @property
    def state(self) -> DecodingState:
        """The state after the last token that was yielded; the stream can go on.

        Raises:
            ValueError: a stream without `return_state=True`, or without a token so far.

        Cost: one step.
        """
        if self._read_state is None:
            wanted = "True for the state of a stream"
            raise ValueError(expected("return_state", wanted, False, "pass it to stream"))
        return self._read_state()
