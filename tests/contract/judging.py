"""A random call beside the float64 oracle, by the table of budgets."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from linattn_core import (
    FeatureMap,
    LinearAttentionState,
    linear_attention,
    linear_attention_step,
    reference,
)
from linattn_core.calls import AttentionCall
from linattn_core.checks import complete_attention
from linattn_core.reference.definition import absent_keys
from linattn_core.state import accumulation_dtype

from .budgets import budget, roundings
from .cases import evaluate
from .random_calls import Call, value_of
from .terms import Terms, terms

Results = dict[str, Tensor]
FORMS = (reference.quadratic, reference.chunked, reference.recurrent)


def complaints(call: Call, backend: str) -> list[str]:
    """What is wrong with a backend's answer, a sentence each; none where all is within budget.

    Raises:
        ValueError: the backend refuses the call.
    """
    tensors = {name: value_of(x) for name, x in call.tensors.items()}
    options = {name: value_of(x) for name, x in call.options.items()}
    got = results(call, backend, tensors, options)
    oracle = by_form(reference.quadratic, call, tensors, options, torch.float64)
    dtype = tensors["value"].dtype

    @functools.cache
    def by_forms() -> list[Results]:
        return [by_form(form, call, tensors, options, dtype) for form in FORMS]

    @functools.cache
    def rounding() -> Results:
        return _rounding(terms(tensors, options), dtype)

    def own(name: str) -> float:
        """Torch's own error."""
        return max(_error(form[name], oracle[name]) for form in by_forms())

    return [
        f"{name}: {fault}"
        for name in got
        for fault in _faults(name, got[name], oracle[name], own, rounding, backend, dtype)
    ]


def _rounding(x: Terms, dtype: torch.dtype) -> Results:
    """What rounding of their terms may add to each number of the results, by name."""
    sums = accumulation_dtype(dtype)
    of_saved = {name: roundings(dtype) * own for name, own in x.saved.items()}
    return {
        name: (roundings(sums) * own + of_saved.get(name, 0.0)).nan_to_num(0.0, 0.0)
        for name, own in x.sums.items()
    }


def results(call: Call, backend: str, tensors: Results, options: dict[str, Any]) -> Results:
    """The results of the backend, with poison in the keys that do not exist."""
    ways = {"step": stepped, "slots": on_slots}
    leaves = poisoned(call, tensors, options)
    return _evaluated(
        call, ways.get(call.kind, linear_attention), leaves, {**options, "backend": backend}
    )


def by_form(
    form: Callable[..., Any],
    call: Call,
    tensors: Results,
    options: dict[str, Any],
    dtype: torch.dtype,
) -> Results:
    """What a form of the definition gives in a dtype; a step is a sequence of one."""
    causal = {**options, "is_causal": True} if "is_causal" not in options else options
    # A map that computes in float32 goes with a state in float32.
    wide = (
        accumulation_dtype(dtype) if isinstance(options.get("feature_map"), FeatureMap) else dtype
    )
    cast = {name: x.to(wide if name in ("s", "z") else dtype) for name, x in tensors.items()}
    return _evaluated(call, form, cast, causal)


def _evaluated(call: Call, attend: Any, tensors: Results, options: dict[str, Any]) -> Results:
    """Results by name, with gradients where the kind of call has any."""
    if call.kind in ("gradients", "step"):
        return evaluate(
            attend, {n: x.detach().requires_grad_() for n, x in tensors.items()}, options
        )
    tensors = {name: x.detach() for name, x in tensors.items()}
    options = {**options, "return_state": call.kind == "slots"}
    if "log_decay" in tensors:
        options["log_decay"] = tensors["log_decay"]
    with torch.no_grad():
        q, k, v = (tensors[x] for x in ("query", "key", "value"))
        result = attend(q, k, v, initial_state=_state(tensors), **options)
    if isinstance(result, Tensor):
        return {"out": result}
    *outputs, last = result
    names = zip(("out", "normalizer"), outputs if options["return_state"] else result, strict=False)
    state = {"s": last.s, "z": last.z} if options["return_state"] else {}
    return {**dict(names), **state}


def _state(tensors: Results) -> LinearAttentionState | None:
    return LinearAttentionState(tensors["s"], tensors["z"]) if "s" in tensors else None


def poisoned(call: Call, tensors: Results, options: dict[str, Any]) -> Results:
    """The tensors, with poison in keys and values that do not exist and must not be read."""
    names = ("is_causal", "attn_mask", "key_lengths", "cu_seqlens")
    masks = {name: options[name] for name in names if name in options}
    asked = complete_attention(
        AttentionCall(*(tensors[x] for x in ("query", "key", "value")), **masks)
    )
    gone = absent_keys(asked.key, asked.key_lengths, asked.attn_mask)
    if gone is None or call.poison == 0:
        return tensors
    filled = {name: tensors[name].masked_fill(gone, call.poison) for name in ("key", "value")}
    return tensors | filled


def stepped(
    q: Tensor, k: Tensor, v: Tensor, *, initial_state: Any, return_state: bool, **options: Any
) -> tuple[Tensor, LinearAttentionState]:
    """One step as a sequence of one."""
    if options.get("log_decay") is not None and options["log_decay"].dim() == 3:
        options["log_decay"] = options["log_decay"][..., 0]
    rows = (x[:, :, 0] for x in (q, k, v))
    out, state = linear_attention_step(*rows, initial_state, **options)
    return out[:, :, None], state


def on_slots(
    q: Tensor, k: Tensor, v: Tensor, *, initial_state: Any, return_state: bool, **options: Any
) -> tuple[Tensor, LinearAttentionState]:
    """The step in place on slots of a larger pool, in another order, after an empty row of NaN."""
    batch = q.shape[0]
    slots = torch.arange(batch + 2, 2, -1)
    pool = LinearAttentionState(*(x.new_full((batch + 3, *x.shape[1:]), 7) for x in initial_state))
    for whole, rows in zip(pool, initial_state, strict=True):
        whole[slots] = rows
    if options.get("log_decay") is not None and options["log_decay"].dim() == 3:
        decay = options["log_decay"]
        options["log_decay"] = torch.cat((decay[:1], decay))
    rows = (torch.cat((torch.full_like(x[:1], torch.nan), x)) for x in (q, k, v))
    out, _ = stepped(
        *rows, initial_state=pool, return_state=True, inplace=True,
        state_indices=torch.cat((slots.new_full((1,), -1), slots)), **options,
    )  # fmt: skip
    assert not out[0].any(), "an empty row has an output"
    assert all(bool((x[:3] == 7).all()) for x in pool), "a step changed a slot of no row"
    return out[1:], pool.index_select(slots)


def _faults(
    name: str,
    got: Tensor,
    oracle: Tensor,
    own: Callable[[str], float],
    rounding: Callable[[], Results],
    backend: str,
    dtype: torch.dtype,
) -> Iterator[str]:
    if got.shape != oracle.shape:
        yield f"shape {tuple(got.shape)} in place of {tuple(oracle.shape)}"
        return
    exact = oracle[_expressible(oracle, got.dtype)]
    lost = _expressible(oracle, got.dtype) & ~got.isfinite()
    # Rounded terms may exceed the dtype where what they cancel to does not.
    if lost.any() and _expressible(oracle.abs() + rounding()[name], got.dtype)[lost].any():
        yield "not finite where the oracle is"
        return
    # The budget without torch's own error first, which costs least and is enough for most.
    if _error(got, oracle) > budget(backend, name, 0.0, exact, dtype):
        distance = _error(got, oracle, rounding()[name])
        allowed = budget(backend, name, own(name), exact, dtype)
        if distance > allowed:
            yield f"off by {distance:.3g}, allowed {allowed:.3g}, largest {exact.abs().max():.3g}"


def _expressible(oracle: Tensor, dtype: torch.dtype) -> Tensor:
    """Where a result of this dtype can be finite."""
    return oracle.abs() < 0.5 * torch.finfo(dtype).max


def _error(x: Tensor, oracle: Tensor, rounding: Tensor | float = 0.0) -> float:
    """Largest error, beyond that rounding, among the numbers that are finite in both."""
    both = x.isfinite() & _expressible(oracle, x.dtype)
    return (
        ((x.double() - oracle).abs() - rounding)[both].clamp(min=0).amax().item()
        if both.any()
        else 0.0
    )
