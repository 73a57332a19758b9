"""The mixin with `generate`, `stream` and `beam_search` for models; chooses the predictor."""

from __future__ import annotations

from functools import partial
from typing import cast

import torch

from linattn_core.decoder_spec import CannotCompile
from linattn_core.errors import expected
from linattn_models.decoding.beams import Searching
from linattn_models.decoding.drawing import METHODS, Drawing
from linattn_models.decoding.model import TokenModel
from linattn_models.decoding.native import CompiledDecoder, FusedPredictor
from linattn_models.decoding.packed import packed_decoder
from linattn_models.decoding.predictors import Begin, RerunPredictor, StatefulPredictor
from linattn_models.decoding.prompts import Prompt
from linattn_models.state import Cursor, check_end
from linattn_models.validation import no_dropout, one_of

DECODERS = ("auto", "eager", "compiled")
# Packing the weights costs about as much as this number of steps.
_FEWEST_STEPS = 16


class Generation(Drawing, Searching):
    """Gives a `TokenModel` the methods `generate`, `stream` and `beam_search`."""

    def predictor(self, method: str, decoder: str | CompiledDecoder, prompt: Prompt) -> Begin:
        """Makes the predictor; see `Predicting`."""
        model = cast(TokenModel, self)
        method = choose_method(model, method)
        no_dropout(model.training, model.config.dropout)
        if method == "rerun":
            prompt.check_stateless()
        compiled = choose_decoder(model, method, decoder, prompt.steps, prompt.positions)
        if compiled is not None:
            return partial(FusedPredictor, compiled, reader=model)
        return partial(RerunPredictor if method == "rerun" else StatefulPredictor, model)


def choose_method(model: TokenModel, method: str) -> str:
    """ "stateful" or "rerun"; "auto" means "rerun" for a model that cannot step, else "stateful".

    Raises:
        ValueError: another name.
    """
    one_of("method", method, METHODS)
    if method == "auto":
        return "stateful" if model.can_step else "rerun"
    return method


def choose_decoder(
    model: TokenModel,
    method: str,
    decoder: str | CompiledDecoder,
    steps: int,
    positions: int | None = None,
) -> CompiledDecoder | None:
    """The compiled decoder that `generate` steps with, or None where the model itself predicts.

    Args:
        method: "stateful" or "rerun".
        decoder: as for `generate`.
        steps: tokens to draw, which decide whether packing the weights is worth it.
        positions: how many positions the sequences take; by default as many as the model has.

    Raises:
        ValueError: a name that is unknown, "compiled" where no backend compiles the model, a
            decoder of another model, or a decoder with "rerun".
    """
    if method == "rerun":
        if decoder not in ("auto", "eager"):
            wanted = "'auto' or 'eager' with method 'rerun', which takes no decoder"
            raise ValueError(expected("decoder", wanted, repr(decoder), "pass method='stateful'"))
        return None
    if isinstance(decoder, CompiledDecoder):
        decoder.check_decodes(model)
        check_end(Cursor(0, positions or 0), decoder.longest)
        return decoder
    if decoder not in DECODERS:
        wanted = f"{', '.join(map(repr, DECODERS))}, or what compile_decoder made"
        raise ValueError(expected("decoder", wanted, repr(decoder)))
    if decoder == "eager" or (decoder == "auto" and not _worth_packing(model, steps)):
        return None
    try:
        return packed_decoder(model, positions)
    except CannotCompile:
        if decoder == "compiled":
            raise
        return None


def _worth_packing(model: TokenModel, steps: int) -> bool:
    # In autocast the model computes in half precision, and a compiled decoder does not.
    return steps >= _FEWEST_STEPS and not torch.is_autocast_enabled(model.device.type)
