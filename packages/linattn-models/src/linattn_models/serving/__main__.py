"""Serve a saved model: `python -m linattn_models.serving MODEL`.

The model answers POST /v1/completions, in OpenAI's format; see `linattn_models.serving.create_app`.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Literal

import tyro
import uvicorn

from linattn_core.decoder_spec import CannotCompile
from linattn_core.errors import expected
from linattn_models.autoregressive import AutoregressiveTransformer
from linattn_models.decoding import CompiledDecoder, ContinuousBatch, compile_decoder
from linattn_models.decoding.batch.engine import CHUNK
from linattn_models.serialization import load
from linattn_models.serving.app import create_app

# Seconds for what has not ended when the server is interrupted.
PATIENCE = 5


@dataclasses.dataclass(frozen=True)
class Flags:
    """Which model, where, and for how many clients."""

    model: tyro.conf.Positional[Path]
    """Folder that `linattn_models.save` wrote."""
    name: str | None = None
    """The model's name for clients; by default the folder's."""
    host: str = "127.0.0.1"
    """The address to listen at."""
    port: int = 8000
    """The port to listen at."""
    max_num_seqs: int = 64
    """Sequences that are stepped together."""
    max_num_batched_tokens: int | None = None
    """Tokens that a step may read; by default max_num_seqs + 48."""
    queue: int = 256
    """Requests that may wait."""
    decoder: Literal["auto", "eager", "compiled"] = "auto"
    """What steps: the model itself, a compiled decoder, or that where it can be compiled."""
    weights: Literal["float32", "bfloat16", "int8"] = "float32"
    """The dtype of a compiled decoder's matrices; others than float32 need one."""


def main(flags: Flags) -> None:
    """Serves until it is interrupted."""
    if not 0 <= flags.port < 1 << 16:
        raise ValueError(expected("--port", "a number in 0..65535", flags.port))
    tokens = flags.max_num_batched_tokens
    if tokens is None:
        tokens = flags.max_num_seqs + CHUNK
    batch = ContinuousBatch(
        make_decoder(flags), max_num_seqs=flags.max_num_seqs, max_num_batched_tokens=tokens
    )
    name = flags.model.resolve().name if flags.name is None else flags.name
    app = create_app(batch, flags.queue, name=name)
    print(f"http://{flags.host}:{flags.port}", flush=True)
    uvicorn.run(
        app,
        host=flags.host,
        port=flags.port,
        log_level="warning",
        timeout_graceful_shutdown=PATIENCE,
    )


def make_decoder(flags: Flags) -> CompiledDecoder | AutoregressiveTransformer:
    """The saved model, compiled where the flags ask for it."""
    model = load(flags.model).eval()
    if not isinstance(model, AutoregressiveTransformer):
        wanted = "an AutoregressiveTransformer"
        raise TypeError(expected(str(flags.model), wanted, f"a {type(model).__name__}"))
    if flags.decoder == "eager":
        if flags.weights != "float32":
            raise ValueError(expected("--weights", "a compiled decoder", "--decoder eager"))
        return model
    try:
        return compile_decoder(model, flags.weights)
    except CannotCompile:
        if flags.decoder == "compiled" or flags.weights != "float32":
            raise
        return model


if __name__ == "__main__":
    try:
        main(tyro.cli(Flags, description=__doc__))
    except (ValueError, TypeError, OSError, ImportError) as error:
        sys.exit(f"error: {error}")
