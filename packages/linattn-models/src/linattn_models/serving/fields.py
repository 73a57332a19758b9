"""The fields of a request for completions."""

from __future__ import annotations

import base64
import reprlib
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator

from linattn_core.errors import LONGEST, expected, near, quote
from linattn_models.decoding import ContinuousBatch, Request, SamplingParams
from linattn_models.heads.base import check_tokens, token_shape
from linattn_models.heads.tokenizer import decode_tokens, encode_text, require_tokenizer
from linattn_models.serving.chat import ChatTemplate
from linattn_models.state import DecodingState

# Integers that every tensor of int64 takes, also after some additions.
_MOST = 1 << 48
Integer = Annotated[int, Field(ge=-_MOST, le=_MOST)]
# A list is read up to its first error: the errors of a large one would take far more memory.
Integers = Annotated[list[Integer], Field(fail_fast=True)]
Lists = Annotated[list[Integers], Field(fail_fast=True)]
Texts = Annotated[list[str], Field(fail_fast=True)]
# Each is looked for in the text of each new token, in the thread that steps all requests.
_MOST_STRINGS, _LONGEST_STRING = 64, 256
String = Annotated[str, Field(max_length=_LONGEST_STRING)]
Strings = Annotated[list[String], Field(fail_fast=True, max_length=_MOST_STRINGS)]
# Each is an object, which takes time in which no other request is read.
_MOST_MESSAGES, _MOST_PARTS = 4096, 16
# What a body has to be.
BODY = "a JSON object in UTF-8, with Content-Type: application/json"
_WANTED = {
    "prompt": "a text, a list of tokens, or a list of such prompts",
    "messages": f"at most {_MOST_MESSAGES:,} messages with a role, and a text or at most "
    f"{_MOST_PARTS} as content",
    "stop_tokens": "a token, or a list of tokens",
    "stop": f"at most {_MOST_STRINGS} texts of at most {_LONGEST_STRING} characters",
}
# OpenAI's fields that are not supported, and the values beside null that ask for nothing.
_OFF: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "frequency_penalty": (0,),
    "function_call": ("none",),
    "functions": ([],),
    "logit_bias": ({},),
    "logprobs": (False,),  # in completions, which take a number
    "modalities": (["text"],),
    "presence_penalty": (0,),
    "response_format": ({"type": "text"},),
    "suffix": ("",),
    "tool_choice": ("none",),
    "tools": ([],),
    "top_logprobs": (0,),
}
# OpenAI's fields that do not change an answer.
_IGNORED = {
    "metadata",
    "parallel_tool_calls",
    "prompt_cache_key",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
}
# Values in errors: the repr of a large list would take long.
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = LONGEST
_SHORT.maxlevel = 2
# The most of the likeliest tokens beside each token.
_MOST_LOGPROBS = 20
# The most new tokens of an answer in a chat, where it is not said.
_MOST_ANSWER = 1024


class StreamOptions(BaseModel):
    """How events are sent.

    Attributes:
        include_usage: whether the numbers of tokens come in a last event.
    """

    model_config = ConfigDict(strict=True)

    include_usage: bool | None = False


class _Fields(BaseModel):
    """What bodies of completions and of chats have; names as in OpenAI's, where it has them.

    Null stands for the default.

    Attributes:
        n: sequences drawn from each prompt.
        stop: each of these texts ends a sequence whose new text contains it, and is cut off.
        stop_tokens: each ends a sequence.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str | None = None
    temperature: float = 1.0
    top_k: Integer | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    n: int = Field(1, ge=1, le=_MOST)
    stop_tokens: Integer | Integers | None = None
    stop: String | Strings = ""
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()

    @property
    def stop_strings(self) -> list[str]:
        """The texts of `stop`."""
        return [self.stop] if isinstance(self.stop, str) and self.stop else [*self.stop]

    @model_validator(mode="before")
    @classmethod
    def _leave_out(cls, body: Any) -> Any:
        """Leaves out what asks for nothing."""
        if not isinstance(body, dict):
            return body
        known = (cls.model_fields.keys() | _OFF) - {"prompt"}
        return {
            name: value
            for name, value in body.items()
            if name not in _IGNORED
            and not (value is None and name in known)
            and not any(_is_same(value, off) for off in _OFF.get(name, ()))
        }


class CompletionFields(_Fields):
    """The body of a POST to /v1/completions.

    Attributes:
        prompt: a text, for a model with a tokenizer, or tokens; or several of them.
        max_tokens: the most new tokens; 0 beside `echo`.
        echo: whether texts, and their log-probabilities, begin with those of their prompt.
        logprobs: of how many of the likeliest tokens log-probabilities come with each token.
        return_state: whether each sequence comes with the id of the state after its last token.
        state: the id of a state, which the prompt continues.
        state_bytes: in place of it, the bytes of /v1/states/ID in base64.
    """

    prompt: str | Integers | Texts | Lists = ""
    max_tokens: int = Field(16, ge=0, le=_MOST)
    echo: bool = False
    logprobs: int | None = Field(None, ge=0, le=_MOST_LOGPROBS)
    return_state: bool = False
    state: str | None = None
    state_bytes: str | None = None


class TextPart(BaseModel):
    """A part of a message."""

    type: Literal["text"]
    text: str


class Message(BaseModel):
    """A message of a chat."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[TextPart], Field(fail_fast=True, max_length=_MOST_PARTS)]

    def as_text(self) -> dict[str, str]:
        """What templates read."""
        parts = self.content
        text = parts if isinstance(parts, str) else "".join(part.text for part in parts)
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


class ChatFields(_Fields):
    """The body of a POST to /v1/chat/completions.

    Attributes:
        messages: the last one is answered; one of them is of a user.
        max_completion_tokens, max_tokens: the most new tokens.
        logprobs: whether log-probabilities come with each token.
        top_logprobs: of how many of the likeliest tokens, too.
    """

    messages: Annotated[list[Message], Field(fail_fast=True, max_length=_MOST_MESSAGES)]
    max_tokens: int | None = Field(None, ge=1, le=_MOST)
    max_completion_tokens: int | None = Field(None, ge=1, le=_MOST)
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=_MOST_LOGPROBS)


def render_chat(
    fields: ChatFields, template: ChatTemplate, batch: ContinuousBatch, *, most_prompt: int
) -> str:
    """The prompt that a template makes of a chat.

    Raises:
        ValueError: a model without a tokenizer, no message of a user, or messages that the template
            refuses or that are longer than `most_prompt`.
    """
    require_tokenizer("messages", batch.decoder.tokenizer)
    if fields.top_logprobs and not fields.logprobs:
        raise ValueError(expected("top_logprobs", "logprobs beside it", "none"))
    if all(message.role != "user" for message in fields.messages):
        raise ValueError(expected("messages", "a message of the role user", "none"))
    return template.render([message.as_text() for message in fields.messages], most_prompt)


def read_chat(
    fields: ChatFields, text: str, template: ChatTemplate, batch: ContinuousBatch
) -> CompletionFields:
    """The completion of the prompt that a template made of a chat."""
    tokenizer, prompt = batch.decoder.tokenizer, _encode(text, batch, begins=True)
    length = fields.max_completion_tokens or fields.max_tokens
    if length is None:
        longest = batch.decoder.longest
        room = _MOST_ANSWER if longest is None else longest - len(prompt)
        length = max(1, min(room, _MOST_ANSWER))
    tokens = [fields.stop_tokens] if isinstance(fields.stop_tokens, int) else fields.stop_tokens
    find = getattr(tokenizer, "token_to_id", lambda text: None)  # one of characters has no end
    end = find(template.tokens.get("eos_token", ""))
    completion = CompletionFields(
        **{name: getattr(fields, name) for name in _SHARED},
        prompt=[*prompt],
        max_tokens=length,
        stop_tokens=[*(tokens or ()), *([] if end is None else [end])],
        logprobs=fields.top_logprobs if fields.logprobs else None,
    )
    # Not checked again: those of the template come in addition to the most that a client may send.
    return completion.model_copy(update={"stop": [*fields.stop_strings, *template.stop_strings]})


def read_fields(
    fields: CompletionFields,
    batch: ContinuousBatch,
    stored: bytes | None,
    *,
    most_prompt: int,
    most_prompts: int,
) -> list[Request]:
    """The requests of a batch, whose `add` checks the numbers: one for each prompt.

    Args:
        stored: the file of the state with the id `fields.state`, if there is one.

    Raises:
        ValueError: a file that is no state, a text without a tokenizer, more than `most_prompts`
            prompts, or prompts of more than `most_prompt` characters or tokens together, or one of
            more tokens than the model has positions.
    """
    if not fields.max_tokens and (fields.return_state or not fields.echo):
        wanted = "at least 1 without echo, or with return_state"
        raise ValueError(expected("max_tokens", wanted, 0))
    prompts = _list_prompts(fields, batch)
    _check_length(len(prompts), most_prompts, "prompts")
    _check_length(sum(map(len, prompts)), most_prompt, "characters or tokens")
    begins = fields.state is None and fields.state_bytes is None
    rows = [_encode(x, batch, begins) if isinstance(x, str) else x for x in prompts]
    # Not only in `add`, which would do it in the thread that steps all requests.
    longest = batch.decoder.longest
    _check_length(max(map(len, rows)), most_prompt if longest is None else longest, "tokens")
    sampling = SamplingParams(
        fields.temperature, fields.top_k, fields.top_p, fields.min_p, fields.seed, fields.n
    )
    if fields.state is not None and fields.state_bytes is not None:
        raise ValueError(expected("state_bytes", "no state beside them", "both"))
    content = stored if fields.state_bytes is None else _decode(fields.state_bytes)
    state = None if content is None else DecodingState.from_bytes(content).to(batch.decoder.device)
    return [
        Request(
            row,
            length=len(row) + max(1, fields.max_tokens),  # a token that is not wanted is not sent
            sampling=sampling,
            stop_tokens=fields.stop_tokens,
            state=state,
            return_state=fields.return_state,
            stop_strings=fields.stop_strings or None,
            logprobs=fields.logprobs,
            prompt_logprobs=fields.echo and fields.logprobs is not None,
        )
        for row in rows
    ]


def read_echoes(
    fields: CompletionFields, batch: ContinuousBatch, requests: list[Request]
) -> list[str]:
    """The texts of the prompts, where answers begin with them; else none.

    Raises:
        ValueError: no tokenizer, or a token that the model does not have.
    """
    if not fields.echo:
        return []
    tokenizer, head = batch.decoder.tokenizer, batch.decoder.head
    require_tokenizer("echo", tokenizer)
    rows: list[Any] = [request.prompt for request in requests]
    for row in filter(None, rows):
        check_tokens(head, torch.tensor(row), what="prompt")
    pairs = zip(_list_prompts(fields, batch), rows, strict=True)
    return [x if isinstance(x, str) else decode_tokens(tokenizer, row) for x, row in pairs]


# All fields, and those that a chat passes on as they are.
FIELDS = {**CompletionFields.model_fields, **ChatFields.model_fields}
_SHARED = _Fields.model_fields.keys() - {"stop", "stop_tokens"}


def describe_error(error: Mapping[str, Any]) -> tuple[str, str | None]:
    """The sentence of an error of pydantic, and the field that it is about."""
    field = next((str(place)[:LONGEST] for place in error["loc"] if place != "body"), None)
    if field is None or error["type"] == "json_invalid":
        reason = error.get("ctx", {}).get("error", _SHORT.repr(error["input"]))
        return expected("the body", BODY, reason), None
    got, advice = "none" if error["type"] == "missing" else _SHORT.repr(error["input"]), ""
    if field in _OFF.keys() - FIELDS.keys():
        wanted, advice = " or ".join(["null", *map(quote, _OFF[field])]), "it is not supported"
    elif field not in FIELDS:
        wanted, got, advice = "a known field", "another", near(field, FIELDS)
    elif error["type"] == "extra_forbidden":
        wanted, got = "a field of this route", "one of another"
    elif field in _WANTED:
        wanted = _WANTED[field]
    else:
        return f"{field}: {error['msg']}", field
    return expected(field, wanted, got, advice), field


def _list_prompts(fields: CompletionFields, batch: ContinuousBatch) -> list[str | list[Any]]:
    """The prompts of the field: a list is one of its own where it has tokens."""
    prompt: Any = fields.prompt
    of_one = list if token_shape(batch.decoder.head) else int
    is_one = isinstance(prompt, str) or all(isinstance(item, of_one) for item in prompt)
    return [prompt] if is_one else prompt


def _is_same(value: object, off: object) -> bool:
    """Whether two values are equal, where 0 is not false."""
    return value == off and isinstance(value, bool) == isinstance(off, bool)


def _check_length(length: int, most: int, what: str) -> None:
    if length > most:
        raise ValueError(expected("prompt", f"at most {most:,} {what}", f"{length:,}"))


def _encode(text: str, batch: ContinuousBatch, begins: bool) -> list[int]:
    decoder = batch.decoder
    if not text and decoder.tokenizer is None:
        return []
    require_tokenizer("prompt", decoder.tokenizer)
    return encode_text(decoder.tokenizer, text, begins=begins and not decoder.has_start)


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise ValueError(expected("state_bytes", "base64", str(error))) from None
