"""Beam search: the likeliest sequences, as rows of one batch, forked by `select_rows`."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from linattn_core.errors import expected
from linattn_models.basics.validation import at_least
from linattn_models.decoding.prompts import Prompt
from linattn_models.decoding.rows import Stepper, keep_within_room, read_prompt_rows
from linattn_models.decoding.sampling import NanCheck
from linattn_models.heads import Categorical, Head
from linattn_models.heads.base import log_probabilities


class Hypotheses(NamedTuple):
    """The result of a beam search, the best hypothesis first.

    Attributes:
        tokens: (B, K, N) int64, prefixes included; -1 after the end of a hypothesis.
        scores: (B, K), the log-probability in nats of the tokens after the prefix, divided by their
            number to the power of `length_penalty`.
    """

    tokens: Tensor
    scores: Tensor


@torch.inference_mode()
def search_beams(
    source: Stepper,
    prompt: Prompt,
    width: int,
    stop: Tensor,
    penalty: float,
) -> Hypotheses:
    """The best `width` continuations of each prompt; see `GenerationMixin.beam_search`."""
    beam = _Beam(prompt, width, stop, penalty)
    if prompt.steps:
        parameters, state = read_prompt_rows(source, prompt, width)
        check = NanCheck()
        for step in range(prompt.steps):
            check.add(parameters)
            rows = beam.extend(parameters)
            if rows is None or step + 1 == prompt.steps:
                break
            state = source.hold(state.index_select(rows), beam)
            parameters, state = source.step(beam.last, keep_within_room(state))
        check.finish()
    tokens = prompt.repeat(width).join([beam.drawn.flatten(0, 1).T])
    return Hypotheses(tokens.unflatten(0, (-1, width)), beam.ranks())


class _Beam:
    """The hypotheses (B, K) of all sequences.

    Attributes:
        drawn: (B, K, n) tokens so far, -1 after the end.
    """

    def __init__(self, prompt: Prompt, width: int, stop: Tensor, penalty: float) -> None:
        batch, device = prompt.batch, prompt.tokens.device
        self.drawn = torch.empty(batch, width, 0, dtype=torch.int64, device=device)
        self._sums = torch.full((batch, width), -torch.inf, device=device)
        self._sums[:, 0] = 0.0  # one hypothesis per sequence at first; K equal ones stay equal
        self._counts = torch.zeros(batch, width, dtype=torch.int64, device=device)
        self._stop = stop
        self._steps = prompt.steps_of_rows.unsqueeze(1)  # (B, 1)
        self._ended = (self._steps == 0).expand(batch, width).clone()
        self._penalty = penalty

    @property
    def last(self) -> Tensor:
        """(B * K,) the last token of each; 0 for those that have ended."""
        return self.drawn[:, :, -1].flatten().clamp(min=0)

    def ranks(self) -> Tensor:
        """(B, K) the scores by which hypotheses are compared."""
        return self._sums / self._counts.clamp(min=1) ** self._penalty

    def extend(self, parameters: Tensor) -> Tensor | None:
        """Extends the hypotheses by one token and keeps the best.

        Args:
            parameters: (B * K, P), of the next token of each.

        Returns:
            (B * K,) the row that each continues; None if all have ended.
        """
        batch, width = self._sums.shape
        log_probs = log_probabilities(parameters).view(batch, width, -1)
        best, token = self._best(log_probs)  # (B, K) each
        self._sums, self._counts = self._sums_of(log_probs, best, token)
        going = ~self._ended.gather(1, best)
        shown = token.masked_fill(~going, -1)
        before = self.drawn.gather(1, best.unsqueeze(2).expand(-1, -1, self.drawn.shape[2]))
        self.drawn = torch.cat([before, shown.unsqueeze(2)], 2)
        complete = self.drawn.shape[2] >= self._steps
        self._ended = ~going | torch.isin(token, self._stop) | complete
        if bool(self._ended.all()):
            return None
        offsets = torch.arange(batch, device=best.device).unsqueeze(1) * width
        return (best + offsets).flatten()

    def _best(self, log_probs: Tensor) -> tuple[Tensor, Tensor]:
        """The best hypotheses and their next tokens, (B, K) each; an ended one counts once."""
        width, vocabulary = log_probs.shape[1:]
        counts = (self._counts + 1).unsqueeze(2)
        ranks = (self._sums.unsqueeze(2) + log_probs) / counts**self._penalty
        ended = self._ended.unsqueeze(2)
        stays = torch.full_like(ranks, -torch.inf)
        stays[:, :, 0] = self.ranks()
        flat = torch.where(ended, stays, ranks).flatten(1)
        index = flat.topk(width, dim=1).indices
        return index // vocabulary, index % vocabulary

    def _sums_of(self, log_probs: Tensor, best: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
        rows = torch.arange(len(best), device=best.device).unsqueeze(1)
        going = ~self._ended.gather(1, best)
        # Where there are too few hypotheses, one that has ended was chosen with further tokens too.
        staying = torch.where(token == 0, 0.0, -torch.inf)
        added = torch.where(going, log_probs[rows, best, token], staying)
        return self._sums.gather(1, best) + added, self._counts.gather(1, best) + going


def check_beams(head: Head, num_beams: int) -> int:
    """The number of beams; refuses a head without a probability for each token."""
    if not isinstance(head, Categorical):
        got = f"a {type(head).__name__}"
        advice = "call generate, which draws from any head"
        raise ValueError(expected("the head", "a Categorical to search", got, advice))
    num_beams = at_least("num_beams", num_beams, 1)
    if num_beams > head.levels:
        wanted = f"at most the vocabulary, {head.levels}"
        raise ValueError(expected("num_beams", wanted, num_beams))
    return num_beams
