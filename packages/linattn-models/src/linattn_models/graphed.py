"""Decoding on a GPU: a whole step of a model recorded once as a CUDA graph, and run again.

A graph repeats the addresses that it was recorded with, so a step has a place: inputs, states and
random numbers in tensors that stay where they are, one place for each number of rows. A sequence
that is drawn by `generate` is lent a place and steps in it. Any other state is copied into a place
that is free, stepped, and copied back.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

import torch
from torch import Tensor

from linattn_core import LinearAttentionState
from linattn_core.decoding import DecoderDescription, Draw
from linattn_models.arithmetic import Arithmetic
from linattn_models.recording import EagerRecorder, Recorder

# Places that are kept when nobody holds them, each with the memory of its states.
_FREE_PLACES = 4

States = Sequence[LinearAttentionState]
# The parameters (B, P), or vectors (B, E), and the tokens that were drawn.
Stepped = tuple[Tensor, Tensor | None]
Choose = Callable[[Tensor, Draw], Tensor]


class GraphedDecoder:
    """See `linattn_core.decoding.NativeDecoder` for what the methods promise.

    Args:
        description: the model; its weights are copied.
        weights, backend: as for `Arithmetic`.
        choose: the head's, or None where tokens are not drawn inside.
        recorder: what repeats the steps.

    Raises:
        CannotCompile: weights that are kept otherwise.
    """

    def __init__(
        self,
        description: DecoderDescription,
        weights: str,
        backend: str,
        choose: Choose | None,
        recorder: Recorder,
    ) -> None:
        self._arithmetic = Arithmetic(description, weights, backend)
        self._choose = choose
        self._recorder = recorder
        self._places: list[_Place] = []  # the one used last at the end
        self._lock = threading.RLock()

    @property
    def nbytes(self) -> int:
        """Bytes of the copied weights."""
        return self._arithmetic.nbytes

    @property
    def instruction_set(self) -> str:
        """What runs the steps."""
        return self._recorder.name

    def prefill(self, inputs: Tensor, lengths: Tensor | None, states: States) -> Tensor:
        with torch.no_grad():
            outputs, found = self._arithmetic.prefill(inputs, lengths)
            _copy(found, states)
        return outputs

    def step(
        self, inputs: Tensor, position: int | Tensor, states: States, draw: Draw | None
    ) -> Stepped:
        with self._lock, torch.no_grad():
            lent = self._lent(states)
            if lent is not None:
                parameters, drawn = lent.step(inputs, position, draw)
                return parameters, None if drawn is None else drawn.clone()
            self._check(states, inputs.shape[0])
            _check_position(position, inputs.shape[0])
            place = self._free_place(inputs.shape[0])
            parameters, drawn = place.step_of(states, inputs, position, draw)
            return parameters.clone(), None if drawn is None else drawn.clone()

    def lend(self, batch: int, holder: object) -> tuple[LinearAttentionState, ...]:
        """States that are stepped where they stand, for as long as the holder lives.

        Nobody else may keep them: they are lent again once the holder is gone. The parameters that
        a step of them returns are overwritten by the next.
        """
        with self._lock:
            place = self._free_place(batch)
            place.holder = weakref.ref(holder)
            place.follow()
            return place.states

    def numbers(self, states: States, temperature: float) -> Draw | None:
        """Where the random numbers go for a step of lent states; None for any other states."""
        with self._lock:
            lent = self._lent(states)
            if lent is None:
                return None
            lent.follow()  # the last step may still be reading the numbers before
            return lent.numbers(temperature)

    def _lent(self, states: States) -> _Place | None:
        for place in self._places:
            if place.states is states:
                return place
        return None

    def _free_place(self, batch: int) -> _Place:
        free = [place for place in self._places if not place.held]
        for place in free:
            if place.batch == batch:
                self._places.remove(place)
                self._places.append(place)
                return place
        for place in free[: max(0, len(free) + 1 - _FREE_PLACES)]:
            self._recorder.release([x for state in place.states for x in state])
            self._places.remove(place)
        # A graph of no rows would hold no kernel.
        recorder = self._recorder if batch else EagerRecorder()
        self._places.append(_Place(self._arithmetic, self._choose, recorder, batch))
        return self._places[-1]

    def _check(self, states: States, batch: int) -> None:
        model, device = self._arithmetic.model, self._arithmetic.device
        if len(states) != len(model.layers):
            raise ValueError(
                f"The state has {len(states)} layers and the decoder {len(model.layers)}; "
                "it comes from another model."
            )
        shape = (batch, model.num_heads, model.head_dim, model.head_dim)
        for s, z in states:
            if s.shape != shape or z.shape != shape[:3]:
                raise ValueError(
                    f"A layer's state was expected to have s {shape} and z {shape[:3]} and has "
                    f"{tuple(s.shape)} and {tuple(z.shape)}."
                )
            for x in (s, z):
                if x.dtype != torch.float32 or x.device != device:
                    raise ValueError(
                        f"A state was expected in float32 on {device} and is {x.dtype} on "
                        f"{x.device}; make it by .to({str(device)!r}, torch.float32)."
                    )


class _Place:
    """The tensors that the steps of one number of rows read and write, and their recordings.

    Attributes:
        batch: the rows.
        states: of each layer.
        holder: whom the states are lent to.
    """

    def __init__(
        self, arithmetic: Arithmetic, choose: Choose | None, recorder: Recorder, batch: int
    ) -> None:
        self.batch = batch
        self.holder: weakref.ref[object] | None = None
        self._arithmetic = arithmetic
        self._choose = choose
        self._recorder = recorder
        self._recorded: dict[str, Callable[[], Stepped]] = {}
        self._temperature = 1.0
        # Ordinary tensors, which may be written with inference mode on or off.
        with torch.inference_mode(False):
            self.states = arithmetic.zeros(batch)
            self._make_inputs(arithmetic.device)

    @property
    def held(self) -> bool:
        """Whether whom the states were lent to still lives."""
        return self.holder is not None and self.holder() is not None

    def follow(self) -> None:
        """Has what comes now run behind the last step."""
        self._recorder.follow()

    def numbers(self, temperature: float) -> Draw:
        """The random numbers that the next step reads; none at temperature 0."""
        if temperature == 0:
            return Draw(temperature, None, None)
        return Draw(temperature, self._waits, self._uniform)

    def step(self, inputs: Tensor, position: int | Tensor, draw: Draw | None) -> Stepped:
        """One step of the states that stand here."""
        self.follow()
        return self._step(inputs, position, draw)

    def step_of(
        self, states: States, inputs: Tensor, position: int | Tensor, draw: Draw | None
    ) -> Stepped:
        """One step of states that stand elsewhere, and are updated there."""
        self.follow()
        _copy(states, self.states)
        stepped = self._step(inputs, position, draw)
        _copy(self.states, states)
        return stepped

    def _step(self, inputs: Tensor, position: int | Tensor, draw: Draw | None) -> Stepped:
        run = self._recording(draw)
        self._take(inputs, position, draw)
        return run()

    def _make_inputs(self, device: torch.device) -> None:
        tokens = self._arithmetic.model.tokens
        if tokens is None:
            embed = self._arithmetic.model.norm.weight.shape[0]
            self._inputs = torch.zeros(self.batch, embed, dtype=torch.float32, device=device)
        else:
            extra = () if len(tokens.embeddings) == 1 else (len(tokens.embeddings),)
            self._inputs = torch.zeros(self.batch, *extra, dtype=torch.int64, device=device)
        self._position = torch.zeros(self.batch, dtype=torch.int64, device=device)
        self._waits: Tensor | None = None
        self._uniform: Tensor | None = None
        if tokens is None or tokens.sampler is None:
            return
        numbers = partial(torch.ones, dtype=torch.float32, device=device)
        self._divisor = numbers(())
        self._waits = numbers(self.batch, tokens.sampler.choices)
        if tokens.sampler.kind == "mixture_of_logistics":
            self._uniform = numbers(self.batch, len(tokens.embeddings))

    def _take(self, inputs: Tensor, position: int | Tensor, draw: Draw | None) -> None:
        self._inputs.copy_(inputs)
        if isinstance(position, int):
            self._position.fill_(position)
        else:
            self._position.copy_(position)
        if draw is None or draw.waits is None:
            return
        if draw.temperature != self._temperature:
            self._divisor.fill_(draw.temperature)
            self._temperature = draw.temperature
        for mine, given in ((self._waits, draw.waits), (self._uniform, draw.uniform)):
            if mine is not None and given is not None and mine is not given:
                mine.copy_(given)

    def _recording(self, draw: Draw | None) -> Callable[[], Stepped]:
        """What runs a step that draws nothing, the likeliest, or by random numbers."""
        kind = "parameters" if draw is None else "likeliest" if draw.waits is None else "drawn"
        if kind not in self._recorded:
            # Recording runs steps, which states that are here already must not feel.
            kept = [state.clone() for state in self.states]
            try:
                self._recorded[kind] = self._recorder.record(partial(self._work, kind))
            finally:
                _copy(kept, self.states)
        return self._recorded[kind]

    def _work(self, kind: str) -> Stepped:
        parameters = self._arithmetic.step(self._inputs, self._position, self.states)
        if kind == "parameters" or self._choose is None:
            return parameters, None
        if kind == "likeliest":
            return parameters, self._choose(parameters, Draw(0.0, None, None))
        # The temperature is a tensor, which heads compute with as with a number.
        temperature = cast(float, self._divisor)
        return parameters, self._choose(parameters, Draw(temperature, self._waits, self._uniform))


def _check_position(position: int | Tensor, batch: int) -> None:
    if isinstance(position, Tensor) and position.shape != (batch,):
        raise ValueError(
            f"A state's positions were expected to be {batch} integers and have shape "
            f"{tuple(position.shape)}."
        )


def _copy(source: States, target: States) -> None:
    """All layers in one launch or two."""
    flat = [[x for state in states for x in state] for states in (target, source)]
    torch._foreach_copy_(flat[0], flat[1])
