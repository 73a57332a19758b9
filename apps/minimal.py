"""The paper in one file: attention that trains like a transformer and generates like an RNN.

    python apps/minimal.py [FILE]

trains a small model on the characters of a text, by default of this file, and then lets it write.
It takes about a minute on two cores and needs torch alone. Numbers of equations are those of
"Transformers are RNNs" (arXiv 2006.16236). Read it from top to bottom. `linattn.linear_attention`
is the same operator with kernels, masks and decay; `linattn.AutoregressiveTransformer` the model.

Shapes: B batch, H heads, N length, C chunk, D dim of a head, E embedding, V vocabulary.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

EPS = 1e-6  # added to denominators
LENGTH = 128  # characters that the model sees in training, and then writes


# Softmax attention compares each query with each key, which costs N^2. Here the similarity of both
# is phi(q)^T phi(k) instead, so that phi(q) can be taken out of the sums (equations 8 to 12):
#
#     out_i = sum_{j<=i} phi(q_i)^T phi(k_j) v_j / sum_{j<=i} phi(q_i)^T phi(k_j)
#           = phi(q_i)^T S_i / phi(q_i)^T z_i,   S_i = sum_{j<=i} phi(k_j) v_j^T,
#                                                z_i = sum_{j<=i} phi(k_j)
def feature_map(x: Tensor) -> Tensor:
    """phi(x) = elu(x) + 1 (equation 7): positive, as weights of an average must be."""
    return torch.where(x > 0, x + 1, x.clamp(max=0).exp())


# z is what S would be for values of 1. So a 1 is put behind each value, z is S's last column, and
# the denominator is the last number of what a query reads.
def with_one(value: Tensor) -> Tensor:
    """(B, H, N, D) -> (B, H, N, D + 1)."""
    return torch.cat([value, torch.ones_like(value[..., :1])], dim=-1)


def divide(sums: Tensor) -> Tensor:
    """(..., D + 1) -> (..., D)."""
    return sums[..., :-1] / (sums[..., -1:] + EPS)


# S has the size D x D, whatever the length. But one S for each position would take much memory, so
# positions are taken in chunks: within a chunk, queries and keys are compared with each other, at a
# cost of N C in all; and all chunks before are one S, which a query reads. The whole costs O(N).
def attend(query: Tensor, key: Tensor, value: Tensor, chunk: int = 32) -> Tensor:
    """Causal linear attention of whole sequences (B, H, N, D), in parallel."""
    length = query.shape[2]
    padding = (0, 0, 0, -length % chunk)  # zeros at the end, which add nothing to a sum
    q, k, v = (
        F.pad(x, padding).unflatten(2, (-1, chunk))  # (B, H, N / C, C, D or D + 1)
        for x in (feature_map(query), feature_map(key), with_one(value))
    )
    sums = k.mT @ v  # (B, H, N / C, D, D + 1), S of each chunk alone
    before = sums.cumsum(2) - sums  # S of all chunks before it
    inside = (q @ k.mT).tril() @ v  # (B, H, N / C, C, D + 1)
    return divide(inside + q @ before).flatten(2, 3)[:, :, :length]  # (B, H, N, D)


# The same sums, one position at a time, are an RNN whose state is S (equations 16 to 20). A step
# costs the same after ten characters as after a million.
def attend_step(query: Tensor, key: Tensor, value: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """One position (B, H, 1, D) after a state (B, H, D, D + 1); returns output and new state."""
    state = state + feature_map(key).mT @ with_one(value)
    return divide(feature_map(query) @ state), state


class Block(nn.Module):
    """A layer of a transformer, in which only the attention sees other positions."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.project = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 3 * dim))
        self.join = nn.Linear(dim, dim)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim)
        )

    def forward(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """All positions of x (B, N, E); or with a state, the next position (B, 1, E)."""
        parts = self.project(x).unflatten(2, (3, self.heads, -1))  # (B, N, 3, H, D)
        query, key, value = parts.permute(2, 0, 3, 1, 4)  # (B, H, N, D) each
        if state is None:
            out = attend(query, key, value)
        else:
            out, state = attend_step(query, key, value, state)
        x = x + self.join(out.transpose(1, 2).flatten(2))  # (B, N, E)
        return x + self.feed_forward(x), state


class Model(nn.Module):
    """Characters in; out, for each, scores of the next one."""

    def __init__(self, vocabulary: int, dim: int = 64, heads: int = 4, layers: int = 3) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, dim)
        self.positions = nn.Embedding(LENGTH, dim)
        for embedding in (self.tokens, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(layers))
        self.scores = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, vocabulary))
        self.state_shape = (layers, 1, heads, dim // heads, dim // heads + 1)

    def forward(self, tokens: Tensor, start: int = 0, states: list[Tensor] | None = None) -> Tensor:
        """(B, N) -> (B, N, V): the transformer; or with states, which it changes, the RNN."""
        x = self.tokens(tokens) + self.positions.weight[start : start + tokens.shape[1]]
        for layer, block in enumerate(self.blocks):
            if states is None:
                x, _ = block(x)  # (B, N, E)
            else:
                x, states[layer] = block(x, states[layer])  # (B, 1, E)
        scores: Tensor = self.scores(x)
        return scores


def train(model: Model, text: Tensor, steps: int, batch: int = 16) -> None:
    """Predicts each character of random pieces of the text from those before it."""
    length = min(LENGTH, len(text) - 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95))
    for step in range(1, steps + 1):
        starts = torch.randint(len(text) - length, (batch, 1))
        pieces = text[starts + torch.arange(length + 1)]  # (B, N + 1)
        scores = model(pieces[:, :-1])  # (B, N, V), of all positions at once
        loss = F.cross_entropy(scores.flatten(0, 1), pieces[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 0 or step == 1:
            print(f"step {step:4}   loss {loss.item():.3f} nats per character", flush=True)


@torch.no_grad()
def generate(model: Model, token: Tensor, temperature: float = 0.7) -> Tensor:
    """LENGTH characters after a first one (1, 1): each is drawn, and then read in one step."""
    states = list(torch.zeros(model.state_shape))
    written = [token]
    for position in range(LENGTH):
        scores = model(written[-1], position, states)[0]  # (1, V)
        written.append(torch.multinomial((scores / temperature).softmax(-1), 1))
    return torch.cat(written, dim=1)  # (1, LENGTH + 1)


def main() -> None:
    """Trains on the text of a file, and writes."""
    parser = argparse.ArgumentParser(description="Trains on the text of a file, and then writes.")
    parser.add_argument("file", metavar="FILE", nargs="?", type=Path, default=Path(__file__))
    parser.add_argument("--steps", type=int, default=500)
    arguments = parser.parse_args()
    try:
        content = arguments.file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        parser.error(f"FILE: expected a text in UTF-8, got {error}")
    if len(content) < 2:
        parser.error(f"FILE: expected at least two characters, got {len(content)}")
    number_of = {character: number for number, character in enumerate(sorted(set(content)))}
    text = torch.tensor([number_of[character] for character in content])
    torch.manual_seed(0)
    model = Model(len(number_of))
    train(model, text, arguments.steps)
    for _ in range(3):
        written = generate(model, text[:1].unsqueeze(0))
        print("-" * 40, "".join(list(number_of)[number] for number in written[0]), sep="\n")


if __name__ == "__main__":
    main()
