"""Nothing is read or written past the end of a tensor: the next page is protected."""

from __future__ import annotations

import os

import pytest

from .calls import run_program

PROGRAM = """
import ctypes, mmap, sys
import torch
from linattn_core import LinearAttentionState, linear_attention, linear_attention_step
import linattn_cpu

PAGE = mmap.PAGESIZE
libc = ctypes.CDLL(None, use_errno=True)
kept = []  # memory maps, which must outlive their tensors


def guarded(*shape, dtype, at_end):
    "Random numbers that end (or begin) where a page that nobody may touch begins (or ends)."
    size = torch.empty(0, dtype=dtype).element_size() * torch.Size(shape).numel()
    pages = max(1, -(-size // PAGE))
    block = mmap.mmap(-1, (pages + 2) * PAGE)
    kept.append(block)
    start = ctypes.addressof(ctypes.c_char.from_buffer(block))
    for closed in (start, start + (pages + 1) * PAGE):
        assert libc.mprotect(ctypes.c_void_p(closed), ctypes.c_size_t(PAGE), 0) == 0
    offset = PAGE + (pages * PAGE - size if at_end else 0)
    x = torch.frombuffer(block, dtype=dtype, count=torch.Size(shape).numel(), offset=offset)
    return x.view(shape).copy_(torch.rand(shape))


SIZES = ((1, 1, 1), (3, 5, 7), (16, 16, 16), (17, 33, 9), (65, 64, 31), (130, 3, 64))

for instruction_set in linattn_cpu.instruction_sets():
    linattn_cpu.use_instruction_set(instruction_set)
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        for n, d, m in SIZES:
            for at_end in (True, False):
                make = lambda *shape: guarded(*shape, dtype=dtype, at_end=at_end)
                q, k, v, g = make(1, 2, n, d), make(1, 2, n, d), make(1, 2, n, m), make(1, 2, n, m)
                for causal in (True, False):
                    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
                    out = linear_attention(*leaves, is_causal=causal, backend="cpu")
                    torch.autograd.grad(out, leaves, g)
                kind = torch.float64 if dtype == torch.float64 else torch.float32
                few = [make(1, 1, n, d), make(1, 1, n, m)]  # of both query heads
                mask = guarded(1, n, dtype=torch.bool, at_end=at_end)
                mask[:, ::3] = False
                decay = guarded(1, 1, n, dtype=kind, at_end=at_end).neg_()
                for causal, extra in ((True, {"log_decay": decay}), (False, {})):
                    leaves = [x.detach().requires_grad_() for x in (q, *few)]
                    out = linear_attention(
                        *leaves, is_causal=causal, attn_mask=mask, enable_gqa=True, backend="cpu",
                        **extra,
                    )
                    torch.autograd.grad(out, leaves, g)
                state = LinearAttentionState(
                    guarded(1, 2, d, m, dtype=kind, at_end=at_end),
                    guarded(1, 2, d, dtype=kind, at_end=at_end),
                )
                linear_attention_step(
                    q[:, :, -1], k[:, :, -1], v[:, :, -1], state, inplace=True, backend="cpu"
                )

from linattn_models import AutoregressiveTransformer, TransformerConfig, compile_decoder

for instruction_set in linattn_cpu.instruction_sets():
    linattn_cpu.use_instruction_set(instruction_set)
    for heads, dim, hidden in ((1, 1, 1), (3, 5, 7), (2, 33, 40)):
        model = AutoregressiveTransformer(TransformerConfig(1, heads, dim, hidden), 5, 9).eval()
        for parameter in model.parameters():
            parameter.data = guarded(*parameter.shape, dtype=torch.float32, at_end=True)
        for weights in ("float32", "bfloat16", "int8"):
            decoder = compile_decoder(model, weights)
            for batch in (1, 20):
                tokens = guarded(batch, 4, dtype=torch.int64, at_end=True)
                decoder.prefill(tokens)
                state = [
                    LinearAttentionState(
                        guarded(batch, heads, dim, dim, dtype=torch.float32, at_end=True),
                        guarded(batch, heads, dim, dtype=torch.float32, at_end=True),
                    )
                ]
                decoder.native.step(guarded(batch, dtype=torch.int64, at_end=True), 0, state, None)
"""


@pytest.mark.skipif(os.name != "posix", reason="pages are closed by mprotect")
def test_no_access_past_an_end() -> None:
    run_program("-c", PROGRAM)
