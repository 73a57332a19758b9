"""A described model in as few torch operations as possible: on a GPU, each launches kernels.

A step never reads a number from the device, and all values that change from step to step are in
tensors, so that a CUDA graph can repeat it.

Letters as in `linattn_core.decoder_spec`; R rows: the vectors of a step, or of whole prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linattn_core import (
    FeatureMap,
    LinearAttentionState,
    get_feature_map,
    linear_attention,
    linear_attention_step,
)
from linattn_core.autocast import without_autocast
from linattn_core.decoder_spec import (
    Affine,
    CannotCompile,
    DecoderDescription,
    DecoderLayer,
    DecoderState,
    Norm,
    TokenCoding,
)
from linattn_core.errors import expected
from linattn_core.feature_maps import Hedgehog
from linattn_models.attention.rotary import Rotation, rotate, rotation_by
from linattn_models.attention.window_states import WindowSlots, continue_windows, step_windows
from linattn_models.attention.windows import Window
from linattn_models.basics.packing import Packing, last_of
from linattn_models.layers.config import ACTIVATIONS
from linattn_models.state import FixedState, WindowCache, zero_states

# The dtype of matrices and of their products. Norms, sums, states and parameters are float32.
_PRODUCTS = {"float32": torch.float32, "bfloat16": torch.bfloat16}

# From a layer's index, its queries, keys and values (R, E + 2 H_kv D), and its log_decay, (R, H_kv)
# or (H_kv,) or None, to the attended values (R, E).
Attend = Callable[[int, Tensor, Tensor | None], Tensor]


class _Prompts(NamedTuple):
    """What all layers need to read prompts.

    Attributes:
        rows: (B, N), or (1, T) where they are packed.
        packing: None where all prompts are of one length.
        start: (B,) int64, the position of the first input of each.
        past: the state of each layer before them; None at the start.
        after: that after them, of the layers so far.
    """

    rows: tuple[int, ...]
    packing: Packing | None
    start: Tensor
    past: Sequence[DecoderState] | None
    rotation: Rotation | None
    after: list[FixedState]


class TorchStep:
    """A copy of a model's weights, with `step` and `prefill`.

    Args:
        description: the model.
        weights: "float32", or "bfloat16" for the matrices of layers and head, and their products.
        backend: the backend of the attention, as for `linear_attention`.
    """

    def __init__(self, description: DecoderDescription, weights: str, backend: str) -> None:
        if weights not in _PRODUCTS:
            wanted = f"one of {', '.join(map(repr, _PRODUCTS))} for a decoder on a GPU"
            raise CannotCompile(expected("weights", wanted, repr(weights), "or compile on the CPU"))
        self.model: DecoderDescription = _copy(description, _PRODUCTS[weights])
        self.backend = backend
        self.device = description.device
        self._frequencies: Tensor | None = None
        if (turns := description.rotary_frequencies) is not None:
            self._frequencies = torch.tensor(turns, dtype=torch.float64, device=self.device)
        self._maps = [_map_of(self.model, layer) for layer in self.model.layers]

    @property
    def nbytes(self) -> int:
        """Bytes of the copied weights."""
        return sum(x.nbytes for x in self.model.tensors())

    def zeros(self, batch: int) -> tuple[FixedState, ...]:
        """The states before the first position."""
        return zero_states(len(self.model.layers), self.model.state_shapes(batch), self.device)

    def step(self, inputs: Tensor, position: Tensor, states: Sequence[DecoderState]) -> Tensor:
        """One input of each row, at positions (B,); updates the states in place.

        Args:
            inputs: tokens (B,) or (B, C), or vectors (B, E).

        Returns:
            (B, P), or for vectors (B, E).
        """
        tokens = self.model.tokens
        with without_autocast(self.device.type):
            rotation = self._rotation(position)
            if self.model.window_size:
                slots = WindowSlots.at(position, self.model.window_size)
                attend = partial(self._step_windows, states, slots, rotation)
            else:
                attend = partial(self._step_sums, states, rotation)
            if tokens is None:
                return self._layers(inputs.clone(), attend)
            x = _embed(tokens, inputs)  # (B, E)
            if tokens.positions is not None:
                x.add_(tokens.positions.index_select(0, position))
            return _parameters(self._layers(x, attend), tokens.output)

    def prefill(
        self,
        inputs: Tensor,
        lengths: Tensor | None,
        states: Sequence[DecoderState],
        position: int | Tensor | None,
    ) -> tuple[Tensor, list[FixedState]]:
        """Prompts, as `NativeDecoder.prefill`; with a position they continue states, as `read`.

        Returns:
            The outputs, and the states after the prompts, in new memory.
        """
        tokens, begins = self.model.tokens, position is None
        with without_autocast(self.device.type):
            x = inputs.clone() if tokens is None else _embed_prompts(tokens, inputs, begins)
            batch, length = x.shape[:2]  # (B, N, E)
            start = torch.as_tensor(0 if begins else position, device=self.device).expand(batch)
            places = start.unsqueeze(1) + torch.arange(length, device=self.device)
            if tokens is not None and tokens.positions is not None:
                table, last = tokens.positions, len(tokens.positions) - 1  # padding may be beyond
                x.add_(table[:length] if begins else table[places.clamp(max=last)])
            packing = None if lengths is None else Packing.of(lengths, length)
            if packing is not None:
                x, places = packing.pack(x), packing.pack(places)  # (1, T, E) and (1, T)
            rotation, past = self._rotation(places.flatten()), None if begins else states
            prompts = _Prompts(x.shape[:2], packing, start, past, rotation, [])
            kind = self._read_windows if self.model.window_size else self._read_sums
            y = self._layers(x.flatten(0, 1), partial(kind, prompts)).view_as(x)
            if tokens is None:
                return y if packing is None else packing.unpack(y), prompts.after
            return _parameters(last_of(y, packing), tokens.output), prompts.after

    def _layers(self, x: Tensor, attend: Attend) -> Tensor:
        """(R, E) -> (R, E); overwrites `x`."""
        activation = ACTIVATIONS[self.model.activation]
        for index, layer in enumerate(self.model.layers):
            attended = partial(attend, index)
            if self.model.norm_first:
                x.add_(_mix(_normalize(x, layer.norm1), layer, attended))
                x.add_(_feed_forward(_normalize(x, layer.norm2), layer, activation))
            else:
                x = _normalize(x.add_(_mix(x, layer, attended)), layer.norm1)
                x = _normalize(x.add_(_feed_forward(x, layer, activation)), layer.norm2)
        return _normalize(x, self.model.norm)

    def _rotation(self, positions: Tensor) -> Rotation | None:
        return None if self._frequencies is None else rotation_by(positions, self._frequencies)

    def _step_sums(
        self,
        states: Sequence[DecoderState],
        rotation: Rotation | None,
        index: int,
        projected: Tensor,
        log_decay: Tensor | None,
    ) -> Tensor:
        query, key, value = self._split(projected, rotation)  # (B, H or H_kv, D) each
        state = cast(LinearAttentionState, states[index])
        attended, _ = linear_attention_step(
            query, key, value, state, inplace=True, **self._settings(index, log_decay)
        )
        return attended.flatten(1)

    def _step_windows(
        self,
        states: Sequence[DecoderState],
        slots: WindowSlots,
        rotation: Rotation | None,
        index: int,
        projected: Tensor,
        log_decay: Tensor | None,
    ) -> Tensor:
        query, key, value = self._split(projected, rotation)
        cache, window = cast(WindowCache, states[index]), self._window(index, log_decay)
        return step_windows(window, query, key, value, cache, slots).flatten(1)

    def _read_sums(
        self, prompts: _Prompts, index: int, projected: Tensor, log_decay: Tensor | None
    ) -> Tensor:
        """Prompts (B, N), or packed (1, T); appends the layer's state after them."""
        parts = self._split(projected, prompts.rotation)
        query, key, value = (x.unflatten(0, prompts.rows).transpose(1, 2) for x in parts)
        packing, past = prompts.packing, prompts.past
        attended: Tensor
        attended, state = linear_attention(
            query,  # (B, H, N, D)
            key,
            value,
            is_causal=True,
            cu_seqlens=None if packing is None else packing.cu_seqlens,
            initial_state=None if past is None else cast(LinearAttentionState, past[index]),
            return_state=True,
            **self._settings(index, _of_prompts(log_decay, prompts.rows)),
        )
        prompts.after.append(state)
        return attended.transpose(1, 2).flatten(2).flatten(0, 1)

    def _read_windows(
        self, prompts: _Prompts, index: int, projected: Tensor, log_decay: Tensor | None
    ) -> Tensor:
        """As `_read_sums`; packed rows are padded for the windows."""
        rows, packing, past = prompts.rows, prompts.packing, prompts.past
        parts = [x.unflatten(0, rows) for x in self._split(projected, prompts.rotation)]
        gated = log_decay is not None and log_decay.ndim > 1
        parts += [cast(Tensor, log_decay).unflatten(0, rows)] if gated else []
        if packing is not None:
            parts = [packing.unpack(x) for x in parts]
        # States are float32, and so are the keys that the windows keep.
        query, key, value, *more = (x.float().transpose(1, 2) for x in parts)  # (B, H, N, D)
        attended, state = continue_windows(
            self._window(index, *more or [log_decay]),
            query,
            key,
            value,
            None if packing is None else packing.lengths,
            prompts.start,
            None if past is None else cast(WindowCache, past[index]),
        )
        prompts.after.append(state)
        attended = attended.transpose(1, 2).flatten(2)
        return (attended if packing is None else packing.pack(attended)).flatten(0, 1)

    def _split(self, projected: Tensor, rotation: Rotation | None) -> tuple[Tensor, ...]:
        """Queries (R, H, D), keys and values (R, H_kv, D) as the operator reads them."""
        model = self.model
        heads = model.num_heads, model.num_kv_heads
        by_head = projected.view(-1, sum(heads) + heads[1], model.head_dim)
        both, value = by_head.split((sum(heads), heads[1]), dim=1)
        query, key = (both if rotation is None else rotate(both, rotation)).split(heads, dim=1)
        return query, key, value

    def _settings(self, index: int, log_decay: Tensor | None) -> dict[str, Any]:
        """The arguments of the operator in a layer."""
        model = self.model
        return {
            "feature_map": self._maps[index],
            "log_decay": log_decay,
            "enable_gqa": model.num_kv_heads != model.num_heads,
            "eps": model.eps,
            "backend": self.backend,
        }

    def _window(self, index: int, log_decay: Tensor | None) -> Window:
        """The window of a layer."""
        log_gamma = cast(Tensor, self.model.layers[index].log_gamma)
        size, feature_map = self.model.window_size, self._maps[index]
        return Window(size, feature_map, log_gamma, self.backend, log_decay)


def _map_of(model: DecoderDescription, layer: DecoderLayer) -> FeatureMap:
    """The feature map of a layer."""
    query, key = layer.query_map, layer.key_map
    if query is None or key is None:
        return get_feature_map(model.feature_map, model.head_dim)
    phi = Hedgehog(model.head_dim, model.num_features, len(query), len(key))
    phi.query_weight, phi.key_weight = (nn.Parameter(x, requires_grad=False) for x in (query, key))
    return phi


def _normalize(x: Tensor, norm: Norm) -> Tensor:
    if norm.centered:
        return F.layer_norm(x, norm.weight.shape, norm.weight, norm.bias, norm.eps)
    return F.rms_norm(x, norm.weight.shape, norm.weight, norm.eps)


def _product(x: Tensor, affine: Affine) -> Tensor:
    x = x.to(affine.weight.dtype)
    return x @ affine.weight if affine.bias is None else affine.bias.addmm(x, affine.weight)


def _parameters(x: Tensor, output: Affine) -> Tensor:
    """(R, P) float32: sums of products of bfloat16 are not rounded."""
    x = x.to(output.weight.dtype)
    if x.is_cuda:  # `float` is for the compiler of torch 2.13, whose result has the dtype of x
        y = torch.mm(x, output.weight, out_dtype=torch.float32).float()
    else:
        y = x.float() @ output.weight.float()
    return y if output.bias is None else y.add_(output.bias)


def _mix(
    x: Tensor, layer: DecoderLayer, attend: Callable[[Tensor, Tensor | None], Tensor]
) -> Tensor:
    return _product(attend(_product(x, layer.qkv), _log_decay(x, layer)), layer.out)


def _log_decay(x: Tensor, layer: DecoderLayer) -> Tensor | None:
    """(R, H_kv) of a gated decay, (H_kv,) of another one, None without one."""
    logits = layer.decay_logits
    if logits is None:
        return None
    if layer.decay_weight is not None:
        logits = F.linear(x, layer.decay_weight, logits)
    return F.logsigmoid(logits)


def _of_prompts(log_decay: Tensor | None, rows: tuple[int, ...]) -> Tensor | None:
    """That of whole prompts, (B, H_kv, N) if it is (R, H_kv)."""
    if log_decay is None or log_decay.ndim == 1:
        return log_decay
    prompts: Tensor = log_decay.unflatten(0, rows)
    return prompts.transpose(1, 2)


def _feed_forward(x: Tensor, layer: DecoderLayer, activation: Callable[[Tensor], Tensor]) -> Tensor:
    hidden = activation(_product(x, layer.gate or layer.expand))
    if layer.gate is not None:
        hidden = hidden * _product(x, layer.expand)
    return _product(hidden, layer.contract)


def _embed(coding: TokenCoding, tokens: Tensor) -> Tensor:
    """The vectors (B, E) of tokens (B,) or (B, C), in new memory."""
    if len(coding.embeddings) == 1:
        return coding.embeddings[0].index_select(0, tokens)
    x = coding.embeddings[0].index_select(0, tokens[:, 0])
    for channel, table in enumerate(coding.embeddings[1:], 1):
        x.add_(table.index_select(0, tokens[:, channel]))
    return x


def _embed_prompts(coding: TokenCoding, tokens: Tensor, begins: bool) -> Tensor:
    """The vectors (B, N, E) of tokens (B, N) or (B, N, C), behind a start vector at the start."""
    batch, length = tokens.shape[:2]
    embedded = _embed(coding, tokens.reshape(batch * length, *tokens.shape[2:]))
    x = embedded.view(batch, length, embedded.shape[-1])
    if coding.start is None or not begins:
        return x
    return torch.cat([coding.start.expand(batch, 1, -1), x], 1)  # (B, N + 1, E)


def _copy(part: Any, dtype: torch.dtype) -> Any:
    """A part of a model with copied tensors: matrices and their biases in `dtype`.

    Norms, embeddings, positions, decays, `log_gamma` and learned maps stay in float32.
    """
    if isinstance(part, Tensor):
        # The copy keeps strides: BLAS reads a transposed matrix equally fast.
        return part.detach().to(dtype, copy=True)
    own = dtype if isinstance(part, Affine) else torch.float32

    def copied(value: Any) -> Any:
        return _copy(value, own if isinstance(value, Tensor) else dtype)

    if isinstance(part, tuple):
        return tuple(map(copied, part))
    if not is_dataclass(part) or isinstance(part, type):
        return part
    return replace(
        part, **{field.name: copied(getattr(part, field.name)) for field in fields(part)}
    )
