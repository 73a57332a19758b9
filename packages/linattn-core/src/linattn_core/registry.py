"""Backends: how they are found, and which one runs a call.

A backend is found through the entry-point group `linattn.backends`; each entry names an object that
satisfies `protocols.Backend`, or a callable that returns one. The choice of the backend happens
inside the torch operator, so `torch.compile` sees one node, whatever is installed.
"""

from __future__ import annotations

import functools
import threading
import warnings
from importlib.metadata import EntryPoint, entry_points
from typing import NamedTuple

import torch

from linattn_core.calls import AttentionCall, StepCall
from linattn_core.decoder_spec import CannotCompile, DecoderDescription, NativeDecoder
from linattn_core.errors import expected, near, quote
from linattn_core.protocols import Backend, CachingBackend, DecoderBackend
from linattn_core.reference_backend.backend import ReferenceBackend

ENTRY_POINT_GROUP = "linattn.backends"
RESERVED_NAMES = ("auto", "reference")
_GPUS = ("cuda", "xpu")  # torch calls AMD's cuda, too
_NO_DECODERS = "it compiles no decoders; on a GPU a model's own step is recorded as a graph."


class Installed(NamedTuple):
    """A backend that is installed.

    Attributes:
        name: what callers pass as `backend=`.
        origin: the distribution that it comes from, with its version.
        backend: the live object; None where it failed to load.
        failure: why it failed; None where it is live.
    """

    name: str
    origin: str
    backend: Backend | None
    failure: str | None

    @property
    def condition(self) -> str:
        """ "live", or the reason why it cannot run on this machine, as a sentence."""
        if self.backend is None:
            return f"not live: {self.failure}"
        reason = self.backend.unusable()
        return "live" if reason is None else f"not usable here: {reason}"


_lock = threading.Lock()
_installed: list[Installed] | None = None
_steps: dict[tuple[object, ...], Backend] = {}  # what `select_step` has chosen
_MOST_STEPS = 4_096


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
    """Refuses an object that lacks a member of `Backend`, which would fail later, in a call."""
    kinds = {"name": str, "speed": int | float, "double_backward": bool, "description": str}
    for attribute, kind in kinds.items():
        if not isinstance(getattr(backend, attribute, None), kind):
            raise TypeError(f"its attribute {attribute!r} is absent or of another type")
    for method in ("unusable", "refuses", "attention", "attention_backward", "step"):
        if not callable(getattr(backend, method, None)):
            raise TypeError(f"it has no method {method!r}")
    pair = ("refuses_decoder", "compile_decoder")
    if len({callable(getattr(backend, method, None)) for method in pair}) > 1:
        raise TypeError(f"it has only one of the methods {' and '.join(map(repr, pair))}")
    if backend.name in RESERVED_NAMES:
        raise ValueError(f"the name {backend.name!r} is taken")


def installed_backends() -> list[Installed]:
    """Every backend that is installed, live or not, in the order in which "auto" asks them."""
    global _installed
    if _installed is None:
        with _lock:
            if _installed is None:
                entries = [_load(x) for x in entry_points(group=ENTRY_POINT_GROUP)]
                entries.append(Installed("reference", "linattn-core", ReferenceBackend(), None))
                entries.sort(key=lambda x: -x.backend.speed if x.backend else 1)
                _installed = entries
    return _installed


def reload_backends() -> None:
    """Forgets the backends, so that the next call loads them again."""
    global _installed
    with _lock:
        _installed = None
        _steps.clear()
        _warn_of_missing_kernels.cache_clear()


def backends() -> tuple[str, ...]:
    """Names of the backends that have loaded, in the order in which "auto" asks them.

    "reference" is always among them. A backend that cannot run on this machine is listed too, if it
    has loaded; it refuses every call, and `explain` gives the reason.
    """
    return tuple(x.name for x in installed_backends() if x.backend is not None)


def empty_cache() -> None:
    """Gives memory that backends keep for later results back to the system.

    As `torch.cuda.empty_cache` for a GPU: results in use stay valid, later calls work as before.
    linattn-cpu keeps up to 256 MiB of freed outputs and gradients for later results, because new
    memory of the system is cleared first, which can take a third of the time of a large call.
    torch's own allocators are not changed.
    """
    for entry in installed_backends():
        if isinstance(entry.backend, CachingBackend):
            entry.backend.empty_cache()


def select(name: str, call: AttentionCall | StepCall) -> Backend:
    """The backend that runs a call: the named one, or with "auto" the first that accepts."""
    if name == "auto":
        for entry in _installed or installed_backends():
            if entry.backend is not None and entry.backend.refuses(call) is None:
                if entry.name == "reference" and call.device.type in _GPUS:
                    _warn_of_missing_kernels(call.device)
                return entry.backend
        raise ValueError("No backend accepts this call.")
    backend = find_backend(name)
    reason = backend.refuses(call)
    if reason is not None:
        raise ValueError(f"backend {name!r} refuses this call: {reason}")
    return backend


@functools.cache
def _warn_of_missing_kernels(device: torch.device) -> None:
    """Warns, once for each GPU, if no backend but the reference runs even a plain call there."""
    x = torch.empty(1, 1, 1, 16, device=device)
    plain = AttentionCall(x, x, x, is_causal=True)
    others = [entry for entry in installed_backends() if entry.name != "reference"]
    if any(entry.backend and entry.backend.refuses(plain) is None for entry in others):
        return
    live = [entry for entry in others if entry.backend and entry.backend.unusable() is None]
    faults = "".join(f" ({entry.name}: {entry.condition})" for entry in others if entry not in live)
    advice = "`python -m pip install -c constraints.txt ./packages/linattn-triton` installs some"
    if any(entry.name == "triton" for entry in others):
        advice = "`python -m linattn_core.info` shows what is installed"
    warnings.warn(
        f"Calls on {device} run by plain PyTorch, which is slow, as no kernels for it are "
        f"live{faults}; {advice}.",
        RuntimeWarning,
        stacklevel=2,
    )


def select_step(name: str, call: StepCall) -> Backend:
    """As `select`, asked once for all steps that differ in numbers, strides and the batch alone."""
    query, value, slots = call.query, call.value, call.state_indices
    key = (
        name, query.device, query.dtype, value.dtype, query.shape[1:], value.shape[1:],
        call.feature_map, call.requires_grad, call.normalize, slots is None,
        call.log_decay is None,
    )  # fmt: skip
    chosen = _steps.get(key)
    if chosen is None:
        if len(_steps) >= _MOST_STEPS:
            _steps.clear()
        chosen = _steps[key] = select(name, call)
    return chosen


def find_backend(name: str) -> Backend:
    """The live backend of that name."""
    for entry in installed_backends():
        if entry.name == name:
            if entry.backend is None:
                raise ValueError(expected(f"backend {name!r}", "a live one", entry.condition))
            return entry.backend
    advice = near(str(name), ("auto", *backends()))
    raise ValueError(expected("backend", "a name of those installed", quote(name), advice))


def answers(call: AttentionCall | StepCall) -> dict[str, str]:
    """Each installed backend's answer to a call: "accepts", or why not."""
    return {
        x.name: x.condition if x.backend is None else x.backend.refuses(call) or "accepts"
        for x in installed_backends()
    }


def compile_decoder(name: str, description: DecoderDescription, weights: str) -> NativeDecoder:
    """The decoder of the named backend, or with "auto" of the first that accepts the model.

    Args:
        name: "auto" or the name of a backend.
        description: the model.
        weights: the dtype of the packed matrices, one of `decoder_spec.WEIGHTS`.
    """
    asked = (
        [find_backend(name)]
        if name != "auto"
        else [x.backend for x in installed_backends() if x.backend]
    )
    reasons = []
    for backend in asked:
        if not isinstance(backend, DecoderBackend):
            reasons.append(f"backend {backend.name!r}: {_NO_DECODERS}")
            continue
        reason = backend.refuses_decoder(description, weights)
        if reason is None:
            return backend.compile_decoder(description, weights)
        reasons.append(f"backend {backend.name!r}: {reason}")
    raise CannotCompile("No backend compiles this decoder; " + " ".join(reasons))
