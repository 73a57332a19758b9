"""The kinds of attention by name: those of this package and those of others."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from linattn_core.errors import expected, quote
from linattn_core.state import TensorTuple
from linattn_models.attention.base import Mixer
from linattn_models.attention.config import KINDS, OPTIONS, Attention, Linear, Lsh, Softmax
from linattn_models.attention.linear import LinearMixer
from linattn_models.attention.lsh import LshMixer
from linattn_models.attention.softmax import SoftmaxMixer
from linattn_models.state import START, Cursor, LayerState, layer_shape
from linattn_models.state.files import known_states, register_state

_MIXERS: dict[type[Attention], type[Mixer]] = {}
_STEPPING = ("initial_state", "attend_and_keep", "attend_next")


def register_attention(
    config: type[Attention], mixer: type[Mixer], state: type[TensorTuple] | None = None
) -> None:
    """Makes an attention known, so that a `TransformerConfig` takes it: `attention=config(...)`.

    Models with it train, generate, are saved, loaded and served as others are; `compile_decoder`
    refuses them. A program that loads such a model or its states has to make this call first.
    Each layer is tried on two positions when it is built.

    Args:
        config: a frozen dataclass that derives from `linattn_models.attention.Attention`, whose
            `kind` is the name.
        mixer: the layer, a subclass of `linattn_models.attention.Mixer`.
        state: the class of its state, if it is none of ours: `class MyState(TensorTuple,
            MyFields)` of `linattn_core.state`, where MyFields is a NamedTuple of tensors (B, ...).
            No other state may have the same fields. Fields `s` and `z` are sums, which stay in
            float32 when a state is cast to half precision.

    Raises:
        TypeError: a class of another kind.
        ValueError: a name that is taken, unknown options, or a state with the fields of another.
    """
    subclass = isinstance(config, type) and issubclass(config, Attention)
    own = vars(config).get("__dataclass_params__") if subclass else None
    if own is None or not own.frozen:
        wanted = "a class with @dataclass(frozen=True) that derives from Attention"
        raise TypeError(expected("config", wanted, quote(config)))
    if not isinstance(mixer, type) or not issubclass(mixer, Mixer) or mixer.__abstractmethods__:
        wanted = "a class that derives from Mixer and has attend"
        raise TypeError(expected("mixer", wanted, quote(mixer)))
    kind = getattr(config, "kind", None)
    if not isinstance(kind, str) or not kind or kind in KINDS:
        wanted = "a name, a str, that no attention has"
        raise ValueError(expected(f"kind of {config.__name__}", wanted, quote(kind)))
    if not config.takes <= OPTIONS:
        wanted, got = f"some of {sorted(OPTIONS)}", sorted(config.takes)
        raise ValueError(expected(f"takes of {config.__name__}", wanted, got))
    if state is not None:
        register_state(state)
    KINDS[kind] = config
    _MIXERS[config] = mixer


def build_mixer(attention: Attention, num_heads: int, head_dim: int, **settings: Any) -> Mixer:
    """The attention layer of a configuration; the settings are those of `Mixer`."""
    kind: Any = _MIXERS[type(attention)]
    mixer: Mixer = kind(attention, num_heads, head_dim, **settings)
    if type(attention) not in _OURS:
        _check_protocol(mixer, steps=mixer.is_causal and not attention.cannot_step)
    return mixer


def _check_protocol(mixer: Mixer, steps: bool) -> None:
    """Refuses a layer whose results have other shapes or types than `Mixer` says.

    It reads two positions, which costs little beside drawing the weights.
    """
    weight, name = mixer.out.weight, type(mixer).__name__
    absent = [each for each in _STEPPING if getattr(type(mixer), each) is getattr(Mixer, each)]
    if steps and absent:
        advice = "or set cannot_step in its configuration to the reason"
        raise TypeError(expected(name, f"a method {absent[0]}", "none", advice))
    if weight.is_meta:
        return
    x = weight.new_zeros(1, 2, mixer.qkv.in_features)
    heads, training = (1, mixer.num_heads, 2, mixer.head_dim), mixer.training
    with torch.no_grad():
        query, key, value, *more = mixer.eval().project(x)
        attended = mixer.attend(query, key, value, None, None, *more)
        _check_heads(f"{name}.attend", attended, heads)
        if steps:
            own = mixer.initial_state(1, 3, weight.device, weight.dtype)
            _check_state(f"{name}.initial_state", own)
            after, state = mixer.attend_and_keep(query, key, value, None, 3, None, START, *more)
            _check_heads(f"{name}.attend_and_keep", after, heads)
            _check_state(f"{name}.attend_and_keep", state, own)
            query, key, value, *more = mixer.split(x[:, 0])
            after, state = mixer.attend_next(query, key, value, state, Cursor(2, 2), *more)
            _check_heads(f"{name}.attend_next", after, (1, *heads[1::2]))
            _check_state(f"{name}.attend_next", state, own)
    mixer.train(training)


def _check_heads(what: str, heads: object, shape: tuple[int, ...]) -> None:
    got = tuple(heads.shape) if isinstance(heads, Tensor) else f"a {type(heads).__name__}"
    if got != shape:
        raise ValueError(expected(what, f"heads of shape {shape}", got))


def _check_state(what: str, state: object, own: LayerState | None = None) -> None:
    """Refuses other states than those of one row of a registered class, alike `own`."""
    if type(state) not in known_states():
        advice = "pass its class to register_attention"
        wanted = "a state of a registered class"
        raise TypeError(expected(what, wanted, f"a {type(state).__name__}", advice))
    whole = cast(TensorTuple, state)
    tensors = all(isinstance(x, Tensor) for x in whole)
    floats = tensors and all(x.is_floating_point() and x.shape[:1] == (1,) for x in whole)
    if not floats or (own is not None and layer_shape(whole) != layer_shape(own)):
        wanted = "floating dtypes and shapes (batch, ...), the same in every state"
        raise ValueError(expected(what, wanted, layer_shape(whole) if tensors else quote(state)))


for _config, _mixer in ((Linear, LinearMixer), (Softmax, SoftmaxMixer), (Lsh, LshMixer)):
    register_attention(_config, _mixer)
_OURS = frozenset(_MIXERS)
