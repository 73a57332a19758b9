"""Which steps of a `LinattnForCausalLM` a compiled decoder makes."""

from __future__ import annotations

from typing import Any, cast

import torch

from linattn_core import choice
from linattn_core.autocast import autocast_dtype
from linattn_core.decoder_spec import CannotCompile
from linattn_models.decoding import CompiledDecoder
from linattn_models.decoding.compiled import FEWEST_STEPS, kept_decoder, packed_decoder
from linattn_models.weights.fingerprint import WeightsRecord, record_weights


class Steps:
    """The steps from one cache.

    A call does not say how many will follow it. So the weights are packed once the model itself has
    made as many steps as packing costs; what was packed before is used from the first step on. A
    copy, as of a cache, counts anew.
    """

    def __init__(self) -> None:
        self._made = 0  # by the model itself
        self._decoder: CompiledDecoder | None = None
        self._record: WeightsRecord | None = None  # of the weights that were packed
        self._backend = ""  # the choice then
        self._refused = False

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()

    def choose(self, model: Any, position: int) -> CompiledDecoder | None:
        """The decoder for the next step, or None where the model itself has to make it.

        Args:
            model: the model of ours.
            position: the furthest of the step.
        """
        if self._refused or not _needs_results_alone(model):
            return None
        same = choice.current == self._backend
        if self._decoder is not None and not (same and cast(WeightsRecord, self._record).holds()):
            self._made, self._decoder = 0, None
        if self._decoder is None or not _has_position(self._decoder, position):
            self._made += 1
            if self._made == 1 or self._made > FEWEST_STEPS:
                self._find(model, position)
        return self._decoder

    def _find(self, model: Any, position: int) -> None:
        self._backend = choice.current
        find = packed_decoder if self._made > FEWEST_STEPS else kept_decoder
        try:
            self._decoder = find(model, position + 1)
            self._record = None if self._decoder is None else record_weights(model)
        except CannotCompile:
            self._decoder, self._refused = None, True


def _needs_results_alone(model: Any) -> bool:
    """Whether a step needs no gradients, and neither a compiler nor autocast changes it."""
    return not (
        torch.is_grad_enabled()
        or model.training
        or torch.compiler.is_compiling()
        or autocast_dtype(model.device.type) is not None
    )


def _has_position(decoder: CompiledDecoder, position: int) -> bool:
    return decoder.longest is None or position < decoder.longest
