"""`generate` and `stream`: sequences drawn token by token from any predictor."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ParamSpec, TypeVar, cast

import torch
from torch import Tensor

from linattn_core.errors import expected
from linattn_models.decoding.filters import Filters
from linattn_models.decoding.model import Drawable
from linattn_models.decoding.predictors import Predicting
from linattn_models.decoding.prompts import Tokens, checked_prompt
from linattn_models.decoding.runs import Plan, Run
from linattn_models.decoding.sampling import Sampling
from linattn_models.decoding.stopping import checked_stop_tokens
from linattn_models.state import DecodingState
from linattn_models.validation import at_least

METHODS = ("auto", "stateful", "rerun")
# The length of a stream without a length: more tokens than any program draws.
ENDLESS = 1 << 48

P = ParamSpec("P")
R = TypeVar("R")


def arguments_of(other: Callable[P, Any]) -> Callable[[Callable[..., R]], Callable[P, R]]:
    """A decorator for a method that passes all its arguments to `other`: copies its signature.

    So `help` and type checkers show the arguments, which are written only once, and an error about
    them names the method.
    """

    def signed(function: Callable[..., R]) -> Callable[P, R]:
        kind = inspect.signature(function, eval_str=False).return_annotation
        signature = inspect.signature(other).replace(return_annotation=kind)

        @functools.wraps(function)
        def checked(*arguments: Any, **options: Any) -> R:
            try:
                signature.bind(*arguments, **options)
            except TypeError as error:
                known = ", ".join(name for name in signature.parameters if name != "self")
                wanted, got = f"some of the arguments {known}", str(error).removeprefix("got ")
                raise TypeError(expected(function.__name__, wanted, got)) from None
            return function(*arguments, **options)

        checked.__signature__ = signature  # type: ignore[attr-defined]
        return checked

    return signed


class Drawing(Predicting):
    """Gives a `Drawable` with a `predictor` the methods `generate` and `stream`."""

    def _plan(
        self,
        batch: int | None = None,
        *,
        prefix: Tokens | None = None,
        prefix_lengths: Tensor | None = None,
        length: int | None = None,
        state: DecodingState | None = None,
        return_state: bool = False,
        num_samples: int = 1,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        stop_tokens: int | Sequence[int] | None = None,
        generator: torch.Generator | None = None,
        progress: bool = False,
        method: str = "auto",
        decoder: Any = "auto",
    ) -> Plan:
        """Checks the arguments of `generate`; draws nothing yet."""
        source = cast(Drawable, self)
        sampling = Sampling(temperature, generator, Filters(top_k, top_p, min_p))
        sampling.check(source)
        ends = checked_stop_tokens(stop_tokens, source.head, source.device)
        num_samples = at_least("num_samples", num_samples, 1)
        prompt = checked_prompt(source, batch, prefix, prefix_lengths, length, state, return_state)
        begin = self.predictor(method, decoder, prompt)
        return Plan(source, prompt, num_samples, sampling, ends, begin, progress)

    @arguments_of(_plan)
    def generate(self, *arguments: Any, **options: Any) -> Any:
        """Generates sequences of `length` tokens: the prefixes, continued by tokens that are drawn.

        Args:
            batch: B, sequences drawn side by side; by default that of the prefix or the state, or
                1. A model with dropout must be in evaluation mode.
            prefix: (B, P) int64 or (B, P, 3), the first tokens of each sequence; or an array, or
                lists of tokens, one for each sequence and of any lengths.
            prefix_lengths: (B,) int in 0..P, for prefixes of different lengths; tokens past a row's
                length are ignored. Each row continues from its own position, with the same result
                as if it were alone (to rounding, which depends on the batch; see
                `compile_decoder` for decoders with weights in bfloat16).
            length: tokens in a complete sequence, including the prefix but not the tokens that
                `state` has read; by default `max_length`, less the tokens that `state` has read.
            state: from `prefill`, `step` or `generate`: each row continues there, with its row of
                the prefix if there is one. The state is not changed.
            return_state: also return the state after the last token of each sequence, from which
                `generate`, `prefill` and `step` can continue. It takes one more position.
            num_samples: sequences drawn from each prefix, which is prefilled once; in the result
                they are consecutive rows.
            temperature: 1 draws from the model's distribution, smaller values make likely tokens
                likelier, 0 is greedy; see the head's `sample`.
            top_k: draw from the `top_k` likeliest tokens, and those equally likely as the last.
            top_p: draw from the fewest likeliest tokens whose probabilities sum to `top_p` or more.
            min_p: draw from tokens at least `min_p` times as likely as the likeliest. These three
                need a `Categorical` head; a token has to pass all that are set, `top_k` first.
            stop_tokens: a token that ends its sequence, or several. Sequences that have ended are
                dropped from the batch from time to time, to save their cost.
            generator: source of randomness, on the model's device; the same seed gives the same
                tokens.
            progress: show a progress bar on stderr.
            method: "stateful" steps from a state; "rerun" runs all tokens so far for each new one;
                "auto" is "rerun" for attention that cannot step (LSH), else "stateful". All draw
                the same random numbers in the same order.
            decoder: what makes the steps. "eager": the model itself. "compiled": a float32 decoder
                compiled from it, or an error with the reason why there is none. "auto": that
                decoder where it can be compiled and packing the weights is worth it (16 steps or
                more, and no autocast), else the model. Or a decoder that `compile_decoder` made. In
                float32 all draw the same tokens from the same seed, except where rounding decides
                between two.

        Returns:
            (B * num_samples, length) or (B * num_samples, length, 3) int64. With `stop_tokens`, a
            sequence ends with its stop token, and -1 pads it to the longest. With `return_state`,
            a tuple of that and a `DecodingState`.

        Raises:
            ValueError, TypeError: wrong arguments, before anything is drawn; or NaN in the outputs
                of the model, with the step (on a GPU only after the last step).

        Cost: `length` steps; "rerun" costs O(length^2) positions (O(length^3) time with softmax).
        The weights packed for "auto" and "compiled" stay in memory as long as the model does, and
        are packed again when the model has changed.
        """
        run = Run(self._plan(*arguments, **options))
        tokens = run.plan.sequences.completed(list(run))
        return (tokens, run.state()) if run.plan.prompt.keeps_state else tokens

    @arguments_of(_plan)
    def stream(self, *arguments: Any, **options: Any) -> Iterator[Tensor]:
        """Yields the tokens of each step as soon as they are drawn.

        Step i yields the token at position prefix_lengths[b] + i of each row b. A row is -1 after
        it is complete, which happens earlier for longer prefixes, or has drawn a stop token.

        Args:
            arguments, options: as for `generate`, without `return_state`. Without a length, a model
                with linear attention and no `max_length` never stops, at a fixed cost per token;
                softmax attention needs one or the other, to allocate its cache.

        Yields:
            (B,) or (B, 3) int64, length - min(prefix_lengths) times, or until all rows have
            stopped; B counts every sample.

        Raises:
            ValueError, TypeError: as for `generate`: wrong arguments at the call, and on the CPU
                NaN at the token where it occurs.
        """
        if options.get("return_state"):
            advice = "call generate, or prefill the tokens that came"
            raise ValueError(expected("return_state", "False in a stream", True, advice))
        model = cast(Drawable, self)
        is_endless = model.max_length is None and not model.config.has_cache
        if options.get("length") is None and is_endless:
            options["length"] = ENDLESS
        plan = self._plan(*arguments, **options)
        # Copied outside inference mode, because autograd refuses tensors made inside.
        drawn = enumerate(Run(plan, streams=True))
        return (plan.sequences.visible(step, token) for step, token in drawn)
