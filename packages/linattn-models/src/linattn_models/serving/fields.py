"""The fields of a request for completions."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sized
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from linattn_core.errors import LONGEST, expected, near, quote
from linattn_models.decoding import ContinuousBatch, Request, SamplingParams
from linattn_models.heads.tokenizer import encode_text, require_tokenizer
from linattn_models.serving.states import StateStore, read_bytes

# Integers that every tensor of int64 takes, also after some additions.
_MOST = 1 << 48
Integer = Annotated[int, Field(ge=-_MOST, le=_MOST)]
# A list is read up to its first error: the errors of a large one would take far more memory.
Integers = Annotated[list[Integer], Field(fail_fast=True)]
Tokens = Annotated[list[Integer | Integers], Field(fail_fast=True)]
# Each is looked for in the text of each new token, in the thread that steps all requests.
_MOST_STRINGS = 64
Strings = Annotated[list[str], Field(fail_fast=True, max_length=_MOST_STRINGS)]
# What a body has to be.
BODY = "a JSON object in UTF-8, with Content-Type: application/json"
_WANTED = {
    "prompt": "a text, or a list of tokens",
    "stop_tokens": "a token, or a list of tokens",
    "stop_strings": f"a text, or a list of at most {_MOST_STRINGS} texts",
}
# OpenAI's fields that have another name here.
_RENAMED = {"stop": "pass stop_strings"}


class CompletionFields(BaseModel):
    """The body of a POST to /v1/completions; names as in OpenAI's, where it has them.

    Attributes:
        prompt: a text, for a model with a tokenizer, or tokens.
        max_tokens: the most new tokens; by default as many as the model's `max_length` leaves.
        n: sequences drawn from the prompt.
        stop_tokens: each ends a sequence.
        stop_strings: each ends a sequence whose new text contains it; the text comes with it. At
            most 64.
        return_state: whether each sequence comes with the id of the state after its last token.
        state: the id of a state, which the prompt continues.
        state_bytes: in place of it, the bytes of /v1/states/ID in base64.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str | None = None
    prompt: str | Tokens = ""
    max_tokens: int | None = Field(None, ge=1, le=_MOST)
    temperature: float = 1.0
    top_k: Integer | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    n: int = Field(1, ge=1, le=_MOST)
    stop_tokens: Integer | Integers | None = None
    stop_strings: str | Strings | None = None
    stream: bool = False
    return_state: bool = False
    state: str | None = None
    state_bytes: str | None = None


def read_fields(
    fields: CompletionFields, batch: ContinuousBatch, states: StateStore, *, most_prompt: int
) -> Request:
    """The request of a batch, whose `add` checks the numbers.

    Raises:
        ValueError: a state that is not known, a text without a tokenizer, or a prompt of more than
            `most_prompt` characters or tokens, or of more tokens than the model has positions.
    """
    prompt: Any = fields.prompt
    _check_length(prompt, most_prompt, "characters" if isinstance(prompt, str) else "tokens")
    if isinstance(prompt, str):
        prompt = _encode(prompt, batch) if prompt else []
    # Not only in `add`, which would do it in the thread that steps all requests.
    longest = batch.decoder.longest
    _check_length(prompt, most_prompt if longest is None else longest, "tokens")
    length = None if fields.max_tokens is None else len(prompt) + fields.max_tokens
    sampling = SamplingParams(
        fields.temperature, fields.top_k, fields.top_p, fields.min_p, fields.seed, fields.n
    )
    if fields.state is not None and fields.state_bytes is not None:
        raise ValueError(expected("state_bytes", "no state beside them", "both"))
    state = None if fields.state is None else states.get(fields.state)
    if fields.state_bytes is not None:
        state = read_bytes(_decode(fields.state_bytes)).to(batch.decoder.device)
    return Request(
        prompt,
        length,
        sampling,
        fields.stop_tokens,
        state,
        fields.return_state,
        fields.stop_strings,
    )


def describe_error(error: Mapping[str, Any]) -> tuple[str, str | None]:
    """The sentence of an error of pydantic, and the field that it is about."""
    field = next((str(place)[:LONGEST] for place in error["loc"] if place != "body"), None)
    if field is None or error["type"] == "json_invalid":
        reason = error.get("ctx", {}).get("error", quote(error["input"]))
        return expected("the body", BODY, reason), None
    names = CompletionFields.model_fields
    if field not in names:
        advice = _RENAMED.get(field) or near(field, names)
        return expected(field, "a known field", "another", advice), field
    if field in _WANTED:
        return expected(field, _WANTED[field], quote(error["input"])), field
    return f"{field}: {error['msg']}", field


def _check_length(prompt: Sized, most: int, what: str) -> None:
    if len(prompt) > most:
        raise ValueError(expected("prompt", f"at most {most:,} {what}", f"{len(prompt):,}"))


def _encode(text: str, batch: ContinuousBatch) -> list[int]:
    require_tokenizer("prompt", batch.decoder.tokenizer)
    return encode_text(batch.decoder.tokenizer, text)


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise ValueError(expected("state_bytes", "base64", str(error))) from None
