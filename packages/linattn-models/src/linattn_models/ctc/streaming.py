"""A causal recognizer on frames as they arrive: a state of fixed size, one step for each chunk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, cast

import torch
from torch import Tensor

from linattn_core.errors import expected, quote
from linattn_core.state import TensorTuple, accumulation_dtype
from linattn_models.attention import LinearMixer, SoftmaxMixer
from linattn_models.basics.packing import past_lengths
from linattn_models.basics.precision import device_of, dtype_of
from linattn_models.basics.validation import at_least, instance, lengths_within, no_dropout
from linattn_models.ctc.bilstm import CTCBiLSTM
from linattn_models.ctc.front import Convolution
from linattn_models.ctc.recognizer import blank_past, check_frames, log_softmax_of
from linattn_models.ctc.transformer import CTCTransformer
from linattn_models.layers.block import Block
from linattn_models.state.decoding_state import (
    as_rows,
    common_fingerprint,
    list_states,
    no_such_rows,
)
from linattn_models.weights.fingerprint import check_weights, compute_fingerprint
from linattn_models.weights.tensor_files import read_tensors, write_tensors

Streaming = CTCTransformer | CTCBiLSTM
"""A recognizer that streams: a causal transformer, or an LSTM of one direction."""

FORMAT = "linattn stream state"


class _Tensors(NamedTuple):
    frame: Tensor
    maps: Tensor
    convolutions: Tensor
    s: Tensor
    z: Tensor


class StreamTensors(TensorTuple, _Tensors):
    """What a recognizer that streams knows of the frames so far; the same size for any duration.

    Attributes:
        frame: (B, 1, F), the last frame; (B, 0, F) without subsampling.
        maps: (B, channels, 1, ceil(F / 2)), the last outputs of the first front convolution.
        convolutions: (B, layers, E, kernel // 2), what the depthwise convolutions saw last.
        s: (B, layers, H_kv, features, D), the sums S of linear attention; of softmax attention (B,
            layers, H_kv, past_size, D), the last keys; of an LSTM (B, layers, hidden_dim), its
            outputs h.
        z: (B, layers, H_kv, features), the sums z; of softmax attention the last values, as the
            keys; of an LSTM its cells c.
    """

    __slots__ = ()


@dataclass(frozen=True)
class StreamState:
    """The state of streams between two chunks.

    Attributes:
        tensors: what the recognizer knows of the frames so far.
        fingerprint: of the weights that made it; None if it is not known.
    """

    tensors: StreamTensors
    fingerprint: str | None = None

    @property
    def batch(self) -> int:
        """B, streams side by side."""
        return self.tensors.s.shape[0]

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors."""
        return self.tensors.nbytes

    def index_select(self, indices: Tensor | Sequence[int]) -> StreamState:
        """The states of the streams `indices` (any length, repeats allowed), as a copy.

        Raises:
            ValueError: indices of another shape; on the CPU also a stream that is not there.
            TypeError: not integers.
        """
        rows = as_rows(indices)
        try:
            return replace(self, tensors=self.tensors.index_select(rows))
        except (IndexError, RuntimeError):  # tensors without numbers raise the latter
            if not rows.numel() or (int(rows.min()) >= 0 and int(rows.max()) < self.batch):
                raise
            raise no_such_rows(rows, self.batch) from None

    @classmethod
    def cat(cls, states: Sequence[StreamState]) -> StreamState:
        """One state with the streams of all `states`, in order.

        Raises:
            ValueError: no states, or states of different models.
            TypeError: not a list of states.
        """
        states = list_states(states, cls)
        shapes = [[(x.shape[1:], x.dtype, x.device) for x in state.tensors] for state in states]
        if any(shape != shapes[0] for shape in shapes):
            raise ValueError(expected("states", "states of one model", "of several"))
        joined = StreamTensors.cat([state.tensors for state in states])
        return cls(joined, common_fingerprint(states))

    def save(self, file: str | Path) -> None:
        """Writes one safetensors file; nothing is pickled."""
        metadata = {"format": FORMAT}
        if self.fingerprint is not None:
            metadata["fingerprint"] = self.fingerprint
        write_tensors(Path(file), self.tensors._asdict(), metadata)

    @classmethod
    def load(cls, file: str | Path, model: Streaming) -> StreamState:
        """The state that `save` wrote, on the device of `model`.

        Raises:
            ValueError: another file, or the state of another model.
            FileNotFoundError, IsADirectoryError: no such file.
        """
        path, wanted = Path(file), "a file that StreamState.save wrote"
        tensors, metadata = read_tensors(path, wanted, file_format=FORMAT)
        try:
            whole = StreamTensors(**tensors)
        except TypeError as error:  # tensors of other names
            raise ValueError(expected(str(path), wanted, quote(error))) from None
        state = cls(whole.to(device_of(model.output)), metadata.get("fingerprint"))
        return _check_state(model, state)


def initial_stream_state(model: Streaming, batch: int = 1) -> StreamState:
    """The state before the first frame.

    Args:
        model: a causal transformer, or an LSTM of one direction.
        batch: B, streams side by side.

    Raises:
        ValueError: a recognizer that is not causal.
    """
    batch = at_least("batch", batch, 1)
    _require_streams(model)
    device, kinds = device_of(model.output), _describe_tensors(model).items()
    zeros = {
        name: torch.zeros(batch, *shape, device=device, dtype=dtype)
        for name, (shape, dtype) in kinds
    }
    return StreamState(StreamTensors(**zeros), compute_fingerprint(model))


@torch.no_grad()
def stream_step(model: Streaming, frames: Tensor, state: StreamState) -> tuple[Tensor, StreamState]:
    """Log-probabilities of one more chunk, as `model(all frames, chunk=n)` gives for its frames.

    Args:
        model: a causal recognizer, in evaluation mode.
        frames: (B, n * subsampling, F); n is the chunk, which may be any size.
        state: from `initial_stream_state` or the step before.

    Returns:
        (B, n, num_phones + 1), and the next state.

    Raises:
        ValueError, TypeError: another shape or dtype, NaN or infinite frames, or a state of another
            model.

    Cost: O(n) time, and the same for every chunk of a stream.
    """
    state = _check_call(model, frames, state)
    _refuse_infinite(frames)
    subsampling = model.config.subsampling
    if frames.shape[1] % subsampling:
        wanted = f"a multiple of subsampling {subsampling} frames"
        advice = "end the stream with stream_flush"
        raise ValueError(expected("frames", wanted, frames.shape[1], advice))
    outputs, tensors = advance_stream(model, frames, state.tensors)
    return outputs, replace(state, tensors=tensors)


@torch.no_grad()
def stream_flush(
    model: Streaming, frames: Tensor, state: StreamState, lengths: Tensor | None = None
) -> Tensor:
    """Log-probabilities of the last chunk, which may have any number of frames.

    Args:
        model: a causal recognizer, in evaluation mode.
        frames: (B, T, F), T >= 1.
        state: from the step before.
        lengths: (B,) int, each stream's own frames, in 0..T; all T by default.

    Returns:
        (B, ceil(T / subsampling), num_phones + 1); past a stream's own output frames the blank is
        certain. The streams end here, so that there is no next state.
    """
    state = _check_call(model, frames, state)
    if lengths is None:
        _refuse_infinite(frames)
        return advance_stream(model, frames, state.tensors)[0]
    lengths_within("lengths", lengths, *frames.shape[:2])
    lengths = lengths.to(frames.device)
    frames = frames.masked_fill(past_lengths(lengths, frames.shape[1])[..., None], 0.0)
    _refuse_infinite(frames)
    outputs, _ = advance_stream(model, frames, state.tensors, lengths)
    return blank_past(outputs, past_lengths(model.output_lengths(lengths), outputs.shape[1]))


def advance_stream(
    model: Streaming, frames: Tensor, state: StreamTensors, lengths: Tensor | None = None
) -> tuple[Tensor, StreamTensors]:
    """As `stream_step` without checks, for tensors that fit; may be exported."""
    frame, maps = state.frame, state.maps
    if model.subsampling is not None:
        frames, frame, maps = model.subsampling.step(frames, frame, maps, lengths)
        lengths = None if lengths is None else model.output_lengths(lengths)
    if isinstance(model, CTCBiLSTM):
        cells = state.s.transpose(0, 1).contiguous(), state.z.transpose(0, 1).contiguous()
        x, cells = model.lstm(frames, cells)
        s, z = (each.transpose(0, 1) for each in cells)
        return log_softmax_of(model.output, x), _follow(state, frame=frame, maps=maps, s=s, z=z)
    x = cast(Tensor, model.input(frames))
    convolutions, first, second = [], [], []
    for layer, block in enumerate(model.transformer.blocks):
        if model.convolutions:
            convolution = cast(Convolution, model.convolutions[layer])
            x, before = convolution.step(x, state.convolutions[:, layer], lengths)
            convolutions.append(before)
        own = state.s[:, layer], state.z[:, layer]
        x, own = cast(Block, block).read_block(x, own, lengths)
        first.append(own[0])
        second.append(own[1])
    outputs = log_softmax_of(model.output, model.transformer.norm(x))
    seen = torch.stack(convolutions, 1) if convolutions else state.convolutions
    s, z = torch.stack(first, 1), torch.stack(second, 1)
    return outputs, _follow(state, frame=frame, maps=maps, convolutions=seen, s=s, z=z)


def _follow(state: StreamTensors, **new: Tensor) -> StreamTensors:
    """The state with new tensors, in the dtypes of the old: inside autocast, layers have others."""
    own = state._asdict()
    return state._replace(**{name: x.to(own[name].dtype) for name, x in new.items()})


def _describe_tensors(model: Streaming) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """The shape and dtype of a stream's tensors."""
    front, dtype = int(model.subsampling is not None), dtype_of(model.output)
    shapes: dict[str, tuple[int, ...]] = {
        "frame": (front, model.config.num_features),
        "maps": (model.config.channels * front, 1, (model.config.num_features + 1) // 2),
    }
    own = dtype  # of s and z
    if isinstance(model, CTCBiLSTM):
        cells = model.config.num_layers, model.config.hidden_dim
        shapes |= {"convolutions": (0, 0, 0), "s": cells, "z": cells}
    else:
        config = model.config
        layers, kernel = config.transformer.num_layers, config.depthwise_kernel
        mixer = cast(LinearMixer | SoftmaxMixer, cast(Block, model.transformer.blocks[0]).mixer)
        if isinstance(mixer, LinearMixer):
            own = accumulation_dtype(dtype)
        convolutions = (layers if kernel else 0, config.transformer.embed_dim, kernel // 2)
        s, z = mixer.block_shapes()
        shapes |= {"convolutions": convolutions, "s": (layers, *s), "z": (layers, *z)}
    return {name: (shape, own if name in ("s", "z") else dtype) for name, shape in shapes.items()}


def _check_call(model: Streaming, frames: Tensor, state: StreamState) -> StreamState:
    """The state, with the model's own fingerprint; refuses what does not fit the model."""
    no_dropout(model.training, model.dropout)
    if isinstance(model, CTCTransformer):
        model.transformer.check_hooks()
    check_frames(frames, model.config.num_features, dtype_of(model.output))
    instance("state", state, StreamState)
    state = _check_state(model, state)
    if state.batch != frames.shape[0]:
        wanted = f"states of the {frames.shape[0]} streams of the frames"
        raise ValueError(expected("state", wanted, state.batch))
    return state


def _check_state(model: Streaming, state: StreamState) -> StreamState:
    _require_streams(model)
    device, kinds, batch = (
        device_of(model.output),
        _describe_tensors(model),
        state.tensors.s.shape[:1],
    )
    for name, x in state.tensors._asdict().items():
        shape, dtype = kinds[name]
        if (tuple(x.shape), x.dtype, x.device) != ((*batch, *shape), dtype, device):
            wanted = "a state of this model, in its dtype and on its device"
            raise ValueError(expected("state", wanted, "one of another"))
    fingerprint = check_weights(state.fingerprint, model, step=True)
    return state if fingerprint is state.fingerprint else replace(state, fingerprint=fingerprint)


def _require_streams(model: Streaming) -> None:
    if not model.streams:
        wanted, got = "a causal recognizer", "one of all frames"
        raise ValueError(expected("the model", wanted, got, model.how_to_stream))


def _refuse_infinite(frames: Tensor) -> None:
    """Refuses frames after which every output of a stream would be NaN."""
    if not frames.isfinite().all():
        raise ValueError(expected("frames", "finite numbers", "NaN or infinity"))
