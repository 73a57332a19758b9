"""A stream gives what the whole utterance gives, however its frames arrive."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from linattn_models import (
    CTCBiLSTM,
    CTCBiLSTMConfig,
    CTCTransformer,
    CTCTransformerConfig,
    Linear,
    Softmax,
    TransformerConfig,
)
from linattn_models.attention import SoftmaxMixer
from linattn_models.ctc import (
    StreamState,
    initial_stream_state,
    stream_flush,
    stream_step,
)

FEATURES = 6


def tiny(
    chunk: int = 3,
    decay: str | None = "learned",
    kernel: int = 5,
    subsampling: int = 4,
    dtype: torch.dtype = torch.float32,
    attention: Softmax | None = None,
) -> CTCTransformer:
    torch.manual_seed(0)
    linear = Linear(decay=decay, decay_range=None if decay in (None, "gated") else (0.9, 0.99))
    transformer = TransformerConfig(
        2, 2, 4, 12, attention=attention or linear, causal_block=chunk, num_kv_heads=1
    )
    config = CTCTransformerConfig(
        4,
        transformer,
        num_features=FEATURES,
        channels=3,
        depthwise_kernel=kernel,
        subsampling=subsampling,
        positions="none",
    )
    return CTCTransformer(config).to(dtype).eval()


def frames_of(batch: int, length: int) -> Tensor:
    return torch.randn(batch, length, FEATURES, generator=torch.Generator().manual_seed(length))


def streamed(model: CTCTransformer | CTCBiLSTM, frames: Tensor, chunk: int) -> Tensor:
    """The outputs of a stream whose last chunk may be short, and may be whole."""
    size, state = chunk * model.config.subsampling, initial_stream_state(model, len(frames))
    outputs = []
    *chunks, last = frames.split(size, 1)
    for piece in chunks:
        out, state = stream_step(model, piece, state)
        outputs.append(out)
    return torch.cat([*outputs, stream_flush(model, last, state)], 1)


@settings(max_examples=30)
@given(
    length=st.integers(1, 50),
    chunk=st.integers(1, 5),
    decay=st.sampled_from([None, "fixed", "learned", "gated"]),
    kernel=st.sampled_from([0, 1, 5]),
    subsampling=st.sampled_from([1, 4]),
)
def test_a_stream_equals_the_whole(
    length: int, chunk: int, decay: str | None, kernel: int, subsampling: int
) -> None:
    model = tiny(2, decay, kernel, subsampling)
    frames = frames_of(2, length)
    with torch.no_grad():
        whole = model(frames, chunk=chunk)
    torch.testing.assert_close(streamed(model, frames, chunk), whole, rtol=0, atol=1e-5)


@settings(max_examples=20)
@given(lengths=st.lists(st.integers(1, 40), min_size=1, max_size=3), chunk=st.integers(1, 5))
def test_rows_of_a_batch_are_as_if_alone(lengths: list[int], chunk: int) -> None:
    model = tiny(decay="gated", dtype=torch.float64)
    longest = max(lengths)
    frames = frames_of(len(lengths), longest).double()
    frames[torch.arange(longest) >= torch.tensor(lengths)[:, None]] = torch.nan
    together = model(frames, torch.tensor(lengths), chunk=chunk)
    for row, length in enumerate(lengths):
        alone = model(frames[row : row + 1, :length], chunk=chunk)[0]
        torch.testing.assert_close(together[row, : len(alone)], alone)


def lstm() -> CTCBiLSTM:
    torch.manual_seed(0)
    config = CTCBiLSTMConfig(
        4, 2, 5, num_features=FEATURES, subsampling=4, channels=3, bidirectional=False
    )
    return CTCBiLSTM(config).eval()


@settings(max_examples=20)
@given(
    length=st.integers(1, 50),
    chunk=st.integers(1, 5),
    rest=st.lists(st.integers(1, 9), min_size=2, max_size=2),
    kind=st.sampled_from(["softmax", "lstm"]),
)
def test_softmax_of_recent_keys_and_an_lstm_stream(
    length: int, chunk: int, rest: list[int], kind: str
) -> None:
    model = lstm() if kind == "lstm" else tiny(chunk, attention=Softmax(past_size=3))
    frames = frames_of(2, length)
    with torch.no_grad():
        whole = model(frames, chunk=chunk)
    torch.testing.assert_close(streamed(model, frames, chunk), whole, rtol=0, atol=1e-5)
    first, last, lengths = frames_of(2, 4 * chunk), frames_of(2, 9), torch.tensor(rest)
    _, state = stream_step(model, first, initial_stream_state(model, 2))
    outputs = stream_flush(model, last, state, lengths)
    for row, count in enumerate(rest):
        both = torch.cat([first[row], last[row, :count]])[None]
        ends = -(-count // 4)
        wanted = model(both, chunk=chunk)[0, chunk:]
        if ends <= chunk:
            torch.testing.assert_close(outputs[row, :ends], wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("subsampling", [1, 4])
def test_frames_may_come_in_the_same_memory(subsampling: int) -> None:
    model, frames = tiny(subsampling=subsampling), frames_of(1, 24)
    state, memory, outputs = initial_stream_state(model), torch.empty(1, 12, FEATURES), []
    for piece in frames.split(12, 1):
        out, state = stream_step(model, memory.copy_(piece), state)
        outputs.append(out)
    whole = model(frames, chunk=12 // subsampling)
    torch.testing.assert_close(torch.cat(outputs, 1), whole, rtol=0, atol=1e-5)


def test_streams_are_selected_and_joined_as_states_of_decoding_are() -> None:
    state = initial_stream_state(tiny(), 2)
    assert state.index_select([1, 1, 0]).batch == 3
    for indices, error in (([2], ValueError), ([0.5], TypeError)):
        with pytest.raises(error, match="indices"):
            state.index_select(indices)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="states"):
        StreamState.cat([state, 1])  # type: ignore[list-item]


def test_softmax_reads_its_block_and_the_keys_before() -> None:
    past, block, length = 3, 2, 7
    mixer = SoftmaxMixer(Softmax(past_size=past), 2, 4, True, causal_block=block)
    query, key, value = torch.randn(3, 1, 2, length, 4)
    out = mixer.attend(query, key, value, None)
    zeros = torch.zeros(1, 2, past, 4)
    keys, values = (torch.cat([zeros, x], 2) for x in (key, value))
    for position in range(length):
        start = position // block * block
        seen = slice(start, min(start + block, length) + past)
        scores = (keys[:, :, seen] @ query[:, :, position, :, None]).squeeze(-1) / 2
        wanted = (scores.softmax(-1).unsqueeze(2) @ values[:, :, seen]).squeeze(2)
        torch.testing.assert_close(out[:, :, position], wanted)


def test_streams_side_by_side_are_as_if_alone() -> None:
    model, frames = tiny(), frames_of(3, 12)
    state = initial_stream_state(model, 3)
    _, state = stream_step(model, frames, state)
    states = [state.index_select(torch.tensor([row])) for row in range(3)]
    rest, lengths = frames_of(3, 7), torch.tensor([7, 2, 5])
    together = stream_flush(model, rest, StreamState.cat(states), lengths)
    for row, length in enumerate(lengths.tolist()):
        whole = model(torch.cat([frames[row], rest[row, :length]])[None])[0]
        count = -(-length // 4)
        torch.testing.assert_close(together[row, :count], whole[3:], rtol=0, atol=1e-5)
        assert together[row, count:, 0].eq(0).all()


def test_a_decay_acts_once_for_each_chunk() -> None:
    model, frames = tiny(), frames_of(1, 12)
    _, state = stream_step(model, frames, initial_stream_state(model))
    known = state.tensors
    bigger = replace(state, tensors=known._replace(s=2 * known.s, z=2 * known.z))
    after, twice = (stream_step(model, frames * 0, x)[1] for x in (state, bigger))
    factor = (twice.tensors.z - after.tensors.z)[0, 0] / known.z[0, 0]
    logarithm = model.transformer.blocks[0].mixer.decay().detach()
    torch.testing.assert_close(factor, (3 * logarithm).exp()[:, None].expand_as(factor))


@pytest.mark.parametrize("kind", ["linear", "softmax", "lstm"])
@pytest.mark.parametrize("autocast", [False, True])
def test_bfloat16_streams(kind: str, autocast: bool, tmp_path: Path) -> None:
    softmax = Softmax(past_size=3) if kind == "softmax" else None
    model, frames = lstm() if kind == "lstm" else tiny(attention=softmax), frames_of(2, 30)
    exact = model(frames, chunk=3)
    if not autocast:
        model, frames = model.bfloat16(), frames.bfloat16()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        outputs = streamed(model, frames, 3)
        initial_stream_state(model).save(tmp_path / "state")
        StreamState.load(tmp_path / "state", model)
    torch.testing.assert_close(outputs.float(), exact, rtol=0, atol=0.1)


def test_states_are_saved_and_those_of_others_refused(tmp_path: Path) -> None:
    model, frames = tiny(), frames_of(2, 12)
    _, state = stream_step(model, frames, initial_stream_state(model, 2))
    state.save(tmp_path / "state")
    again = StreamState.load(tmp_path / "state", model)
    torch.testing.assert_close(
        stream_flush(model, frames, again), stream_flush(model, frames, state), rtol=0, atol=0
    )
    other = tiny()
    with torch.no_grad():
        other.output.weight.add_(1)
    with pytest.raises(ValueError, match="state"):
        StreamState.load(tmp_path / "state", other)
    with pytest.raises(ValueError, match="state"):
        stream_step(other, frames, state)
    with pytest.raises(ValueError, match="state"):
        stream_step(tiny(kernel=0), frames, state)
    with pytest.raises(ValueError, match="state"):
        stream_step(model, frames[:1], state)
    short = state.tensors._replace(maps=state.tensors.maps[:1])
    with pytest.raises(ValueError, match="state"):
        stream_step(model, frames, replace(state, tensors=short))
    (tmp_path / "state").write_bytes(b"{}")
    with pytest.raises(ValueError, match="StreamState"):
        StreamState.load(tmp_path / "state", model)


def test_what_cannot_stream_is_refused() -> None:
    model = tiny()
    for number in (torch.nan, torch.inf):
        with pytest.raises(ValueError, match="frames"):
            stream_step(model, frames_of(1, 4) * number, initial_stream_state(model))
        with pytest.raises(ValueError, match="frames"):
            stream_flush(model, frames_of(1, 4) * number, initial_stream_state(model))
    with pytest.raises(ValueError, match="frames"):
        stream_step(model, frames_of(1, 6), initial_stream_state(model))
    hooked = tiny()
    hooked.transformer.blocks[0].register_forward_hook(lambda *_: None)
    with pytest.raises(ValueError, match="forward hook"):
        stream_step(hooked, frames_of(1, 4), initial_stream_state(hooked))
    training = CTCBiLSTM(CTCBiLSTMConfig(4, 2, 3, 0.5, False, num_features=FEATURES))
    state = initial_stream_state(training)
    for call in (
        lambda: stream_step(training, frames_of(1, 4), state),
        lambda: stream_flush(training, frames_of(1, 4), state),
        lambda: training.greedy(frames_of(1, 4)),
    ):
        with pytest.raises(ValueError, match="evaluation mode"):
            call()
    plain = CTCTransformer(CTCTransformerConfig(4, num_features=FEATURES))
    with pytest.raises(ValueError, match="is_causal=True"):
        initial_stream_state(plain)
    with pytest.raises(ValueError, match="bidirectional=False"):
        initial_stream_state(CTCBiLSTM(CTCBiLSTMConfig(4, num_features=FEATURES)))
    with pytest.raises(ValueError, match="chunk"):
        plain(frames_of(1, 6), chunk=2)
    with pytest.raises(ValueError, match="positions"):
        CTCTransformerConfig(4, TransformerConfig(2, 2, 4, 12))
    softmax = TransformerConfig(2, 2, 4, 12, attention="softmax")
    with pytest.raises(ValueError, match="transformer"):
        CTCTransformerConfig(4, softmax, positions="none")
