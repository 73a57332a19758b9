"""`generate`, `stream` and `beam_search`, which models and compiled decoders inherit."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypedDict, Unpack

import torch
from torch import Tensor

from linattn_core.decoder_spec import DecoderDescription
from linattn_core.errors import expected, near
from linattn_models.basics.validation import as_int, boolean, in_range
from linattn_models.decoding.beams import Hypotheses, check_beams, search_beams
from linattn_models.decoding.prompts import (
    ENDLESS,
    MOST_SEQUENCES,
    Count,
    Prompt,
    Tokens,
    TokenSource,
    read_prompt,
)
from linattn_models.decoding.rows import Stepper
from linattn_models.decoding.sampling import SamplingParams, Settings
from linattn_models.decoding.stopping import Run, TokenStream, read_stop, read_stop_tokens
from linattn_models.heads import Head
from linattn_models.heads.settings import PerRow
from linattn_models.heads.tokenizer import (
    check_tokenizer,
    decode_tokens,
    read_tokens,
    require_tokenizer,
)
from linattn_models.layers.config import TransformerConfig
from linattn_models.state import DecodingState, KeyValueCache
from linattn_models.weights.fingerprint import refuse_others


class PromptOptions(TypedDict, total=False):
    """Arguments of `generate`, `stream` and `beam_search`."""

    prefix: Tokens | None
    prefix_lengths: Tensor | None
    length: Count | None
    max_new_tokens: Count | None
    state: DecodingState | None
    stop_tokens: int | Sequence[int] | None
    method: str
    decoder: Any


class Options(PromptOptions, total=False):
    """Arguments of `generate` and `stream`."""

    return_state: bool
    num_samples: int
    temperature: PerRow
    top_k: int | Sequence[int | None] | Tensor | None
    top_p: PerRow | None
    min_p: PerRow | None
    repetition_penalty: PerRow
    stop_strings: str | Sequence[str] | None
    seeds: int | Sequence[int] | Tensor | None
    generator: torch.Generator | None
    progress: bool


class StreamOptions(Options, total=False):
    """Arguments of `stream`."""

    text: bool


# The fields of SamplingParams that have another name as arguments.
_ARGUMENTS = {"seed": "seeds", "n": "num_samples"}


class GenerationMixin(Stepper, TokenSource):
    """Gives a model of tokens, or a decoder of one, `generate`, `stream` and `beam_search`."""

    head: Head
    _tokenizer: Any = None

    @property
    def tokenizer(self) -> Any:
        """What turns text into the model's tokens and back: None, until it is set.

        A `ByteTokenizer`, a `CharacterTokenizer`, or a `Tokenizer` of the library `tokenizers`,
        with the vocabulary of the model. Prefixes and stop strings may then be text.
        """
        return self._tokenizer

    @tokenizer.setter
    def tokenizer(self, tokenizer: Any) -> None:
        if tokenizer is not None:
            check_tokenizer("tokenizer", tokenizer, self.head)
        self._tokenizer = tokenizer

    def decode(self, tokens: Any) -> Any:
        """The text of tokens, by the model's tokenizer; -1, which fills rows, is left out.

        Args:
            tokens: (N,) integers, or (B, N), or a list of rows of any lengths; or a single one.

        Returns:
            A str for (N,), a list of them for rows.

        Raises:
            ValueError: a model without a tokenizer, or a token that it does not have.
            TypeError: not integers.
        """
        require_tokenizer("decode", self.tokenizer)
        if isinstance(tokens, list | tuple) and tokens and as_int(tokens[0]) is None:
            return [self._decode_row(read_tokens(row, most_dims=1).tolist()) for row in tokens]
        numbers = torch.atleast_1d(read_tokens(tokens))
        if numbers.ndim > 1:
            return list(map(self._decode_row, numbers.tolist()))
        return self._decode_row(numbers.tolist())

    def _decode_row(self, row: list[int]) -> str:
        largest = max(row, default=0)
        if largest >= self.head.levels:
            wanted = f"tokens in 0..{self.head.levels - 1}, or -1"
            raise ValueError(expected("tokens", wanted, largest))
        return decode_tokens(self.tokenizer, [token for token in row if token >= 0])

    @property
    @abstractmethod
    def config(self) -> TransformerConfig:
        """The configuration of the layers."""

    @abstractmethod
    def fingerprint(self) -> str | None:
        """The digest of the weights, which is in the states that they make; None if not known."""

    @abstractmethod
    def choose_source(self, method: str, decoder: Any, prompt: Prompt) -> Stepper:
        """Checks method and decoder; returns what makes the steps after the prompt."""

    def generate(self, batch: int | None = None, **options: Unpack[Options]) -> Any:
        """Generates sequences of `length` tokens: the prefixes, continued by tokens that are drawn.

        Args:
            batch: B, sequences drawn side by side; by default that of the prefix or the state, or
                1. A model with dropout must be in evaluation mode.
            prefix: (B, P) int64 or (B, P, 3), the first tokens of each sequence; or an array, or
                lists of tokens, one for each sequence and of any lengths; or texts, one or a list,
                which the model's `tokenizer` encodes without special tokens around them.
            prefix_lengths: (B,) int in 0..P, for prefixes of different lengths; tokens past a row's
                length are ignored. Each row continues from its own position, with the same result
                as if it were alone (to rounding, which depends on the batch; see
                `compile_decoder` for decoders with weights in bfloat16).
            length: tokens in a complete sequence, including the prefix but not the tokens that
                `state` has read; by default `max_length`, less the tokens that `state` has read. A
                number, or one for each of the B rows. A row that reaches the model's last position
                before ends there; if all rows do, the call is refused.
            max_new_tokens: in place of `length`, the number of tokens drawn for each sequence,
                whatever the length of its prefix; a number, or one for each row.
            state: from `prefill`, `step` or `generate`: each row continues there, with its row of
                the prefix if there is one. The state is not changed. One with the fingerprint of
                other weights is refused.
            return_state: also return the state after the last token of each sequence, from which
                `generate`, `prefill` and `step` can continue. It has the fingerprint of the
                weights, and in a model with a start vector it takes one more position.
            num_samples: sequences drawn from each prefix, which is prefilled once; in the result
                they are consecutive rows.
            temperature: 1 draws from the model's distribution, smaller values make likely tokens
                likelier, 0 is greedy; see the head's `sample`. This setting, the next four and
                `seeds` are a number, or one for each of the B rows (its samples share it) or of the
                B * num_samples sequences; None in a list of them switches one off in its row.
            top_k: draw from the `top_k` likeliest tokens, and those equally likely as the last.
            top_p: draw from the fewest likeliest tokens whose probabilities sum to `top_p` or more.
            min_p: draw from tokens at least `min_p` times as likely as the likeliest. A token has
                to pass all three that are set, `top_k` first.
            repetition_penalty: before all this, logits of tokens that the row has in its prefix or
                has drawn are divided by it if above 0, and multiplied by it if not. Tokens that
                `state` has read do not count. This and the filters need a `Categorical` head.
            stop_tokens: a token that ends its sequence, or several. Sequences that have ended are
                dropped from the batch from time to time, to save their cost.
            stop_strings: a string, or several, for a model with a `tokenizer`. A sequence ends with
                the first token with which the text of its new tokens contains one of them.
            seeds: the source of randomness of each row. A row's tokens then depend on its seed, its
                prompt and its settings alone: they are the same alone, in any batch, and continued
                from a state. Samples of a row are independent, and so are rows of a single number.
                They depend on their place in the batch, too: give each sequence a seed of its own
                if you will continue it.
                Each token takes one number from a counter-based generator (Philox 4x32-10), whose
                key is the seed and whose counter is the token's position, and inverts the
                distribution function. Batches of other sizes round logits differently. This can
                change a token only where its random number falls on the border between two tokens,
                or a filter's limit on the probability of one.
            generator: makes the seeds of the sequences, on the model's device; the same seed of it
                gives the same batch the same tokens. By default torch's default generator does.
            progress: show a progress bar on stderr.
            method: "stateful" steps from a state; "rerun" runs all tokens so far for each new one;
                "auto" is "rerun" for attention that cannot step (LSH, softmax with a `past_size`),
                else "stateful". All draw the same random numbers in the same order.
            decoder: what makes the steps. "eager": the model itself. "compiled": a float32 decoder
                compiled from it, or an error with the reason why there is none. "auto": that
                decoder where it can be compiled and packing the weights is worth it (16 steps or
                more, and no autocast), else the model. Or a decoder that `compile_decoder` made. In
                float32 all draw the same tokens from the same seed, except where rounding decides
                between two.

        Returns:
            (B * num_samples, length) or (B * num_samples, length, 3) int64. A sequence ends with
            the token that stops it, and -1 pads sequences to the longest. With `return_state`, a
            tuple of that and a `DecodingState`.

        Raises:
            ValueError, TypeError: wrong arguments, before anything is drawn; or NaN in the outputs
                of the model, with the step (on a GPU only after the last step).

        Cost: `length` steps; "rerun" costs O(length^2) positions (O(length^3) time with softmax).
        The weights packed for "auto" and "compiled" stay in memory as long as the model does, and
        are packed again when the model has changed.
        """
        _check_names("generate", options, Options)
        run = self._plan(batch, options, streams=False)
        tokens = run.sequences.join(list(run))
        return (tokens, run.read_state()) if run.sequences.keeps_state else tokens

    def stream(self, batch: int | None = None, **options: Unpack[StreamOptions]) -> TokenStream:
        """Yields the tokens of each step as soon as they are drawn.

        Step i yields the token at position prefix_lengths[b] + i of each row b. A row is -1 after
        it is complete, which happens earlier for longer prefixes, or has stopped.

        Args:
            text: yield text in place of tokens, for a model with a `tokenizer`: what each step adds
                to the text so far, in whole characters ("" inside of one), and after the last step
                what no token completes. Then the prompt's text and these are the text of all
                tokens. With `return_state`, the text of the stream that continues the state has a
                character that is not whole.
            length, max_new_tokens: as for `generate`. Without them, a model with linear attention
                and no `max_length` never stops, at a fixed cost per token; softmax attention needs
                one of the three, to allocate its cache.
            batch and all others: as for `generate`.

        Yields:
            (B,) or (B, 3) int64, length - min(prefix_lengths) or max_new_tokens times, or until
            all rows have stopped; B counts every sample. With `text`, a str for one sequence, a
            list of B of them for more.

        Raises:
            ValueError, TypeError: as for `generate`: wrong arguments at the call, and on the CPU
                NaN at the token where it occurs.
        """
        _check_names("stream", options, StreamOptions)
        boolean("text", options.get("text", False))
        tokenizer = self.tokenizer if options.get("text") else None
        if options.pop("text", False):
            require_tokenizer("text", tokenizer)
        asked = options.get("length") is not None or options.get("max_new_tokens") is not None
        if not asked and self.max_length is None and not self.config.has_cache:
            options["length"] = ENDLESS
        return TokenStream(self._plan(batch, options, streams=True), tokenizer)

    def beam_search(
        self,
        batch: int | None = None,
        *,
        num_beams: int,
        length_penalty: float = 0.0,
        **options: Unpack[PromptOptions],
    ) -> Hypotheses:
        """The likeliest continuations of each prefix that a beam of fixed width finds.

        At each position every hypothesis is extended by every token, and the `num_beams` best of
        each sequence are kept. A hypothesis that has ended competes unchanged. Nothing is random.

        Args:
            num_beams: K, at most the vocabulary. 1 is greedy.
            length_penalty: hypotheses are compared by the sum of their log-probabilities divided by
                their number of new tokens to this power: 0 compares sums, 1 means; larger values
                favor longer hypotheses.
            batch, prefix, prefix_lengths, length, max_new_tokens, state: as for `generate`.
            stop_tokens, method, decoder: as for `generate`.

        Returns:
            Tokens (B, K, N) and scores (B, K), best first.

        Raises:
            ValueError, TypeError: as for `generate`; a head that is not `Categorical`; a number of
                beams or a penalty out of range.

        Cost: that of generating B * K sequences, and a copy of their states at each position.
        """
        _check_names("beam_search", options, PromptOptions)
        num_beams = check_beams(self.head, num_beams)
        in_range("length_penalty", length_penalty, 0.0, float("inf"))
        stops = read_stop_tokens(options.get("stop_tokens"), self.head)
        stop = torch.tensor(stops, dtype=torch.int64, device=self.device)
        prompt, source = self._read(batch, options)
        tokens, scores = search_beams(source, prompt, num_beams, stop, length_penalty)
        # Copied outside inference mode, because autograd refuses tensors made inside.
        return Hypotheses(tokens.clone(), scores.clone())

    def _read(
        self, batch: int | None, options: PromptOptions, keeps_state: Any = False
    ) -> tuple[Prompt, Stepper]:
        """The prompt, and what makes the steps after it."""
        decoder = options.get("decoder", "auto")
        state = self._own_state(options.get("state"), decoder)
        prompt = read_prompt(
            self,
            batch,
            options.get("prefix"),
            options.get("prefix_lengths"),
            options.get("length"),
            options.get("max_new_tokens"),
            state,
            keeps_state,
        )
        return prompt, self.choose_source(options.get("method", "auto"), decoder, prompt)

    def _plan(self, batch: int | None, options: Options, streams: bool) -> Run:
        given: dict[str, Any] = {**options}
        names = {x: _ARGUMENTS.get(x, x) for x in SamplingParams.__dataclass_fields__}
        params = SamplingParams(**{x: given[name] for x, name in names.items() if name in given})
        generator = options.get("generator")
        settings = Settings(params, self.head, self.device, generator, ("seeds", "num_samples"))
        prompt, source = self._read(batch, options, options.get("return_state", False))
        if settings.samples * prompt.batch > MOST_SEQUENCES:
            wanted = f"at most {MOST_SEQUENCES:,} sequences in all"
            got = f"{settings.samples} from each of {prompt.batch}"
            raise ValueError(expected("num_samples", wanted, got))
        tokens, strings = options.get("stop_tokens"), options.get("stop_strings")
        stop = read_stop(tokens, strings, self.head, self.tokenizer)
        weights = self._source(options.get("decoder", "auto"))
        # Of the weights before the first step; they may have changed at the end.
        fingerprint = weights.fingerprint() if prompt.keeps_state else None
        positions = prompt.row_lengths + prompt.tokens_before.to(self.device)
        return Run(
            source,
            prompt,
            settings.draws(prompt.tokens, prompt.row_lengths, positions),
            settings.samples,
            stop,
            finish=partial(self._finish, fingerprint),
            progress=options.get("progress", False),
            streams=streams,
        )

    def _own_state(self, state: DecodingState | None, decoder: Any) -> DecodingState | None:
        """The state without its fingerprint, which must be that of the weights that step it."""
        if not isinstance(state, DecodingState) or state.fingerprint is None:
            return state
        refuse_others(state.fingerprint, self._source(decoder).fingerprint())
        return replace(state, fingerprint=None)

    def _finish(self, fingerprint: str | None, state: DecodingState) -> DecodingState:
        """A state to return, with room for the model's longest sequence."""
        room = self.longest
        if any(isinstance(layer, KeyValueCache) for layer in state.layers):
            room = max(state.max_length or 0, self.max_length or 0)
        # Copied outside inference mode, because autograd refuses tensors made inside.
        return replace(state.with_room(room).clone(), fingerprint=fingerprint)

    def _source(self, decoder: Any) -> GenerationMixin:
        """What holds the weights that step."""
        return decoder if isinstance(decoder, GenerationMixin) else self


class TokenModel(GenerationMixin):
    """A model of tokens, as `AutoregressiveTransformer` is.

    Attributes:
        training: whether the model is in training mode, in which `predict_next` uses dropout.
    """

    training: bool

    @property
    @abstractmethod
    def can_step(self) -> bool:
        """Whether `prefill` and `step` work; if not, only `predict_next` does."""

    @abstractmethod
    def describe(self, positions: int | None = None) -> DecoderDescription:
        """Its weights and settings, for at least so many positions."""

    @abstractmethod
    def predict_next(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """(B, N) -> the parameters (B, P) for the token after each prompt, without a state."""


def _check_names(call: str, options: Any, known: Any) -> None:
    for name in options:
        if name not in known.__annotations__:
            advice = near(name, known.__annotations__)
            raise TypeError(expected(call, "known arguments", repr(name), advice))
