"""Prompts, also of different lengths, and the sequences made from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from linattn_core.errors import expected, quote
from linattn_models.heads import Head
from linattn_models.heads.base import check_tokens, token_shape
from linattn_models.state import DecodingState
from linattn_models.validation import at_least, boolean, lengths_within

# (B, P) or (B, P, 3) tokens; an array of them; or the tokens of each sequence.
Tokens = Tensor | Sequence[Any]


class TokenSource(Protocol):
    """What continues prompts: a model of tokens, or a decoder compiled from one.

    Attributes:
        head: the distribution of a token.
        max_length: the default number of tokens in a sequence, or None.
        longest: the most tokens of a sequence; None for no limit.
        device: where tokens and parameters are.
    """

    head: Head
    max_length: int | None

    @property
    def longest(self) -> int | None: ...

    @property
    def device(self) -> torch.device: ...


@dataclass(frozen=True)
class Prompt:
    """The prefixes of sequences, each to be continued to the same length or by as many tokens.

    Step i of generation draws the token at position lengths[b] + i of row b. A row that is
    complete earlier, because its prefix is longer, goes on; its later draws are ignored.

    Attributes:
        tokens: (B, P) or (B, P, 3) int64; 0 past a row's own length.
        lengths: (B,) int64, each row's own length; None when all are P.
        length: tokens of a complete sequence, of the longest one with `new_tokens`.
        shortest: the smallest of the lengths.
        new_tokens: tokens to draw for every row; None where rows are continued to `length`.
        state: the state of the B rows before the tokens; its tokens do not count in the lengths.
        keeps_state: whether the state after the last token is wanted; it takes one more position.
    """

    tokens: Tensor
    lengths: Tensor | None
    length: int
    shortest: int
    new_tokens: int | None = None
    state: DecodingState | None = None
    keeps_state: bool = False

    @classmethod
    def of(cls, tokens: Tensor, length: int) -> Prompt:
        """The prompt of (B, P) or (B, P, 3) tokens, all of them known."""
        return cls(tokens, None, length, tokens.shape[1])

    @property
    def batch(self) -> int:
        """B, the sequences."""
        return self.tokens.shape[0]

    @property
    def positions(self) -> int:
        """The positions of the longest sequence: with the start, without its last token."""
        return _count_tokens(self.state) + self.length + self.keeps_state

    @property
    def steps(self) -> int:
        """The most tokens to draw for a row."""
        return self.length - self.shortest if self.new_tokens is None else self.new_tokens

    @property
    def steps_of_rows(self) -> Tensor:
        """(B,) tokens to draw for each row."""
        if self.lengths is None or self.new_tokens is not None:
            return torch.full((self.batch,), self.steps, device=self.tokens.device)
        return self.length - self.lengths

    @property
    def known(self) -> tuple[Tensor, Tensor | None]:
        """The tokens and lengths to prefill, at most `length` - 1: one token is left to draw."""
        room = self.length - 1
        lengths = None if self.lengths is None else self.lengths.clamp(max=room)
        return self.tokens[:, :room], lengths

    def check_stateless(self) -> None:
        """Refuses `state` and `return_state`, for methods without a state."""
        if self.state is not None or self.keeps_state:
            advice = "pass method='stateful', or leave out state and return_state"
            got = "method 'rerun', which runs all tokens again"
            raise ValueError(expected("a state", "a model that steps", got, advice))

    def repeat(self, times: int) -> Prompt:
        """Each row repeated `times` times, in consecutive rows."""
        if times == 1:
            return self
        lengths = None if self.lengths is None else self.lengths.repeat_interleave(times, 0)
        return replace(self, tokens=self.tokens.repeat_interleave(times, 0), lengths=lengths)

    def hide_complete(self, step: int, drawn: Tensor) -> Tensor:
        """The tokens (B,) or (B, 3) drawn at a step, -1 in rows that are already complete."""
        if self.lengths is None or self.new_tokens is not None:
            return drawn.clone()
        complete = self.lengths + step >= self.length  # (B,)
        return drawn.masked_fill(complete.view(-1, *[1] * (drawn.ndim - 1)), -1)

    def join(self, drawn: list[Tensor]) -> Tensor:
        """The sequences (B, N) or (B, N, 3): each row's prefix, its drawn tokens, then -1.

        N is the length of the longest sequence.
        """
        if self.lengths is None or not drawn:
            return torch.cat([self.tokens, *(token.unsqueeze(1) for token in drawn)], 1)
        device = self.tokens.device
        most = self.tokens.shape[1]  # tokens of the longest prefix
        positions = torch.arange(min(self.length, most + len(drawn)), device=device)
        steps = positions - self.lengths.unsqueeze(1)  # (B, N), negative inside the prefix
        rows = torch.arange(self.batch, device=device).unsqueeze(1)
        beyond = torch.full_like(drawn[0], -1)
        tokens = torch.stack([*drawn, beyond], 1)[rows, steps.clamp(0, len(drawn))]
        inside = steps[:, :most] < 0
        tokens[:, :most][inside] = self.tokens[inside]
        longest = (tokens >= 0).flatten(2).any(2) if tokens.ndim > 2 else tokens >= 0
        return tokens[:, : int(longest.any(0).sum())]


def read_prompt(
    source: TokenSource,
    batch: int | None,
    prefix: Tokens | None,
    prefix_lengths: Tensor | None,
    length: int | None,
    max_new_tokens: int | None,
    state: DecodingState | None,
    keeps_state: bool = False,
) -> Prompt:
    """The prompt of the arguments of `generate`, checked."""
    if state is not None and not isinstance(state, DecodingState):
        raise TypeError(expected("state", "a DecodingState", f"a {type(state).__name__}"))
    boolean("return_state", keeps_state)
    if state is not None:
        batch = state.batch if batch is None else batch
        if batch != state.batch:
            raise ValueError(expected("state", f"{batch} sequences", state.batch))
    if not (prefix is None or isinstance(prefix, Tensor)):
        prefix, prefix_lengths = _as_tensors(prefix, prefix_lengths, source.device)
    prefix = _check_prefix(source, batch, prefix, prefix_lengths)
    tokens, lengths, shortest = _pad(prefix, prefix_lengths)
    before = _count_tokens(state)
    known = None if max_new_tokens is None else tokens.shape[1]
    if max_new_tokens is None:
        room = keeps_state and source.longest is not None
        length = default_length(source, length, before + room)
        if prefix.shape[1] > length:
            wanted = f"at most the {length} tokens of a whole sequence"
            raise ValueError(expected("prefix", wanted, prefix.shape[1]))
    else:
        if length is not None:
            raise ValueError(expected("max_new_tokens", "no length beside it", f"length={length}"))
        max_new_tokens = at_least("max_new_tokens", max_new_tokens, 1)
        length = tokens.shape[1] + max_new_tokens
    check_length(source, length, before, keeps_state, known)
    check_tokens(source.head, tokens)
    prompt = Prompt(tokens, lengths, length, shortest, max_new_tokens, state, keeps_state)
    if keeps_state and not prompt.steps:
        wanted = "more tokens than the prefixes have with return_state"
        raise ValueError(expected("length", wanted, length, "prefill returns the state of prompts"))
    return prompt


def default_length(source: TokenSource, length: int | None, before: int = 0) -> int:
    """The length; by default the model's `max_length` less the tokens that a state has read."""
    if length is not None:
        return at_least("length", length, 1)
    if source.max_length is None:
        advice = "the model has no max_length, so pass length"
        raise ValueError(expected("length", "a number of tokens", None, advice))
    if source.max_length <= before:
        wanted = f"a number of tokens where a state has read max_length {source.max_length}"
        raise ValueError(expected("length", wanted, None, "pass length"))
    return source.max_length - before


def check_length(
    source: TokenSource,
    length: int,
    before: int = 0,
    keeps_state: bool = False,
    known: int | None = None,
) -> None:
    """Refuses a length for which the model has too few positions.

    Args:
        known: tokens of the longest prefix, where the others are `max_new_tokens`.
    """
    longest = source.longest
    if longest is not None and length + before + keeps_state > longest:
        wanted = f"at most the model's {longest} positions"
        name = "length" if known is None else "max_new_tokens"
        got = f"{length}" if known is None else f"{length - known} after a prefix of {known}"
        got += f" after the {before} of the state" if before else ""
        got += ", and one more for the state that is returned" if keeps_state else ""
        raise ValueError(expected(name, wanted, got))


def _count_tokens(state: DecodingState | None) -> int:
    """The tokens that a state has read, in the row with the most: the start vector is none."""
    return 0 if state is None else max(0, state.cursor.furthest - 1)


def _pad(prefix: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor | None, int]:
    """The prefixes with 0 past each row's length, their lengths (None: all P) and the shortest."""
    if lengths is None:
        return prefix, None, prefix.shape[1]
    low, high = lengths_within("prefix_lengths", lengths, *prefix.shape[:2])
    lengths = lengths.to(prefix.device, torch.int64)
    prefix = prefix[:, :high]
    beyond = torch.arange(high, device=prefix.device) >= lengths.unsqueeze(1)  # (B, P)
    prefix = prefix.masked_fill(beyond.view(*beyond.shape, *[1] * (prefix.ndim - 2)), 0)
    return prefix, None if low == high else lengths, low


def _as_tensors(
    prefix: Sequence[Any], lengths: Tensor | None, device: torch.device
) -> tuple[Tensor, Tensor | None]:
    """An array or lists as tokens and lengths on the model's device."""
    is_array = hasattr(prefix, "__array__")
    if lengths is not None and not is_array:
        advice = "pass lists of each sequence's own length"
        raise ValueError(expected("prefix_lengths", "None beside lists", "lengths", advice))
    if not is_array and not (isinstance(prefix, Sequence) and len(prefix)):
        raise ValueError(expected("prefix", "at least one list of tokens", quote(prefix)))
    try:
        if is_array:
            return _as_tokens(prefix, device), lengths
        rows = [_as_tokens(row, device) for row in prefix]
        if all(row.ndim for row in rows):
            padded = pad_sequence(rows, batch_first=True)
            return padded, torch.tensor([len(row) for row in rows], device=device)
    except (TypeError, ValueError, RuntimeError, IndexError) as error:
        wanted = "a tensor, an array, or a list of tokens for each sequence"
        raise TypeError(expected("prefix", wanted, quote(prefix), quote(error))) from None
    wanted, advice = "a list of tokens for each sequence", "pass [[1, 2, 3]] for one sequence"
    raise TypeError(expected("prefix", wanted, quote(prefix), advice))


def _as_tokens(row: Any, device: torch.device) -> Tensor:
    tokens = torch.as_tensor(row, device=device)
    if tokens.numel() and (tokens.is_floating_point() or tokens.dtype == torch.bool):
        raise TypeError("no tokens")
    return tokens.long()


def _check_prefix(
    source: TokenSource,
    batch: int | None,
    prefix: Tensor | None,
    prefix_lengths: Tensor | None,
) -> Tensor:
    """The prefix, which must fit; an empty one for None."""
    if batch is not None:
        batch = at_least("batch", batch, 1)
    extra = token_shape(source.head)
    if prefix is None:
        if prefix_lengths is not None:
            advice = "pass both or neither"
            raise ValueError(expected("prefix_lengths", "a prefix beside them", "none", advice))
        return torch.empty(batch or 1, 0, *extra, dtype=torch.int64, device=source.device)
    if prefix.ndim != 2 + len(extra) or tuple(prefix.shape[2:]) != extra:
        shape = f"shape ({', '.join(map(str, ('batch', 'length', *extra)))})"
        raise ValueError(expected("prefix", shape, tuple(prefix.shape)))
    if prefix.device != source.device:
        where = f"tokens on the model's {source.device}"
        raise ValueError(expected("prefix", where, prefix.device, "move one of them by .to()"))
    if prefix.shape[0] < 1 or batch not in (None, prefix.shape[0]):
        raise ValueError(expected("prefix", f"{batch or 'at least 1'} rows", prefix.shape[0]))
    return prefix
