"""One node under torch.compile, torch.export of the step, and torch's own checks of operators."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.testing import assert_close

from linattn_core import LinearAttentionState, linear_attention, linear_attention_step
from linattn_core.calls import AttentionCall, StepCall
from linattn_core.checks import complete_attention
from linattn_core.operators.library import Flat
from linattn_core.registry import find_backend

from .cases import Case, drawing, evaluate, phi
from .minimum import may_refuse


@pytest.fixture(autouse=True)
def _fresh_compiler() -> None:
    """No test reuses the graph of another."""
    torch._dynamo.reset()


KINDS = may_refuse(
    [
        Case(),
        Case(is_causal=False, queries=5, keys=9),
        Case(batch=1, cu_seqlens=(0, 8, 37), initial_state=True),
        Case(key_lengths=(37, 3), dtype=torch.bfloat16),
        Case(heads=4, kv_heads=2, mask="left", log_decay="heads", initial_state=True),
        Case(batch=1, cu_seqlens=(0, 20, 37), mask="gaps", log_decay="positions", normalize=False),
        Case(is_causal=False, initial_state=True, keys=0),
        Case(is_causal=False, return_normalizer=True),
    ]
)


@pytest.mark.parametrize("case", KINDS)
def test_compiles_to_one_graph(case: Case, backend: str) -> None:
    tensors, options = case.inputs(), {**case.options(), "backend": backend}
    compiled = torch.compile(linear_attention, fullgraph=True, backend="aot_eager")
    eager = evaluate(linear_attention, tensors, options)
    for name, x in evaluate(compiled, tensors, options).items():
        assert_close(x, eager[name], msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("feature_map", ["taylor", "favor", "hedgehog"])
def test_compiles_with_maps_by_name(feature_map: str, backend: str) -> None:
    tensors = Case().inputs()
    options = {"is_causal": True, "feature_map": phi(feature_map, 8), "backend": backend}
    compiled = torch.compile(linear_attention, fullgraph=True, backend="aot_eager")
    eager = evaluate(linear_attention, tensors, options)
    for name, x in evaluate(compiled, tensors, options).items():
        assert_close(x, eager[name], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_compiles_with_inductor(backend: str) -> None:
    tensors = Case(queries=70).inputs()
    options = {"is_causal": True, "backend": backend}

    def block(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **kwargs: Any) -> Any:
        out, state = linear_attention(2 * q, k.sin(), v, **kwargs)
        return out.relu(), state

    compiled = torch.compile(block, fullgraph=True)
    eager = evaluate(block, tensors, options)
    for name, x in evaluate(compiled, tensors, options).items():
        assert_close(x, eager[name], rtol=1e-4, atol=1e-4)


class StepCase(NamedTuple):
    """A step of two rows, by its arguments beyond the plain ones."""

    inplace: bool = False
    slots: tuple[int, int] | None = None  # of a pool of three; in place alone
    log_decay: bool = False
    groups: int = 1

    def __str__(self) -> str:
        """A readable test id: what differs from the plain step."""
        shown = [x for x in self._fields if getattr(self, x) != StepCase._field_defaults[x]]
        return "-".join(shown) or "plain"

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """Query, key, value, s and z."""
        pool, draw = 2 if self.slots is None else 3, drawing(0)
        shapes = (2, 3 * self.groups, 4), (2, 3, 4), (2, 3, 5), (pool, 3, 4, 5), (pool, 3, 4)
        return tuple(draw(*x, dtype=torch.float32).abs() for x in shapes)

    def options(self) -> dict[str, torch.Tensor | None]:
        """`state_indices` and `log_decay`."""
        return {
            "state_indices": None if self.slots is None else torch.tensor(self.slots),
            "log_decay": torch.tensor(((-0.5, -2.0, 0.0),) * 2) if self.log_decay else None,
        }


def _steps(cases: Iterable[StepCase]) -> pytest.MarkDecorator:
    """Parametrizes a test by them; a backend may lack decay."""
    may = pytest.mark.may_refuse
    parameters = [pytest.param(x, marks=may if x.log_decay else ()) for x in cases]
    return pytest.mark.parametrize("case", parameters, ids=str)


STEPS = [StepCase(), StepCase(log_decay=True, groups=2)]
STEPS_IN_PLACE = [
    StepCase(inplace=True, slots=(2, 0)),
    StepCase(inplace=True, slots=(2, -1), log_decay=True, groups=2),
]


@_steps(STEPS + STEPS_IN_PLACE)
def test_step_compiles_and_exports(case: StepCase, backend: str) -> None:
    arguments, options = case.tensors, case.options()

    class Cell(torch.nn.Module):
        def forward(self, q, k, v, s, z):
            return linear_attention_step(
                q, k, v, LinearAttentionState(s, z), enable_gqa=case.groups > 1, backend=backend,
                inplace=case.inplace, **options,
            )  # fmt: skip

    with torch.no_grad():
        out, state = Cell()(*arguments())
        program = torch.export.export(Cell(), arguments())
        compiled = torch.compile(Cell(), fullgraph=True, backend="aot_eager")
        for run in (program.module(), compiled):
            got, new = run(*arguments())
            assert_close(got, out)
            assert_close(tuple(new), tuple(state))


def test_an_exported_step_with_a_state_can_be_saved(backend: str, tmp_path: Path) -> None:
    class Cell(torch.nn.Module):
        def forward(self, q, k, v, state):
            return linear_attention_step(q, k, v, state, backend=backend)

    shapes = (2, 3, 4), (2, 3, 4), (2, 3, 5), (2, 3, 4, 5), (2, 3, 4)
    q, k, v, s, z = (torch.rand(x) for x in shapes)
    arguments = q, k, v, LinearAttentionState(s, z)
    with torch.no_grad():
        torch.export.save(torch.export.export(Cell(), arguments), tmp_path / "step.pt2")
        out, state = torch.export.load(tmp_path / "step.pt2").module()(*arguments)
        expected, new = Cell()(*arguments)
    assert_close(out, expected)
    assert_close(tuple(state), tuple(new))


def test_lengths_may_change_without_recompiling(backend: str) -> None:
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(linear_attention, fullgraph=True, backend=counter, dynamic=True)
    counts = []
    with torch.no_grad():
        for length in (17, 11, 80):
            tensors = Case(queries=length).inputs()
            q, k, v = (tensors[x] for x in ("query", "key", "value"))
            options = {"is_causal": True, "backend": backend}
            assert_close(compiled(q, k, v, **options), linear_attention(q, k, v, **options))
            counts.append(counter.frame_count)
    assert counts[0] == counts[-1] > 0


STATIC = {
    "heads": {"log_decay": -torch.ones(2), "is_causal": True},
    "positions": {"log_decay": -torch.ones(3, 2, 9), "is_causal": True},
    "mask": {"attn_mask": torch.arange(9).expand(3, 9) != 4},
    "one row": {"attn_mask": torch.arange(9)[None] != 4},
}


@pytest.mark.may_refuse
@pytest.mark.parametrize("kind", STATIC)
def test_sizes_of_a_buffer_stand_beside_dynamic_ones(kind: str, backend: str) -> None:
    """A compiler must guard the comparison of a number with a symbol."""

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.options = dict(STATIC[kind])
            self.name = next(iter(self.options))
            self.register_buffer("x", self.options.pop(self.name))

        def forward(self, q: torch.Tensor) -> torch.Tensor:
            return linear_attention(q, q, q, backend=backend, **self.options, **{self.name: self.x})

    layer, q = Layer(), torch.rand(3, 2, 9, 4)
    compiled = torch.compile(layer, backend="eager", dynamic=True, fullgraph=True)
    assert_close(compiled(q), layer(q))


def _operator_arguments(case: Case, backend: str) -> tuple[Any, ...]:
    tensors, options = case.inputs(), case.options()
    options.pop("enable_gqa", None)
    state = LinearAttentionState(tensors["s"], tensors["z"]) if "s" in tensors else None
    call = AttentionCall(
        *(tensors[x] for x in ("query", "key", "value")),
        initial_state=state, return_state=True, requires_grad=True,
        log_decay=tensors.get("log_decay"), **options,
    )  # fmt: skip
    arguments = Flat(AttentionCall).pack(complete_attention(call))
    return (
        *(
            x.detach().requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) else x
            for x in arguments
        ),
        backend,
    )


# opcheck reads the gradient of a tensor that is no leaf, of which torch warns from 2.14 on.
opcheck_reads_gradients = pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor:UserWarning"
)


@opcheck_reads_gradients
@pytest.mark.parametrize("case", KINDS)
def test_opcheck_attention(case: Case, backend: str) -> None:
    # opcheck would wrap a refusal in an error of its own.
    evaluate(linear_attention, case.inputs(), {**case.options(), "backend": backend})
    arguments = _operator_arguments(case, backend)
    torch.library.opcheck(torch.ops.linattn.attention, arguments)
    detached = [x.detach() if isinstance(x, torch.Tensor) else x for x in arguments]
    torch.library.opcheck(torch.ops.linattn.attention_forward, tuple(detached))


@opcheck_reads_gradients
def test_opcheck_strided_attention(backend: str) -> None:
    arguments = _operator_arguments(Case(), backend)
    strided = [x.detach().mT.contiguous().mT.requires_grad_() for x in arguments[:3]]
    torch.library.opcheck(torch.ops.linattn.attention, (*strided, *arguments[3:]))


def _step_arguments(case: StepCase, backend: str, *, requires_grad: bool) -> tuple[Any, ...]:
    q, k, v, s, z = (x.requires_grad_(requires_grad) for x in case.tensors())
    state, options = LinearAttentionState(s, z), case.options()
    if requires_grad and options["log_decay"] is not None:
        options["log_decay"].requires_grad_()
    call = StepCall(q, k, v, state, requires_grad=requires_grad, **options)
    refused = find_backend(backend).refuses(call)
    if refused is not None:  # opcheck would wrap the refusal in an error of its own
        raise ValueError(f"backend {backend!r} refuses: {refused}")
    return *Flat(StepCall).pack(call), backend


@_steps(STEPS_IN_PLACE)
def test_opcheck_step_in_place(case: StepCase, backend: str) -> None:
    arguments = _step_arguments(case, backend, requires_grad=False)
    torch.library.opcheck(torch.ops.linattn.step_, arguments)


@opcheck_reads_gradients
@_steps(STEPS)
def test_opcheck_step(case: StepCase, backend: str) -> None:
    arguments = _step_arguments(case, backend, requires_grad=True)
    torch.library.opcheck(torch.ops.linattn.step, arguments)
