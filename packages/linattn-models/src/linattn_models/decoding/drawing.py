"""`generate` and `stream`: sequences drawn token by token from any predictor."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar, cast

import torch
from torch import Tensor
from tqdm import tqdm

from linattn_models.decoding.model import Drawable
from linattn_models.decoding.predictors import Begin
from linattn_models.decoding.prompts import Prompt, checked_prompt
from linattn_models.decoding.sampling import NanCheck, Sampling

METHODS = ("auto", "stateful", "rerun")

P = ParamSpec("P")
R = TypeVar("R")


@torch.inference_mode()
def draw(prompt: Prompt, sampling: Sampling, begin: Begin, progress: bool) -> Iterator[Tensor]:
    """The tokens (B,) or (B, 3) of each step, those of complete rows among them."""
    if prompt.steps == 0:
        return
    predictor = begin(prompt)
    check = NanCheck()
    for step in tqdm(range(prompt.steps), desc="generate", unit="step", disable=not progress):
        parameters, token = predictor.draw(sampling)
        check.add(parameters)
        yield token
        if step + 1 < prompt.steps:
            predictor.take(token)
    check.finish()


def arguments_of(other: Callable[P, Any]) -> Callable[[Callable[..., R]], Callable[P, R]]:
    """Gives a function that passes all its arguments on the signature of the one that takes them.

    `help` and type checkers then show arguments that are written once.
    """

    def signed(function: Callable[..., R]) -> Callable[P, R]:
        kind = inspect.signature(function, eval_str=False).return_annotation
        signature = inspect.signature(other).replace(return_annotation=kind)
        function.__signature__ = signature  # type: ignore[attr-defined]
        return function

    return signed


class Drawing:
    """Gives a `Drawable` with a `predictor` the methods `generate` and `stream`."""

    def predictor(self, method: str, decoder: Any, steps: int) -> Begin:
        """Makes the predictor of so many steps by this method and decoder.

        Raises:
            ValueError: a method or decoder that is unknown or does not fit, or a model in training
                mode with dropout.
        """
        raise NotImplementedError

    def _plan(
        self,
        batch: int | None = None,
        *,
        prefix: Tensor | None = None,
        prefix_lengths: Tensor | None = None,
        length: int | None = None,
        temperature: float = 1.0,
        generator: torch.Generator | None = None,
        progress: bool = False,
        method: str = "auto",
        decoder: Any = "auto",
    ) -> tuple[Prompt, Iterator[Tensor]]:
        """The checked prompt and its tokens, of which none is drawn yet."""
        sampling = Sampling(temperature, generator)
        source = cast(Drawable, self)
        sampling.check_device(source.device)
        prompt = checked_prompt(source, batch, prefix, prefix_lengths, length)
        begin = self.predictor(method, decoder, prompt.steps)
        return prompt, draw(prompt, sampling, begin, progress)

    @arguments_of(_plan)
    def generate(self, *arguments: Any, **options: Any) -> Tensor:
        """Sequences of `length` tokens that begin with the given prefixes and are drawn beyond.

        Args:
            batch: B, sequences drawn side by side; 1 by default, or the prefix's own. A model with
                dropout must be in evaluation mode.
            prefix: (B, P) int64 or (B, P, 3), tokens that each sequence begins with.
            prefix_lengths: (B,) int in 0..P, when rows have prefixes of different lengths; tokens
                past a row's length are ignored. Prompts are prefilled side by side, and each row
                goes on from its own position as it would alone.
            length: tokens in a complete sequence, prefix included; by default `max_length`.
            temperature: 1 draws from the model, less sharpens, 0 is greedy; see the head's
                `sample`.
            generator: source of randomness, on the model's device; the same seed gives the same
                tokens.
            progress: shows a bar on stderr.
            method: "stateful" steps from a state; "rerun" runs the whole prefix for each token;
                "auto" is "rerun" for attentions that cannot step (LSH), else "stateful". All draw
                the same random numbers in the same order.
            decoder: what steps. "eager" is the model itself. "compiled" is a float32 decoder
                compiled from it; where there is none, the reason is raised. "auto" is that decoder
                if there is one and packing the weights is worth it (16 steps or more, and no
                autocast), else the model. Or pass a decoder that `compile_decoder` made. In float32
                all draw the same tokens from the same seed, except where rounding decides between
                two.

        Returns:
            (B, length) or (B, length, 3) int64.

        Raises:
            ValueError, TypeError: arguments that cannot be right, before anything is drawn; or
                outputs of the model that are NaN, with the step (on a GPU after the last step).

        Cost: `length` steps; "rerun" costs O(length^2) positions (O(length^3) time with softmax).
        The weights packed for "auto" and "compiled" stay in memory as long as the model does, and
        are packed again when the model has changed.
        """
        prompt, tokens = self._plan(*arguments, **options)
        return prompt.completed(list(tokens))

    @arguments_of(_plan)
    def stream(self, *arguments: Any, **options: Any) -> Iterator[Tensor]:
        """The tokens of each step as soon as they are drawn.

        Step i yields the token at position prefix_lengths[b] + i of each row b. Rows with longer
        prefixes are complete before the others, and from then on yield -1.

        Args:
            arguments, options: as for `generate`.

        Yields:
            (B,) or (B, 3) int64, length - min(prefix_lengths) times.

        Raises:
            ValueError, TypeError: as for `generate`, at the call and not at the first token; on
                the CPU, outputs that are NaN at their token.
        """
        prompt, tokens = self._plan(*arguments, **options)
        # Copied outside inference mode, because autograd refuses tensors made inside.
        return (prompt.visible(step, token) for step, token in enumerate(tokens))
