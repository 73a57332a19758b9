"""Serve a saved model: `python -m linattn_models.serving MODEL`.

The model answers POST /v1/completions and /v1/chat/completions, in OpenAI's format; see
`linattn_models.serving.create_app`.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import socket
import sys
from pathlib import Path
from typing import Literal

import tyro
import uvicorn

from linattn_core.decoder_spec import CannotCompile
from linattn_core.errors import expected
from linattn_models.decoding import CompiledDecoder, ContinuousBatch, compile_decoder
from linattn_models.saving import load
from linattn_models.serving.app import create_app
from linattn_models.serving.chat import read_template
from linattn_models.tokens.autoregressive import AutoregressiveTransformer

# Seconds for what has not ended when the server is interrupted.
PATIENCE = 5


@dataclasses.dataclass(frozen=True)
class Flags:
    """Which model, where, and for how many clients."""

    model: tyro.conf.Positional[Path]
    """Folder that `linattn_models.save` wrote, or that of a training run."""
    name: str | None = None
    """The model's name for clients; by default the folder's."""
    host: str = "127.0.0.1"
    """The address to listen at."""
    port: int = 8000
    """The port to listen at; 0: a free one."""
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
    api_key: str | None = None
    """What clients have to send as a bearer token; @FILE reads it from a file."""
    allowed_origin: tuple[str, ...] = ()
    """Sites whose pages may send requests from browsers, such as https://example.org; "*": all."""
    root_path: str = ""
    """The prefix under which a proxy serves all this, and which it removes."""
    log_level: Literal["error", "warning", "info"] = "info"
    """What stderr shows; info: a line for each answer, too."""


def main(flags: Flags) -> None:
    """Serves until it is interrupted."""
    if not 0 <= flags.port < 1 << 16:
        raise ValueError(expected("--port", "a number in 0..65535", flags.port))
    with bind(flags.host, flags.port) as listener:
        serve(flags, listener)


def serve(flags: Flags, listener: socket.socket) -> None:
    """Serves the model at a socket that is bound."""
    batch = ContinuousBatch(make_decoder(flags), flags.max_num_seqs, flags.max_num_batched_tokens)
    name = flags.model.resolve().name if flags.name is None else flags.name
    app = create_app(
        batch,
        flags.queue,
        name=name,
        chat=read_template(flags.model),
        api_key=read_key(flags.api_key),
        allowed_origins=flags.allowed_origin,
    )
    logging = copy.deepcopy(uvicorn.config.LOGGING_CONFIG)
    logging["handlers"]["access"]["stream"] = "ext://sys.stderr"  # stdout has the address alone
    config = uvicorn.Config(
        app,
        log_config=logging,
        log_level=flags.log_level,
        root_path=flags.root_path,
        timeout_graceful_shutdown=PATIENCE,
    )
    print(address_of(listener), flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        uvicorn.Server(config).run([listener])


def read_key(key: str | None) -> str | None:
    """The key of the flag, or in its file."""
    return Path(key[1:]).read_text().strip() if key is not None and key[:1] == "@" else key


def bind(host: str, port: int) -> socket.socket:
    """A socket of IPv4 or IPv6 at an address; it refuses connections until the model is loaded."""
    listener = None
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        if listener is not None:
            listener.close()
        wanted = "a free port of an address of this machine"
        advice = "choose another --port (0: any that is free) or --host"
        got = error.strerror or error
        raise OSError(expected(f"{host}, port {port}", wanted, got, advice)) from None
    return listener


def address_of(listener: socket.socket) -> str:
    """The URL of a bound socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


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
