"""Prompts, also of different lengths, and the sequences made from them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from linattn_core.errors import expected, quote
from linattn_models.basics.packing import past_lengths
from linattn_models.basics.validation import as_int, at_least, boolean, instance, lengths_within
from linattn_models.heads import Head
from linattn_models.heads.base import check_batch, check_tokens, token_shape
from linattn_models.heads.tokenizer import encode_text, require_tokenizer
from linattn_models.state import DecodingState

# A number of tokens, or one for each row.
Count = int | Sequence[int] | Tensor
# The most tokens of a sequence: more than any program draws.
ENDLESS = 1 << 48
# More sequences than any program draws side by side.
MOST_SEQUENCES = 1 << 20
# (B, P) or (B, P, 3) tokens; an array of them; the tokens of each sequence; or texts.
Tokens = Tensor | Sequence[Any]


class TokenSource(ABC):
    """What continues prompts: a model of tokens, or a decoder compiled from one.

    Attributes:
        head: the distribution of a token.
        max_length: the default number of tokens in a sequence, or None.
        tokenizer: encodes texts; None without one.
    """

    head: Head
    max_length: int | None
    tokenizer: Any

    @property
    @abstractmethod
    def has_start(self) -> bool:
        """Whether a start vector takes position 0."""

    @property
    @abstractmethod
    def longest(self) -> int | None:
        """The most tokens of a sequence; None for no limit."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where tokens and weights are."""

    def most_tokens(self, positions: int | None) -> int | None:
        """The most tokens that fit into so many positions; None for no limit."""
        return None if positions is None else positions - int(self.has_start)


@dataclass(frozen=True)
class Prompt:
    """The prefixes of sequences, each to be continued to its own end.

    Step i of generation draws the token at position lengths[b] + i of row b. A row that is
    complete earlier than others goes on; its later draws are ignored.

    Attributes:
        tokens: (B, P) or (B, P, 3) int64; 0 past a row's own length.
        lengths: (B,) int64, each row's own length; None when all are P.
        length: tokens of a complete sequence, of the longest one if they differ.
        steps: the most tokens to draw for a row.
        ends: (B,) int64, tokens of each complete sequence; None where all have `length`.
        ends_together: whether `steps` tokens are drawn for every row.
        state: the state of the B rows before the tokens; its tokens do not count in the lengths.
        keeps_state: whether the state after the last token is wanted; behind a start vector, it
            takes one more position.
        has_start: whether a start vector takes position 0.
        continues: whether a state came before the tokens, also where `state` is left out.
    """

    tokens: Tensor
    lengths: Tensor | None
    length: int
    steps: int
    ends: Tensor | None = None
    ends_together: bool = True
    state: DecodingState | None = None
    keeps_state: bool = False
    has_start: bool = True
    continues: bool = False

    @property
    def batch(self) -> int:
        """B, the sequences."""
        return self.tokens.shape[0]

    @property
    def owes_text(self) -> list[bool]:
        """The `owes` of `TextParts` for each row: whether it continues a state without a prefix."""
        return [self.continues and not length for length in self.row_lengths.tolist()]

    @property
    def row_lengths(self) -> Tensor:
        """(B,) tokens of each row's prefix."""
        return self._of_rows(self.lengths, self.tokens.shape[1])

    @property
    def row_ends(self) -> Tensor:
        """(B,) tokens of each complete sequence."""
        return self._of_rows(self.ends, self.length)

    @property
    def tokens_before(self) -> Tensor:
        """(B,) int64 on the CPU, the tokens that the state of each row has read."""
        return _count_read_tokens(self.state, self.batch, self.has_start)

    @property
    def positions(self) -> int:
        """The positions to make room for: those of the start and of all tokens that are read."""
        before: int | Tensor = 0 if self.state is None else self.tokens_before
        ends = self.length if self.ends is None else self.ends.cpu()
        return int(torch.as_tensor(before + ends).max()) + (self.keeps_state and self.has_start)

    @property
    def steps_of_rows(self) -> Tensor:
        """(B,) tokens to draw for each row."""
        return self.row_ends - self.row_lengths

    @property
    def known(self) -> tuple[Tensor, Tensor | None]:
        """The tokens and lengths to prefill.

        Of a complete row without its last token, which may have no position; all of them where its
        state is wanted.
        """
        if self.keeps_state:
            return self.tokens, self.lengths
        tokens = self.tokens[:, : self.length - 1]
        whole = self.tokens.shape[1]
        if self.lengths is None and (self.ends is None or bool((self.ends > whole).all())):
            return tokens, None
        return tokens, self.row_lengths.minimum(self.row_ends - 1).clamp(min=0)

    def repeat(self, times: int) -> Prompt:
        """Each row repeated `times` times, in consecutive rows; without its state."""
        if times == 1:
            return self
        tokens, lengths, ends = (
            None if x is None else x.repeat_interleave(times, 0)
            for x in (self.tokens, self.lengths, self.ends)
        )
        return replace(self, tokens=cast(Tensor, tokens), lengths=lengths, ends=ends, state=None)

    def hide_complete(self, step: int, drawn: Tensor) -> Tensor:
        """The tokens (B,) or (B, 3) drawn at a step, -1 in rows that are already complete."""
        if self.ends_together:
            return drawn.clone()
        complete = self.row_lengths + step >= self.row_ends  # (B,)
        return drawn.masked_fill(complete.view(-1, *[1] * (drawn.ndim - 1)), -1)

    def join(self, blocks: list[Tensor]) -> Tensor:
        """The sequences (B, N) or (B, N, 3): each row's prefix, its drawn tokens, then -1.

        N is the length of the longest sequence.

        Args:
            blocks: the tokens (steps, B) or (steps, B, 3) of one or more steps each.
        """
        drawn = torch.cat([self.tokens[:, :0], *(block.transpose(0, 1) for block in blocks)], 1)
        if self.lengths is None and self.ends_together:
            return torch.cat([self.tokens, drawn], 1)
        device = self.tokens.device
        most = self.tokens.shape[1]  # tokens of the longest prefix
        count = drawn.shape[1]
        positions = torch.arange(min(self.length, most + count), device=device)
        steps = positions - self.row_lengths.unsqueeze(1)  # (B, N), negative inside the prefix
        beyond = steps >= self.steps_of_rows.unsqueeze(1)
        steps = steps.clamp(0, count).masked_fill(beyond, count)
        rows = torch.arange(self.batch, device=device).unsqueeze(1)
        nothing = self.tokens.new_full((self.batch, 1, *self.tokens.shape[2:]), -1)
        tokens = torch.cat([drawn, nothing], 1)[rows, steps]
        inside = positions[:most] < self.row_lengths.unsqueeze(1)
        tokens[:, :most][inside] = self.tokens[inside]
        longest = (tokens >= 0).flatten(2).any(2) if tokens.ndim > 2 else tokens >= 0
        return tokens[:, : int(longest.any(0).sum())]

    def _of_rows(self, numbers: Tensor | None, number: int) -> Tensor:
        if numbers is not None:
            return numbers
        return torch.full((self.batch,), number, device=self.tokens.device)


def read_prompt(
    source: TokenSource,
    batch: int | None,
    prefix: Tokens | None = None,
    prefix_lengths: Tensor | None = None,
    length: Count | None = None,
    max_new_tokens: Count | None = None,
    state: DecodingState | None = None,
    keeps_state: bool = False,
    room: int | None = None,
) -> Prompt:
    """The prompt of the arguments of `generate`, checked.

    Args:
        room: positions that a state may have, for a batch that allocates them once; None for those
            of the model.
    """
    if state is not None:
        instance("state", state, DecodingState)
    boolean("return_state", keeps_state)
    if isinstance(batch, Tensor | str | list) and as_int(batch) is None:
        advice = "pass texts and tokens as prefix="
        raise ValueError(expected("batch", "a number", f"a {type(batch).__name__}", advice))
    if state is not None:
        batch = state.batch if batch is None else batch
        if batch != state.batch:
            raise ValueError(expected("state", f"{batch} sequences", state.batch))
    begins = state is None and not source.has_start
    tokens, lengths = read_prefix(source, batch, prefix, prefix_lengths, begins=begins)
    known = torch.full((len(tokens),), tokens.shape[1]) if lengths is None else lengths.cpu()
    ends = _read_ends(source, known, length, max_new_tokens, state, keeps_state, room)
    steps = ends - known
    low, high = (int(bound) for bound in steps.aminmax())
    longest = int(ends.max())
    is_same = bool((ends == longest).all())
    if keeps_state and not high:
        wanted = "more tokens than the prefixes have with return_state"
        advice = "prefill returns the state of prompts"
        raise ValueError(expected("length", wanted, longest, advice))
    return Prompt(
        tokens,
        lengths,
        longest,
        high,
        None if is_same else ends.to(source.device),
        low == high,
        state,
        keeps_state,
        source.has_start,
        state is not None,
    )


def read_prefix(
    source: TokenSource,
    batch: int | None,
    prefix: Tokens | None,
    lengths: Tensor | None = None,
    *,
    begins: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """The tokens (B, P) or (B, P, 3), 0 past a row's length, and the lengths; None if all are P.

    Args:
        begins: of texts, as for `encode_text`.
    """
    if isinstance(prefix, Tensor) and prefix.device != source.device:
        where = f"tokens on the model's {source.device}"
        raise ValueError(expected("prefix", where, prefix.device, "move one of them by .to()"))
    if not (prefix is None or isinstance(prefix, Tensor)):
        prefix, lengths = _as_tensors(_encode_texts(source.tokenizer, prefix, begins), lengths)
    tokens, lengths = _pad(_check_prefix(source.head, batch, prefix, lengths), lengths)
    check_tokens(source.head, tokens, what="prefix")  # on the CPU, where lists still are
    tokens = tokens.to(source.device)
    return tokens, None if lengths is None else lengths.to(source.device)


def _read_ends(
    source: TokenSource,
    known: Tensor,
    length: Count | None,
    max_new_tokens: Count | None,
    state: DecodingState | None,
    keeps_state: bool,
    room: int | None,
) -> Tensor:
    """The tokens (B,) of each whole sequence, on the CPU; an error if no row has room for all."""
    before = _count_read_tokens(state, len(known), source.has_start)
    needs_more = keeps_state and source.has_start  # a position, to read the last token
    longest = min((most for most in (source.longest, room) if most is not None), default=None)
    if max_new_tokens is not None:
        if length is not None:
            got = f"length={quote(length)}"
            raise ValueError(expected("max_new_tokens", "no length beside it", got))
        ends = known + _read_counts("max_new_tokens", max_new_tokens, len(known))
    elif length is not None:
        ends = _read_counts("length", length, len(known))
    else:
        taken = before + int(needs_more and longest is not None)
        ends = (_default_length(source, int(taken.min())) - taken).clamp(min=0)
    if longest is not None:
        most = longest - int(needs_more) - before
        if bool((ends > most).all()):
            row = int((ends - most).argmin())
            prefix = None if max_new_tokens is None else int(known[row])
            raise _too_long(longest, int(ends[row]), int(before[row]), needs_more, prefix)
        ends = ends.minimum(most)
    if bool((known > ends).any()):
        row = int((known - ends).argmax())
        wanted = f"at most the {int(ends[row])} tokens of a whole sequence"
        raise ValueError(expected("prefix", wanted, int(known[row])))
    return ends


def _read_counts(name: str, counts: Count, batch: int) -> Tensor:
    """One number of tokens for all rows, or one for each, as (B,) int64."""
    single = as_int(counts)
    if single is not None:
        return torch.full((batch,), _read_count(name, single))
    several: object = counts.tolist() if hasattr(counts, "tolist") else counts
    if not isinstance(several, Sequence) or isinstance(several, str) or len(several) != batch:
        wanted = f"an integer of at least 1, or one for each of {batch} rows"
        raise ValueError(expected(name, wanted, quote(counts)))
    return torch.tensor([_read_count(name, count) for count in several], dtype=torch.int64)


def _read_count(name: str, value: object) -> int:
    count = at_least(name, value, 1)
    if count > ENDLESS:
        raise ValueError(expected(name, f"at most {ENDLESS}", quote(value)))
    return count


def _default_length(source: TokenSource, before: int) -> int:
    """The model's `max_length`, if it is more than a state has read."""
    most = source.max_length
    if most is None:
        advice = "pass it or max_new_tokens; the model has no max_length as a default"
        raise ValueError(expected("length", "a number of tokens", None, advice))
    if most <= before:
        advice = f"the state has read {before} tokens of the model's max_length {most}"
        raise ValueError(expected("length", "a number of tokens", None, advice))
    return most


def _too_long(
    longest: int, length: int, before: int, needs_more: bool, known: int | None
) -> ValueError:
    """The error for a length for which there are too few positions.

    Args:
        needs_more: whether the state that is returned takes a position, too.
        known: tokens of the prefix, where the others are `max_new_tokens`.
    """
    name = "length" if known is None else "max_new_tokens"
    got = f"{length}" if known is None else f"{length - known} after a prefix of {known}"
    got += f" after the {before} of the state" if before else ""
    got += ", and the state that is returned needs one more" if needs_more else ""
    return ValueError(expected(name, f"at most the model's {longest} positions", got))


def _count_read_tokens(state: DecodingState | None, batch: int, has_start: bool) -> Tensor:
    """(B,) int64 on the CPU, the tokens that each row's state has read, without a start vector."""
    if state is None:
        return torch.zeros(batch, dtype=torch.int64)
    return (state.cursor.rows(batch).cpu() - int(has_start)).clamp(min=0)


def _pad(prefix: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """The prefixes with 0 past each row's length, and their lengths (None: all P)."""
    if lengths is None:
        return prefix, None
    low, high = lengths_within("prefix_lengths", lengths, *prefix.shape[:2])
    lengths = lengths.to(prefix.device, torch.int64)
    prefix = prefix[:, :high]
    beyond = past_lengths(lengths, high)
    prefix = prefix.masked_fill(beyond.view(*beyond.shape, *[1] * (prefix.ndim - 2)), 0)
    return prefix, None if low == high else lengths


def _encode_texts(tokenizer: Any, prefix: Sequence[Any], begins: bool) -> Sequence[Any]:
    """The tokens of a text or of several; other prefixes as they are."""
    texts = [prefix] if isinstance(prefix, str) else prefix
    if not isinstance(texts, list | tuple) or not any(isinstance(text, str) for text in texts):
        return prefix
    require_tokenizer("prefix", tokenizer)
    if not all(isinstance(text, str) for text in texts):
        raise TypeError(expected("prefix", "texts alone, or tokens alone", quote(prefix)))
    return [encode_text(tokenizer, text, begins=begins) for text in texts]


def _as_tensors(prefix: Sequence[Any], lengths: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """An array or lists as tokens and lengths, on the CPU."""
    is_array = hasattr(prefix, "__array__")
    if lengths is not None and not is_array:
        advice = "pass lists of each sequence's own length"
        raise ValueError(expected("prefix_lengths", "None beside lists", "lengths", advice))
    if not is_array and not (isinstance(prefix, Sequence) and len(prefix)):
        raise ValueError(expected("prefix", "at least one list of tokens", quote(prefix)))
    try:
        if is_array:
            return _as_tokens(prefix), lengths
        rows = list(map(_as_tokens, prefix))
        if all(row.ndim for row in rows):
            return pad_sequence(rows, batch_first=True), torch.tensor([*map(len, rows)])
    except (TypeError, ValueError, RuntimeError, IndexError) as error:
        wanted = "a tensor, an array, or a list of tokens for each sequence"
        raise TypeError(expected("prefix", wanted, quote(prefix), quote(error))) from None
    wanted, advice = "a list of tokens for each sequence", "pass [[1, 2, 3]] for one sequence"
    raise TypeError(expected("prefix", wanted, quote(prefix), advice))


def _as_tokens(row: Any) -> Tensor:
    """An array or a list of tokens as int64; TypeError for numbers of other kinds."""
    tokens = torch.as_tensor(row, device="cpu")
    if tokens.numel() and (tokens.is_floating_point() or tokens.dtype == torch.bool):
        raise TypeError("no tokens")
    return tokens.long()


def _check_prefix(
    head: Head, batch: int | None, prefix: Tensor | None, prefix_lengths: Tensor | None
) -> Tensor:
    """The prefix, which must fit; an empty one for None."""
    if batch is not None:
        batch = at_least("batch", batch, 1)
        if batch > MOST_SEQUENCES:
            raise ValueError(expected("batch", f"at most {MOST_SEQUENCES:,}", batch))
    if prefix is None:
        if prefix_lengths is not None:
            advice = "pass both or neither"
            raise ValueError(expected("prefix_lengths", "a prefix beside them", "none", advice))
        return torch.empty(batch or 1, 0, *token_shape(head), dtype=torch.int64)
    check_batch(head, prefix, "prefix")
    if prefix.shape[0] < 1 or batch not in (None, prefix.shape[0]):
        raise ValueError(expected("prefix", f"{batch or 'at least 1'} rows", prefix.shape[0]))
    return prefix
