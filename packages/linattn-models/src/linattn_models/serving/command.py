"""What is served: a saved model as an application, for one process or for each replica."""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path
from typing import Literal

import tyro
from fastapi import FastAPI

from linattn_core.decoder_spec import CannotCompile
from linattn_core.errors import expected
from linattn_models.decoding import CompiledDecoder, ContinuousBatch, compile_decoder
from linattn_models.saving import load
from linattn_models.serving.app import create_app
from linattn_models.serving.chat import read_template
from linattn_models.serving.shared import SharedStates
from linattn_models.tokens.autoregressive import AutoregressiveTransformer
from linattn_models.weights.model_files import CONFIG_FILE, find_model, read_model_config

# Seconds for what has not ended when a server is stopped.
PATIENCE = 5


@dataclasses.dataclass(frozen=True)
class Served:
    """A saved model, and for whom."""

    model: tyro.conf.Positional[Path]
    """Folder that `linattn_models.save` wrote, or that of a training run."""
    name: str | None = None
    """The model's name for clients; by default the folder's."""
    imports: tuple[str, ...] = ()
    """Modules that register what the model needs, such as its attention."""
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
    state_store: str | None = None
    """The folder or URL where servers share states, such as s3://bucket/states; by default in
    memory."""
    store_seconds: int = 86_400
    """Seconds after which a state in the store is removed."""
    store_bytes: int = 1 << 34
    """The most bytes of the store; beyond them, the oldest states are removed."""
    api_key: str | None = None
    """What clients have to send as a bearer token; @FILE reads it from a file."""
    allowed_origin: tuple[str, ...] = ()
    """Sites whose pages may send requests from browsers, such as https://example.org; "*": all."""

    def check(self) -> None:
        """Refuses what no process could serve, before any is started or the model is read."""
        for module in self.imports:
            importlib.import_module(module)
        read_model_config(find_model(self.model) / CONFIG_FILE)
        self.open_store()

    def open_store(self) -> SharedStates | None:
        """Where servers share states, if they do."""
        if self.state_store is None:
            return None
        return SharedStates(self.state_store, self.store_seconds, self.store_bytes)

    def create_app(self) -> FastAPI:
        """Loads the model."""
        batch = ContinuousBatch(make_decoder(self), self.max_num_seqs, self.max_num_batched_tokens)
        return create_app(
            batch,
            self.queue,
            name=self.model.resolve().name if self.name is None else self.name,
            chat=read_template(self.model),
            api_key=_read_key(self.api_key),
            allowed_origins=self.allowed_origin,
            states=self.open_store(),
        )


def make_decoder(served: Served) -> CompiledDecoder | AutoregressiveTransformer:
    """The saved model, compiled where that is asked for."""
    for module in served.imports:
        importlib.import_module(module)
    model = load(served.model).eval()
    if not isinstance(model, AutoregressiveTransformer):
        wanted = "an AutoregressiveTransformer"
        raise TypeError(expected(str(served.model), wanted, f"a {type(model).__name__}"))
    if served.decoder == "eager":
        if served.weights != "float32":
            raise ValueError(expected("--weights", "a compiled decoder", "--decoder eager"))
        return model
    try:
        return compile_decoder(model, served.weights)
    except CannotCompile:
        if served.decoder == "compiled" or served.weights != "float32":
            raise
        return model


def _read_key(key: str | None) -> str | None:
    """The key itself, or that in its file."""
    return Path(key[1:]).read_text().strip() if key is not None and key[:1] == "@" else key
