"""Checks of states, and of the positions that prompts and steps take."""

from __future__ import annotations

from torch import Tensor

from linattn_core.errors import expected
from linattn_models.basics.validation import at_least, instance
from linattn_models.state.cache import LayerState
from linattn_models.state.decoding_state import DecodingState, layer_shape

_ADVICE = "pass a state of this model"


def check_end(end: int, positions: int | None) -> None:
    """Refuses prompts and steps that end past so many positions; None for no limit."""
    if positions is not None and end > positions:
        advice = "pass fewer tokens, or make the model or its state with a larger max_length"
        raise ValueError(expected("the sequence", f"at most {positions} positions", end, advice))


def known_parameters(state: DecodingState, length: int, lengths: Tensor | None) -> Tensor | None:
    """The parameters (B, P) of the state, for rows without new tokens; None if there are none."""
    if length and (lengths is None or bool((lengths > 0).all())):
        return None
    if state.parameters is None:
        wanted = "one that a model of tokens returned"
        advice = "pass at least one token for each sequence"
        raise ValueError(expected("a state without new tokens", wanted, "another", advice))
    return state.parameters


def check_layers(state: DecodingState, layers: int) -> None:
    """Refuses anything but a `DecodingState` with this number of layers."""
    instance("state", state, DecodingState)
    if len(state.layers) != layers:
        got = f"{len(state.layers)} layers"
        raise ValueError(expected("state", f"{layers} layers", got, _ADVICE))


def check_parameters(state: DecodingState, num_parameters: int) -> None:
    """Refuses a `DecodingState` with another number of parameters of the next token, or no state.

    A state of a model of vectors has no parameters and passes.
    """
    instance("state", state, DecodingState)
    parameters = state.parameters
    if parameters is not None and (parameters.ndim != 2 or parameters.shape[1] != num_parameters):
        wanted = f"{num_parameters} parameters of the next token, (batch, {num_parameters})"
        raise ValueError(expected("state", wanted, tuple(parameters.shape), _ADVICE))


def of_another_model(what: str, own: LayerState, state: LayerState) -> ValueError:
    """The error for a layer's state that is not like the model's `own`."""
    return ValueError(expected(what, layer_shape(own), layer_shape(state), _ADVICE))


def check_fits(state: DecodingState, own: DecodingState) -> None:
    """Refuses a state that differs from the model's `own` in sizes, dtype or device."""
    check_layers(state, len(own.layers))
    for index, layers in enumerate(zip(own.layers, state.layers, strict=True)):
        if layer_shape(layers[0]) != layer_shape(layers[1]):
            raise of_another_model(f"layer {index} of the state", *layers)


def room_for(max_length: int | None, positions: int | None) -> int | None:
    """The number of positions to allocate: `max_length`, by default all of the model's."""
    if max_length is None:
        return positions
    max_length = at_least("max_length", max_length, 1)
    if positions is not None and max_length > positions:
        wanted = f"at most the model's {positions} positions"
        raise ValueError(expected("max_length", wanted, max_length))
    return max_length
