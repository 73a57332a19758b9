"""The operators of other libraries, by the formulas of their definitions, and as the guide says.

Their layout is (batch, length, heads, dim). The guide's pairs run where the other library does.
"""

from __future__ import annotations

import importlib.util
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from linattn_core import LinearAttentionState, linear_attention

from .agreement import assert_agree
from .cases import drawing

B, N, H, D, M = 2, 70, 3, 8, 5


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    draw = drawing(0)
    q, k, v = (draw(B, N, H, d, dtype=torch.float64) for d in (D, D, M))
    return q, k, v


def ours(*tensors: Tensor, **options: Any) -> Tensor:
    """The operator in the layout of the others."""
    heads_first = (x.transpose(1, 2) for x in tensors)
    return linear_attention(*heads_first, **options).transpose(1, 2)


def simple_gla(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, state: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """S_t = exp(g_t) S_{t-1} + k_t v_t^T,   o_t = scale S_t^T q_t;   g (B, N, H)."""
    rows = []
    for i in range(q.shape[1]):
        state = g[:, i].exp()[..., None, None] * state
        state = state + k[:, i, :, :, None] * v[:, i, :, None, :]
        rows.append(scale * (q[:, i, :, :, None] * state).sum(-2))
    return torch.stack(rows, 1), state


def retention(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """o_n = scale sum_m gamma^(n - m) (q_n . k_m) v_m over m <= n, gamma = 1 - 2^(-5 - head)."""
    gamma = 1 - torch.pow(2.0, -5.0 - torch.arange(H, dtype=q.dtype))
    apart = torch.arange(N)[:, None] - torch.arange(N)
    decay = (gamma[:, None, None] ** apart.clamp(min=0)).tril()  # (H, N, N)
    weights = scale * torch.einsum("bnhd,bmhd->bhnm", q, k) * decay
    return torch.einsum("bhnm,bmhv->bnhv", weights, v)


def normalized(q: Tensor, k: Tensor, v: Tensor, eps: float, *, causal: bool = True) -> Tensor:
    """o_n = sum_m (q_n . k_m) v_m / (sum_m q_n . k_m + eps); q and k are features."""
    weights = torch.einsum("bnhd,bmhd->bhnm", q, k)
    weights = weights.tril() if causal else weights
    out = weights @ v.transpose(1, 2) / (weights.sum(-1, keepdim=True) + eps)
    return out.transpose(1, 2)


def features(x: Tensor) -> Tensor:
    return F.elu(x) + 1


@pytest.mark.parametrize("is_causal", [True, False])
def test_fast_transformers(is_causal: bool) -> None:
    q, k, v = inputs()
    expected = normalized(features(q), features(k), v, 1e-6, causal=is_causal)
    assert_agree(ours(q, k, v, is_causal=is_causal), expected)


def test_chunk_linear_attn() -> None:
    """Its queries are scaled, and so its eps is another one."""
    q, k, v = inputs()
    scale = 1 / math.sqrt(D)
    expected = normalized(scale * features(q), features(k), v, 1e-10)
    assert_agree(ours(q, k, v, is_causal=True, eps=1e-10 / scale), expected)


def test_chunk_retention() -> None:
    q, k, v = inputs()
    scale = 1 / math.sqrt(D)
    decay = torch.log(1 - torch.pow(2.0, -5.0 - torch.arange(H, dtype=q.dtype)))
    options = {"feature_map": "identity", "normalize": False, "is_causal": True}
    got = ours(scale * q, k, v, log_decay=decay, **options)
    assert_agree(got, retention(q, k, v, scale))


def test_chunk_simple_gla() -> None:
    q, k, v = inputs()
    draw, scale = drawing(1), 1 / math.sqrt(D)
    g = F.logsigmoid(draw(B, N, H, dtype=q.dtype))
    start = draw(B, H, D, M, dtype=q.dtype)
    expected, final = simple_gla(q, k, v, g, start, scale)
    got, state = linear_attention(
        *(x.transpose(1, 2) for x in (scale * q, k, v)),
        initial_state=LinearAttentionState(start, start.new_zeros(B, H, D)), return_state=True,
        log_decay=g.transpose(1, 2), is_causal=True, feature_map="identity", normalize=False,
    )  # fmt: skip
    assert_agree(got.transpose(1, 2), expected)
    assert_agree(state.s, final)


def test_softmax_of_small_products_is_what_taylor_expands() -> None:
    """The third order is left out: off by (q . k / sqrt(D))^3 / 6 of the weights at most."""
    q, k, v = (x.transpose(1, 2) for x in inputs())
    q, k = q / 20, k / 20
    products = (q @ k.mT).abs().max().item() / math.sqrt(D)
    exact = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    got = linear_attention(q, k, v, is_causal=True, feature_map="taylor")
    allowed = products**3 * v.abs().max().item() + 1e-5
    assert (got - exact).abs().max().item() <= allowed


GUIDE = Path(__file__).parents[2] / "docs" / "migrating.md"
BLOCK = re.compile(r"^```py\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAIRS = BLOCK.findall(GUIDE.read_text())


def imported(block: str) -> str:
    found = re.search(r"^from (\w+)[\w.]* import", block, re.MULTILINE)
    assert found is not None
    return found.group(1)


def start(device: str) -> dict[str, Any]:
    """The names that the guide's first cell defines."""
    cell = re.search(r"^```\{code-cell\}\n(.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    assert cell is not None
    names: dict[str, Any] = {}
    with torch.device(device):
        exec(cell.group(1), names)
    return names


def test_the_guide_has_pairs_of_both_libraries() -> None:
    assert sorted({imported(x) for x in PAIRS}) == ["fast_transformers", "fla"]


# flash-linear-attention warns of what else could be installed.
@pytest.mark.filterwarnings("ignore::ImportWarning")
@pytest.mark.parametrize("block", PAIRS, ids=lambda x: x.partition("\n")[0].rpartition(" ")[2])
def test_the_pairs_of_the_guide(block: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Triton's products of float32 are TF32 otherwise, whose errors of 0.05 hide others.
    monkeypatch.setenv("TRITON_F32_DEFAULT", "ieee")
    library = imported(block)
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    if library == "fla" and not torch.cuda.is_available():
        pytest.skip("flash-linear-attention needs a GPU")
    device = "cuda" if library == "fla" else "cpu"
    with torch.device(device):
        exec(block, start(device))
