"""The content of answers: tokens and texts of each sequence."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any

from linattn_models.decoding import Output, Request, TokenLogprobs
from linattn_models.decoding.texts import TextParts, contexts_of
from linattn_models.serving.logprobs import Words, convert_to_chat


class Completion:
    """The answer to the requests of one body.

    Args:
        model: its name.
        tokenizer: makes texts; None for tokens alone.
        requests: their prompts are tokens.
        echoes: a text before those of each request, or none.
        most: new tokens of a sequence.

    Attributes:
        prompt_tokens: of all requests.
        state_ids: of sequences that have ended and whose states are kept.
    """

    def __init__(
        self,
        model: str,
        tokenizer: Any,
        requests: Sequence[Request],
        echoes: Sequence[str],
        most: int,
    ) -> None:
        self._head = {
            "id": f"cmpl-{secrets.token_hex(12)}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": model,
        }
        self.state_ids: dict[int, str] = {}
        self._tokenizer, self._words = tokenizer, Words(tokenizer)
        self._requests, self._echoes, self._most = requests, echoes, most
        self._texts: dict[int, _ChoiceText] = {}  # of the sequences that have tokens
        self.prompt_tokens = sum(len(request.prompt) for request in requests)
        self._new_tokens = 0

    def parts(self, outputs: list[Output]) -> list[dict[str, Any]]:
        """The contents of some outputs: clients expect a choice, of one sequence, in each."""
        return [{**self._head, "choices": [choice]} for choice in self._choices(outputs)]

    def whole(self, outputs: list[Output]) -> dict[str, Any]:
        """The content of all outputs, and the numbers of tokens."""
        choices = self._choices(sorted(outputs, key=lambda output: output.index))
        return {**self._head, "choices": choices, "usage": self._usage()}

    def end(self) -> dict[str, Any]:
        """The numbers of tokens, after the last part."""
        return {**self._head, "choices": [], "usage": self._usage()}

    def _usage(self) -> dict[str, int]:
        usage = {"prompt_tokens": self.prompt_tokens, "completion_tokens": self._new_tokens}
        return {**usage, "total_tokens": sum(usage.values())}

    def _choices(self, outputs: list[Output]) -> list[dict[str, Any]]:
        by_index: dict[int, list[Output]] = {}
        for output in outputs:
            by_index.setdefault(output.index, []).append(output)
        return [self._choice(index, own) for index, own in by_index.items()]

    def _choice(self, index: int, outputs: list[Output]) -> dict[str, Any]:
        tokens = [token for output in outputs for token in output.tokens][: self._most]
        self._new_tokens += len(tokens)
        last = outputs[-1]
        choice: dict[str, Any] = {"index": index, "tokens": tokens}
        text = None if self._tokenizer is None else self._text(index)
        if text is not None:
            choice["text"] = text.add(tokens, last.finish_reason is not None)
        if any(output.logprobs is not None for output in outputs):
            choice["logprobs"] = self._describe_logprobs(tokens, outputs, text)
        # A token that is not sent stops nothing.
        reason = last.finish_reason
        choice["finish_reason"] = "length" if reason == "stop" and not self._most else reason
        if index in self.state_ids:
            choice["state"] = self.state_ids[index]
        return choice

    def _describe_logprobs(
        self, tokens: list[Any], outputs: list[Output], text: _ChoiceText | None
    ) -> dict[str, Any]:
        """Those of the tokens that are sent, after those of the prompt where they are wanted."""
        drawn = [x for output in outputs for x in output.logprobs or ()][: len(tokens)]
        logprobs: list[TokenLogprobs | None] = [*drawn]
        offsets = [] if text is None else text.offsets
        before = outputs[0].prompt_logprobs
        if before is not None and text is not None:  # `echo` needs a tokenizer
            prompt, places = text.read_prompt()
            first = [None][: len(prompt)]  # as OpenAI has it
            tokens, offsets = [*prompt, *tokens], [*places, *offsets]
            logprobs = [*first, *before, *logprobs]
        return self._words.describe(tokens, logprobs, offsets)

    def _text(self, index: int) -> _ChoiceText:
        if index not in self._texts:
            place = index // self._requests[0].sampling.n
            echo = self._echoes[place] if self._echoes else ""
            self._texts[index] = _ChoiceText(self._tokenizer, self._requests[place], echo)
        return self._texts[index]


class ChatCompletion:
    """The answer to a chat: the same content in another form.

    Args:
        completion: its texts are the messages.
        most_logprobs: of the likeliest tokens, beside each token that has its own.
    """

    def __init__(self, completion: Completion, most_logprobs: int) -> None:
        self._completion, self._most_logprobs = completion, most_logprobs
        self.prompt_tokens, self.state_ids = completion.prompt_tokens, completion.state_ids
        self._begun: set[int] = set()

    def parts(self, outputs: list[Output]) -> list[dict[str, Any]]:
        """As those of `Completion`."""
        return [self._convert(part, "delta") for part in self._completion.parts(outputs)]

    def whole(self, outputs: list[Output]) -> dict[str, Any]:
        """As that of `Completion`."""
        return self._convert(self._completion.whole(outputs), "message")

    def end(self) -> dict[str, Any]:
        """As that of `Completion`."""
        return self._convert(self._completion.end(), "delta")

    def _convert(self, content: dict[str, Any], place: str) -> dict[str, Any]:
        kind = "chat.completion.chunk" if place == "delta" else "chat.completion"
        choices = [self._convert_choice(choice, place) for choice in content["choices"]]
        return {**content, "id": f"chat{content['id']}", "object": kind, "choices": choices}

    def _convert_choice(self, choice: dict[str, Any], place: str) -> dict[str, Any]:
        """The role comes once, because clients join the texts of all parts."""
        message = {"content": choice.pop("text")}
        if choice["index"] not in self._begun:
            self._begun.add(choice["index"])
            message = {"role": "assistant", **message}
        if "logprobs" in choice:
            choice["logprobs"] = convert_to_chat(choice["logprobs"], self._most_logprobs)
        return {**choice, place: message}


class _ChoiceText:
    """The text of a sequence up to its first stop string, part by part.

    Args:
        tokenizer: decodes.
        request: of the sequence.
        echo: comes first.

    Attributes:
        offsets: where the texts of the tokens begin that were added last.
    """

    def __init__(self, tokenizer: Any, request: Request, echo: str) -> None:
        prompt: Any = request.prompt
        continues, self._owes = request.state is not None, request.return_state
        context = [*contexts_of(request.state)[0], *prompt]
        self._parts = TextParts(tokenizer, context, owes=continues and not prompt)
        self._strings: Any = request.stop_strings or ()
        self._echo, self._waiting = echo, ""
        self.offsets: list[int] = []
        self._length = len(echo)
        self._tokenizer, self._prompt = tokenizer, prompt

    def add(self, tokens: Sequence[int], ends: bool) -> str:
        """The text that new tokens add; what may become a stop string waits."""
        new, self.offsets = "", []
        for token in tokens:
            self.offsets.append(self._length + len(new))
            new += self._parts.add(token)
        new += self._parts.end(self._owes) if ends else ""
        self._length += len(new)
        text = self._waiting + new
        cut = self._find_stop(text, ends)
        echo, self._echo, self._waiting = self._echo, "", text[cut:]
        return echo + text[:cut]

    def read_prompt(self) -> tuple[list[int], list[int]]:
        """The tokens of the prompt, and where their texts begin."""
        parts, offsets, length = TextParts(self._tokenizer), [], 0
        for token in self._prompt:
            offsets.append(length)
            length += len(parts.add(token))
        return self._prompt, offsets

    def _find_stop(self, text: str, ends: bool) -> int:
        """Where a stop string begins, or may begin with text that has not come yet."""
        places = [place for string in self._strings if (place := text.find(string)) >= 0]
        if places or ends:
            return min(places, default=len(text))
        longest = max(map(len, self._strings), default=0)
        for place in range(max(0, len(text) - longest + 1), len(text)):
            if any(string.startswith(text[place:]) for string in self._strings):
                return place
        return len(text)
