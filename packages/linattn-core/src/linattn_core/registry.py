"""Backends: what can run the operators, how it is found, and which one runs a call.

A backend is found through the entry-point group `linattn.backends`; each entry names an object,
or a callable returning one, that satisfies `Backend`. Which backend runs a call is decided below
the torch operator, so that `torch.compile` sees one node whatever is installed.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import NamedTuple, Protocol, cast, runtime_checkable

import torch
from torch import Tensor

from linattn_core.decoding import CannotCompile, DecoderDescription, NativeDecoder
from linattn_core.feature_maps.registry import near_names
from linattn_core.state import LinearAttentionState

ENTRY_POINT_GROUP = "linattn.backends"
RESERVED_NAMES = ("auto", "reference")


@dataclass(frozen=True)
class AttentionCall:
    """Everything about a call of `linear_attention` that a backend may refuse.

    Attributes:
        batch, heads, query_length, key_length: B, H, N, L.
        feature_dim: D if the map is applied inside, else F.
        value_dim: M.
        query_dtype: of queries and keys; float32 beside a half-precision value when a feature map
            that computes in float32 was applied before.
        value_dtype: of value and output.
        device: of all tensors.
        is_causal: query i sees keys up to i.
        feature_map: "elu", "relu" or "identity", applied inside.
        padded: key_lengths were given.
        packed: cu_seqlens were given.
        initial_state, return_state: a state comes in, goes out.
        requires_grad: the result will be differentiated.
    """

    batch: int
    heads: int
    query_length: int
    key_length: int
    feature_dim: int
    value_dim: int
    query_dtype: torch.dtype
    value_dtype: torch.dtype
    device: torch.device
    is_causal: bool
    feature_map: str
    padded: bool
    packed: bool
    initial_state: bool
    return_state: bool
    requires_grad: bool

    @classmethod
    def of(
        cls, query: Tensor, key: Tensor, value: Tensor, feature_map: str, **flags: bool
    ) -> AttentionCall:
        """The call with these tensors; `flags` are the bool attributes."""
        return cls(
            batch=query.shape[0],
            heads=query.shape[1],
            query_length=query.shape[2],
            key_length=key.shape[2],
            feature_dim=query.shape[3],
            value_dim=value.shape[3],
            query_dtype=query.dtype,
            value_dtype=value.dtype,
            device=query.device,
            feature_map=feature_map,
            **flags,
        )


@dataclass(frozen=True)
class StepCall:
    """Everything about a call of `linear_attention_step` that a backend may refuse."""

    batch: int
    heads: int
    feature_dim: int
    value_dim: int
    query_dtype: torch.dtype
    value_dtype: torch.dtype
    device: torch.device
    feature_map: str
    requires_grad: bool

    @classmethod
    def of(cls, query: Tensor, value: Tensor, feature_map: str, requires_grad: bool) -> StepCall:
        """The call with these tensors, query (B, H, D) and value (B, H, M)."""
        return cls(
            batch=query.shape[0],
            heads=query.shape[1],
            feature_dim=query.shape[2],
            value_dim=value.shape[2],
            query_dtype=query.dtype,
            value_dtype=value.dtype,
            device=query.device,
            feature_map=feature_map,
            requires_grad=requires_grad,
        )


class OutputLike(Protocol):
    """What `Backend.attention` returns."""

    @property
    def out(self) -> Tensor: ...
    @property
    def state(self) -> LinearAttentionState | None: ...
    @property
    def normalizer(self) -> Tensor: ...


class GradientsLike(Protocol):
    """What `Backend.attention_backward` returns."""

    @property
    def query(self) -> Tensor: ...
    @property
    def key(self) -> Tensor: ...
    @property
    def value(self) -> Tensor: ...
    @property
    def state(self) -> LinearAttentionState | None: ...


class Backend(Protocol):
    """What runs the operators. Shapes, dtypes and devices have been checked before.

    A backend may compile decoders too; it then satisfies `DecoderBackend`.

    Attributes:
        name: what callers pass as `backend=`.
        speed: "auto" asks backends from the highest to the lowest; the reference is 0.
        double_backward: `attention_backward` may be differentiated through the reference formula.
        description: what it was built for and what is live, one line for `linattn_core.info`.
    """

    name: str
    speed: int
    double_backward: bool
    description: str

    def refuses(self, call: AttentionCall | StepCall) -> str | None:
        """None to accept the call, or the reason as a sentence."""

    def attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        key_lengths: Tensor | None,
        cu_seqlens: Tensor | None,
        initial_state: LinearAttentionState | None,
        is_causal: bool,
        keep_state: bool,
        feature_map: str,
        eps: float,
    ) -> OutputLike:
        """Contiguous out (B, H, N, M), normalizer (B, H, N) and state (None unless kept).

        A non-causal call always returns its sums over the keys as the state.
        """

    def attention_backward(
        self,
        grad_out: Tensor,
        grad_state: LinearAttentionState | None,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        out: Tensor,
        normalizer: Tensor,
        *,
        key_lengths: Tensor | None,
        cu_seqlens: Tensor | None,
        state: LinearAttentionState | None,
        is_causal: bool,
        feature_map: str,
        eps: float,
    ) -> GradientsLike:
        """Gradients of q, k, v (contiguous, their dtypes) and of the starting state.

        `state` is the starting state of a causal call, the sums of a non-causal one.
        """

    def step_(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        state: LinearAttentionState,
        *,
        feature_map: str,
        eps: float,
    ) -> Tensor:
        """Updates the state in place and returns out (B, H, M)."""


@runtime_checkable
class DecoderBackend(Protocol):
    """A backend that compiles whole models for decoding."""

    def refuses_decoder(self, description: DecoderDescription, weights: str) -> str | None:
        """None to accept the model with its weights kept so, or the reason as a sentence."""

    def compile_decoder(self, description: DecoderDescription, weights: str) -> NativeDecoder:
        """Packs the weights of a model that was not refused."""


class Installed(NamedTuple):
    """A backend that was found: the live object, or why it is not live."""

    name: str
    origin: str
    backend: Backend | None
    failure: str | None


_lock = threading.Lock()
_installed: list[Installed] | None = None
_live: dict[str, Backend] = {}


def _load(entry: EntryPoint) -> Installed:
    origin = f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value
    try:
        loaded = entry.load()
        backend: Backend = loaded() if callable(loaded) else loaded
        _check_backend(backend)
    except Exception as error:  # noqa: BLE001 - whatever a plug-in does, the others must go on
        failure = f"{type(error).__name__}: {error}"
        warnings.warn(
            f"The backend {entry.name!r} ({origin}) is installed and failed to load: {failure}. "
            "Calls go on without it; `python -m linattn_core.info` shows it.",
            RuntimeWarning,
            stacklevel=2,
        )
        return Installed(entry.name, origin, None, failure)
    return Installed(backend.name, origin, backend, None)


def _check_backend(backend: Backend) -> None:
    """Refuses an object that could only fail later, in the middle of somebody's call."""
    kinds = {"name": str, "speed": int | float, "double_backward": bool, "description": str}
    for attribute, kind in kinds.items():
        if not isinstance(getattr(backend, attribute, None), kind):
            raise TypeError(f"its attribute {attribute!r} is absent or of another type")
    for method in ("refuses", "attention", "attention_backward", "step_"):
        if not callable(getattr(backend, method, None)):
            raise TypeError(f"it has no method {method!r}")
    of_decoders = ("refuses_decoder", "compile_decoder")
    if len({callable(getattr(backend, method, None)) for method in of_decoders}) > 1:
        raise TypeError(f"it has only one of the methods {' and '.join(map(repr, of_decoders))}")
    if backend.name in RESERVED_NAMES:
        raise ValueError(f"the name {backend.name!r} is taken")


def _reference() -> Installed:
    # Imported here because the reference is itself written against this module's types.
    from linattn_core.torch_kernels.backend import ReferenceBackend

    return Installed("reference", "linattn-core", ReferenceBackend(), None)


def installed() -> list[Installed]:
    """Every backend that was found, live or not, in the order in which "auto" asks them."""
    global _installed
    if _installed is None:
        with _lock:
            if _installed is None:
                found = [_load(x) for x in entry_points(group=ENTRY_POINT_GROUP)]
                found.append(_reference())
                found.sort(key=lambda x: -x.backend.speed if x.backend else 1)
                _live.update({x.name: x.backend for x in found if x.backend is not None})
                _installed = found
    return _installed


def reload_backends() -> None:
    """Forgets the backends found so far, so that the next call looks again."""
    global _installed
    with _lock:
        _installed = None
        _live.clear()


def backends() -> tuple[str, ...]:
    """Names of the live backends, in the order in which "auto" asks them.

    "reference" is always among them.
    """
    installed()
    return tuple(_live)


def select(name: str, describe: Callable[[], AttentionCall | StepCall]) -> Backend:
    """The backend that runs a call: the named one, or with "auto" the first that accepts.

    Args:
        name: "auto" or that of a backend.
        describe: makes the call's description, which is left out where nobody may refuse: a
            decoding step on the reference is short enough to feel it.

    Raises:
        ValueError: no backend of that name, or the named one refuses (with its reason).
    """
    installed()
    if name == "reference" or (len(_live) == 1 and name == "auto"):
        return _live["reference"]
    call = describe()
    if name != "auto":
        backend = named(name)
        reason = backend.refuses(call)
        if reason is not None:
            raise ValueError(f"backend {name!r} refuses this call: {reason}")
        return backend
    for backend in _live.values():
        if backend.refuses(call) is None:
            return backend
    raise ValueError("No backend accepts this call.")


def named(name: str) -> Backend:
    """The live backend of that name.

    Raises:
        ValueError: unknown, or installed and not live (with the reason).
    """
    for found in installed():
        if found.name == name:
            if found.backend is None:
                raise ValueError(f"backend {name!r} is installed and not live: {found.failure}.")
            return found.backend
    known = ("auto", *backends())
    raise ValueError(f"Unknown backend {name!r}; {near_names(name, known)}")


def answers(call: AttentionCall | StepCall) -> dict[str, str]:
    """Each installed backend's answer to a call: "accepts", or why not."""
    return {x.name: _answer(x, call) for x in installed()}


def _answer(found: Installed, call: AttentionCall | StepCall) -> str:
    if found.backend is None:
        return f"not live: {found.failure}"
    reason = found.backend.refuses(call)
    return "accepts" if reason is None else reason


def compile_decoder(name: str, description: DecoderDescription, weights: str) -> NativeDecoder:
    """The decoder of the named backend, or with "auto" of the first that accepts the model.

    Args:
        name: "auto" or that of a backend.
        description: the model.
        weights: how its matrices are kept, one of `decoding.WEIGHTS`.

    Raises:
        CannotCompile: the backend refuses, or with "auto" all do (with their reasons).
        ValueError: no backend of that name.
    """
    asked = [named(name)] if name != "auto" else [x.backend for x in installed() if x.backend]
    reasons = []
    for backend in asked:
        reason = _refuses_decoder(backend, description, weights)
        if reason is None:
            return cast(DecoderBackend, backend).compile_decoder(description, weights)
        reasons.append(f"backend {backend.name!r}: {reason}")
    raise CannotCompile("No backend compiles this decoder; " + " ".join(reasons))


def _refuses_decoder(backend: Backend, description: DecoderDescription, weights: str) -> str | None:
    if not isinstance(backend, DecoderBackend):
        return "it compiles no decoders; on a GPU a model's own step is recorded as a graph."
    return backend.refuses_decoder(description, weights)
