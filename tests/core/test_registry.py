"""Backends are found by entry point, answer for themselves, and nothing is substituted quietly."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from linattn_core import (
    LinearAttentionState,
    backends,
    choice,
    empty_cache,
    explain,
    info,
    linear_attention,
    linear_attention_step,
    registry,
    use_backend,
)
from linattn_core.calls import AttentionCall, StepCall
from linattn_core.reference_backend.backend import ReferenceBackend
from linattn_core.registry import find_backend, installed_backends, reload_backends

METADATA = "Metadata-Version: 2.1\nName: linattn-loopback\nVersion: 1.2\n"
GOOD = "loopback = loopback_backend:Loopback\n"
BAD = "broken = loopback_backend:broken\n"


def _of_the_test(group: str) -> list[EntryPoint]:
    """The entry points of the test's own distribution, whatever else is installed."""
    return [x for x in entry_points(group=group) if x.dist and x.dist.name == "linattn-loopback"]


@pytest.fixture
def distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An installed distribution, as pip leaves it; its entry points are for the test to write."""
    folder = tmp_path / "linattn_loopback-1.2.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(METADATA)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(Path(__file__).parent / "loopback")
    monkeypatch.setattr(registry, "entry_points", _of_the_test)
    yield folder / "entry_points.txt"
    reload_backends()
    sys.modules.pop("loopback_backend", None)


@pytest.fixture
def loopback(distribution: Path):
    distribution.write_text("[linattn.backends]\n" + GOOD)
    reload_backends()
    return find_backend("loopback")


def qkv(dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [torch.randn(1, 2, 5, 4, dtype=dtype, requires_grad=True) for _ in range(3)]


def test_auto_takes_the_fastest_that_accepts(loopback) -> None:
    assert backends() == ("loopback", "reference")
    linear_attention(*qkv(), is_causal=True).sum().backward()
    assert loopback.ran == ["attention", "attention_backward"]
    linear_attention(*qkv(torch.float64), is_causal=True).sum().backward()
    assert len(loopback.ran) == 2
    state = LinearAttentionState.zeros(1, 2, 4, 4)
    linear_attention_step(*(torch.randn(1, 2, 4) for _ in range(3)), state)
    assert loopback.ran[2:] == ["step"]


def test_the_named_one_runs_forward_and_backward(loopback) -> None:
    linear_attention(*qkv(), is_causal=True, backend="reference").sum().backward()
    assert loopback.ran == []


def test_a_backend_is_told_which_gradients_are_wanted(monkeypatch) -> None:
    """And may leave out the others, as the reference does, on every way to it."""
    told, complete = [], ReferenceBackend.attention_backward

    def spy(self, call, *upstream):
        gradients = complete(self, call, *upstream)
        told.append(tuple(call.wanted_gradients))
        present = [n for n, x in gradients._asdict().items() if x is not None]
        assert present == list(call.wanted_gradients)
        return gradients

    monkeypatch.setattr(ReferenceBackend, "attention_backward", spy)
    (q, k, v), decay = qkv(), -torch.rand(1, 2, 5)

    def attend(q, k, v, **options):
        return linear_attention(q, k, v, is_causal=True, backend="reference", **options).sum()

    attend(q, k.detach(), v.detach()).backward()
    attend(q, k, v, log_decay=decay).backward()
    torch.func.grad(attend, argnums=2)(*(x.detach() for x in (q, k, v)), log_decay=decay)
    torch.compile(attend, backend="aot_eager", fullgraph=True)(q.detach(), k, v).backward()
    attend(q.detach(), k.detach(), v.detach(), log_decay=decay.requires_grad_()).backward()
    assert told == [
        ("query",), ("query", "key", "value"), ("value",), ("key", "value"), ("log_decay",),
    ]  # fmt: skip


def test_calls_within_use_backend_take_it(loopback) -> None:
    with use_backend("reference"):
        linear_attention(*qkv(), is_causal=True).sum().backward()
        assert loopback.ran == []
        linear_attention(*qkv(), backend="loopback")
        with use_backend("loopback"):
            out = linear_attention(*qkv())
    assert loopback.ran == ["attention", "attention"]
    out.sum().backward()
    assert loopback.ran[2:] == ["attention_backward"]


def test_use_backend_raises_the_refusal_and_is_over_afterwards(loopback) -> None:
    state = LinearAttentionState.zeros(1, 2, 4, 4, dtype=torch.float64)
    with use_backend("loopback"), pytest.raises(ValueError, match="float64 is not supported"):
        linear_attention_step(*(torch.ones(1, 2, 4).double() for _ in range(3)), state)
    linear_attention(*qkv(torch.float64))
    with pytest.raises(ValueError, match="loopbak"), use_backend("loopbak"):
        pass
    with pytest.raises(TypeError, match="backend"), use_backend(None):
        pass


def test_empty_cache_reaches_backends_that_keep_memory(loopback, monkeypatch) -> None:
    empty_cache()  # the test's backend keeps none
    calls = []
    monkeypatch.setattr(loopback, "empty_cache", lambda: calls.append(1), raising=False)
    empty_cache()
    assert calls == [1]


def test_explain_gives_each_answer(loopback) -> None:
    assert explain(*qkv(), is_causal=True) == {"loopback": "accepts", "reference": "accepts"}
    assert explain(*qkv(torch.float64))["loopback"] == loopback.refusal
    state = LinearAttentionState.zeros(1, 2, 4, 4, dtype=torch.float64)
    answer = explain(*(torch.randn(1, 2, 4).double() for _ in range(3)), state)
    assert answer["loopback"] == loopback.refusal


def test_explain_takes_the_arguments_of_the_call_and_no_others(loopback) -> None:
    q, k, v = torch.randn(1, 4, 5, 3), torch.randn(1, 2, 5, 3), torch.randn(1, 2, 5, 3)
    decay = -torch.ones(2)
    whole = explain(
        q, k, v, is_causal=True, enable_gqa=True, attn_mask=torch.ones(1, 5, dtype=torch.bool),
        log_decay=decay, normalize=False, return_normalizer=True, backend="reference",
    )  # fmt: skip
    rows = [x[:, :, 0] for x in (q, k, v)]
    state = LinearAttentionState.zeros(7, 2, 3, 3)
    step = explain(
        *rows, state, state_indices=torch.tensor([3]), inplace=True, enable_gqa=True,
        log_decay=decay,
    )  # fmt: skip
    assert whole == step == {"loopback": "accepts", "reference": "accepts"}
    for tensors in ((q, k, v), (*rows, state)):
        with pytest.raises(TypeError, match="log_deca"):
            explain(*tensors, log_deca=None)
    with pytest.raises(ValueError, match="eps"):
        explain(q, k, v, enable_gqa=True, eps=-1.0)


def test_second_derivatives_are_refused_with_the_way_out(loopback) -> None:
    q, k, v = qkv()
    out = linear_attention(q, k, v, is_causal=True)
    (first,) = torch.autograd.grad(out.sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="loopback"):
        first.sum().backward()


def test_compiled_code_follows_the_registry(loopback) -> None:
    compiled = torch.compile(linear_attention, fullgraph=True, backend="aot_eager")
    compiled(*qkv(), is_causal=True)
    assert loopback.ran == ["attention"]


def test_a_backend_that_fails_to_load_is_told_once(distribution: Path) -> None:
    distribution.write_text("[linattn.backends]\n" + GOOD + BAD)
    reload_backends()
    with pytest.warns(RuntimeWarning, match="broken"):
        linear_attention(*qkv())
    linear_attention(*qkv())  # a second warning would be an error here
    assert "broken" not in backends()
    with pytest.raises(ValueError, match="libnothing"):
        linear_attention(*qkv(), backend="broken")
    assert "libnothing" in explain(*qkv())["broken"]


class OnProcessors(ReferenceBackend):
    """A backend that takes no memory of a GPU."""

    name = "processors"

    def refuses(self, call: AttentionCall | StepCall) -> str | None:
        return "it is on a GPU." if call.device.type == "cuda" else None


class WithoutKernels(OnProcessors):
    name = "cuda"

    def unusable(self) -> str | None:
        return "it was built without its kernels."


class WithoutDriver(WithoutKernels):
    name = "triton"


class OnGpus(ReferenceBackend):
    """A backend that has no kernels for float64."""

    name = "kernels"

    def refuses(self, call: AttentionCall | StepCall) -> str | None:
        return "it takes no float64." if call.query.dtype == torch.float64 else None


@pytest.mark.parametrize(
    ("others", "advice"),
    [
        ((OnProcessors, WithoutKernels), "pip install"),
        ((WithoutDriver,), "linattn_core.info"),
        ((OnGpus,), None),
    ],
)
def test_a_gpu_without_kernels_is_told_once(
    others: tuple[type[ReferenceBackend], ...],
    advice: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backends = [*(x() for x in others), ReferenceBackend()]
    installed = [registry.Installed(x.name, "a test", x, None) for x in backends[:-1]]
    installed.append(registry.Installed("reference", "linattn-core", backends[-1], None))
    monkeypatch.setattr(registry, "_installed", installed)
    registry._warn_of_missing_kernels.cache_clear()
    with FakeTensorMode(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        x = torch.empty(1, 1, 4, 8, dtype=torch.float64, device="cuda")
        for _ in range(2):
            assert registry.select("auto", AttentionCall(x, x, x)).name == "reference"
    registry._warn_of_missing_kernels.cache_clear()
    messages = [str(x.message) for x in caught]
    assert len(messages) == (advice is not None)
    assert all("without its kernels" in x and str(advice) in x for x in messages)


def test_info_shows_the_condition_of_each_backend(
    distribution: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    distribution.write_text("[linattn.backends]\n" + GOOD + BAD)
    reload_backends()
    with pytest.warns(RuntimeWarning, match="broken"):
        assert info.main() == 0
    shown = capsys.readouterr().out
    conditions = {x.name: x.condition for x in installed_backends()}
    assert conditions.keys() == {"loopback", "broken", "reference"}
    assert all(condition in shown for condition in conditions.values())


def test_info_says_how_threads_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"):
        monkeypatch.delenv(name, raising=False)
    assert any("OMP_WAIT_POLICY and GOMP_SPINCOUNT are not set" in x for x in info.lines())
    monkeypatch.setenv("GOMP_SPINCOUNT", "1000")
    assert any("GOMP_SPINCOUNT=1000" in x for x in info.lines())


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("name = None", "name"),
        ("speed = 'x'", "speed"),
        ("attention = None", "attention"),
        ("name = 'reference'", "reference"),
        ("name = 'auto'", "auto"),
    ],
)
def test_a_backend_that_could_not_run_is_not_live(
    distribution: Path, tmp_path: Path, change: str, named: str
) -> None:
    source = f"from loopback_backend import Loopback\n\nclass Faulty(Loopback):\n    {change}\n"
    (tmp_path / "faulty_backend.py").write_text(source)
    distribution.write_text("[linattn.backends]\nfaulty = faulty_backend:Faulty\n")
    reload_backends()
    with pytest.warns(RuntimeWarning, match=f"'{named}'"):
        assert backends() == ("reference",)
    sys.modules.pop("faulty_backend")
    assert linear_attention(*qkv()).isfinite().all()


def test_the_latest_open_choice_counts_in_whatever_order_they_end(loopback) -> None:
    first, second = use_backend("reference"), use_backend("loopback")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert choice.current == "loopback"
    second.__exit__(None, None, None)
    assert choice.current == "auto"
