"""Requests that join and leave a batch between steps."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from linattn_models import (
    AutoregressiveTransformer,
    ContinuousBatch,
    DecodingState,
    Head,
    Linear,
    MixtureOfLogistics,
    Request,
    SamplingParams,
    compile_decoder,
)
from linattn_models.state import Cursor
from tests.models.decoding.decoders import Answers, model_of, needs_cpu_backend, run_batch
from tests.models.tiny import random_tokens, tiny_model

LEVELS = 11
LONGEST = 200
# Layers that decode in different ways.
LAYERS: list[dict[str, Any]] = [
    {},
    {"decay": "learned"},
    {"window_size": 5},
    {"window_size": 5, "decay": "gated"},
    {"rotary": True},
]


def batch_of(decoder: Any, seqs: int = 6, tokens: int = 64, steps: int = 4) -> ContinuousBatch:
    return ContinuousBatch(
        decoder, max_num_seqs=seqs, max_num_batched_tokens=tokens, steps_per_call=steps
    )


def long_model(head: Head | int = LEVELS, **fields: Any) -> AutoregressiveTransformer:
    torch.manual_seed(3)
    config = model_of(head, **fields).config
    positions = "rotary" if config.rotary else "sinusoidal"
    model = AutoregressiveTransformer(config, head, LONGEST, positions).eval()
    torch.nn.init.normal_(model.output.weight, std=0.5)
    return model


def alone(decoder: Any, request: Request) -> Answers:
    return run_batch(batch_of(decoder), request)


def random_request(rng: random.Random, **fields: Any) -> Request:
    prompt = [rng.randrange(LEVELS) for _ in range(rng.choice([0, 1, 5, 47, 48, 49, 100]))]
    sampling = SamplingParams(
        temperature=rng.choice([0, 0.7, 1]),
        top_k=rng.choice([None, 4, 2**70]),  # the last is no integer of a tensor
        top_p=rng.choice([None, 0.9]),
        seed=rng.randrange(-(2**63), 2**63),
        n=rng.choice([1, 1, 1, 3]),
    )
    stop = rng.choice([None, None, 2])
    length = len(prompt) + rng.randint(1, 40)
    return Request(prompt, length, sampling, stop, **fields)


def check_equal(state: DecodingState, other: DecodingState) -> None:
    """Equal bit for bit, with the parameters of the last step's output."""
    assert state.position == other.position
    assert torch.equal(state.parameters, other.parameters)  # type: ignore[arg-type]
    torch.testing.assert_close(state.layers, other.layers, rtol=0, atol=0)


@needs_cpu_backend
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("weights", ["float32", "int8"])
@pytest.mark.parametrize("fields", LAYERS, ids=str)
def test_neighbors_change_no_bit(
    fields: dict[str, Any], weights: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens, and the outputs and states of steps, are those of each request alone."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    rng = random.Random(0)
    decoder = compile_decoder(long_model(**fields), weights)
    batch = batch_of(decoder, 7)
    requests: dict[int, Request] = {}
    answers = Answers()
    for _ in range(30):
        request = random_request(rng, return_state=True)
        requests[batch.add(request)] = request
        for _ in range(rng.choice([0, 0, 1, 4])):
            answers.add(batch.step())
    while batch.has_work:
        answers.add(batch.step())
    assert answers.ends.keys() == {(i, n) for i, r in requests.items() for n in range(r.sampling.n)}
    for number, request in requests.items():
        own = alone(decoder, request)
        for index in range(request.sampling.n):
            key = number, index
            assert answers.tokens[key] == own.tokens[1, index]
            assert answers.ends[key] == own.ends[1, index]
            check_equal(answers.states[key], own.states[1, index])


def generated(decoder: Any, request: Request) -> list[list[int]]:
    """The new tokens that `generate` draws."""
    sampling = request.sampling
    rows: Tensor = decoder.generate(
        prefix=[request.prompt] if len(request.prompt) else None,
        length=request.length,
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        seeds=sampling.seed,
        num_samples=sampling.n,
        stop_tokens=request.stop_tokens,
        state=request.state,
    )
    new = rows[:, len(request.prompt) :].tolist()
    return [[token for token in row if token != -1] for row in new]


@settings(deadline=None, max_examples=25)
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_any_arrivals_and_cancels(data: st.DataObject, seed: int) -> None:
    """Every sequence ends once, and those that are not canceled are complete."""
    rng = random.Random(seed)
    decoder = compile_decoder(long_model()) if data.draw(st.booleans()) else long_model()
    batch = batch_of(decoder, data.draw(st.integers(3, 9)), 64)
    requests: dict[int, Request] = {}
    canceled: set[int] = set()
    answers = Answers()
    for action in data.draw(st.lists(st.sampled_from(["add", "step", "cancel"]), max_size=20)):
        if action == "add":
            request = random_request(rng)
            requests[batch.add(request)] = request
        elif action == "step":
            answers.add(batch.step())
        elif requests:
            number = rng.choice(sorted(requests))
            if batch.cancel(number):
                canceled.add(number)
    while batch.has_work:
        answers.add(batch.step())
    assert batch.num_seqs_running == batch.num_requests_waiting == 0
    for number, request in requests.items():
        for index in range(request.sampling.n):
            reason, tokens = answers.ends[number, index], answers.tokens[number, index]
            most = request.length - len(request.prompt)  # type: ignore[operator]
            if reason == "abort":
                assert number in canceled
            elif reason == "stop":
                assert tokens[-1] == request.stop_tokens
            else:
                assert len(tokens) == most
    assert not [number for number in canceled if batch.cancel(number)]


@pytest.mark.parametrize(
    ("attention", "head"),
    [
        ("linear", MixtureOfLogistics(2, 3, 8)),
        ("softmax", LEVELS),
        ("windowed", MixtureOfLogistics(2, 1, 17)),
    ],
    ids=str,
)
def test_the_model_itself_decodes(attention: str, head: Head | int) -> None:
    """Eager steps, also of softmax, draw what `generate` draws."""
    model = tiny_model(attention, head)
    torch.nn.init.normal_(model.output.weight, std=0.5)
    batch = batch_of(model)
    prompts = [random_tokens(model, 1, length)[0] for length in (0, 1, 4)]
    sampling = SamplingParams(seed=5, n=2)
    answers = run_batch(batch, *(Request(prompt, 9, sampling) for prompt in prompts))
    for number, prompt in enumerate(prompts, 1):
        expected = model.generate(
            prefix=prompt.unsqueeze(0), length=9, seeds=5, num_samples=2, decoder="eager"
        )
        for index in range(2):
            assert answers.tokens[number, index] == expected[index, len(prompt) :].tolist()


@pytest.mark.parametrize("compiled", [pytest.param(True, marks=needs_cpu_backend), False])
def test_a_sequence_continues_from_the_state_of_a_request(compiled: bool) -> None:
    model = long_model()
    decoder = compile_decoder(model) if compiled else model
    first = Request([1, 2, 3], 20, SamplingParams(seed=4), return_state=True)
    answers = alone(decoder, first)
    state = answers.states[1, 0]
    assert state.position == 21 and state.fingerprint == model.fingerprint()
    for prompt in ([], [5] * 60):
        second = Request(prompt, len(prompt) + 9, SamplingParams(seed=4), state=state)
        expected = decoder.generate(
            prefix=[prompt] if prompt else None, length=len(prompt) + 9, seeds=4, state=state
        )
        assert alone(decoder, second).tokens[1, 0] == expected[0, len(prompt) :].tolist()


@needs_cpu_backend
def test_prompts_are_read_in_chunks_while_others_draw() -> None:
    decoder = compile_decoder(long_model())
    batch = batch_of(decoder, 4, 52)
    batch.add(Request([], 100, SamplingParams(seed=0)))
    batch.step()
    batch.add(Request([1] * 150, 151))
    drawn, ends = 0, 0
    steps = 0
    while not ends:
        outputs = batch.step()
        drawn += sum(len(output.tokens) for output in outputs if output.request == 1)
        ends += sum(output.finish_reason is not None for output in outputs if output.request == 2)
        steps += 1
    assert steps == 4  # 48 + 48 + 48 + 6 tokens
    assert drawn == 4


@needs_cpu_backend
def test_a_long_prompt_does_not_hold_up_a_short_one() -> None:
    batch = batch_of(compile_decoder(long_model()), 4, 52)
    batch.add(Request([1] * 190, 191))
    short = batch.add(Request([1] * 20, 22))
    while short in batch.requests:
        outputs = batch.step()
        assert all(output.request == short for output in outputs)
    assert batch.num_requests_waiting == 1


@needs_cpu_backend
def test_places_without_a_sequence_stay_at_the_start() -> None:
    """Else they pass the model's last position before a longer sequence does, and end all."""
    batch = batch_of(compile_decoder(long_model()), 8)
    for length in [9] * 4 + [40] * 4:
        batch.add(Request([], length))
    batch.step()
    while batch.num_seqs_running > 4:
        batch.step()
    batch.step()  # four places are dropped
    batch.add(Request([], LONGEST))  # they come back, three of them without a sequence
    while batch.num_seqs_running > 1:
        batch.step()
    for _ in range(4):
        batch.add(Request([], LONGEST))
    assert set(run_batch(batch).ends.values()) == {"length"}


@needs_cpu_backend
def test_a_step_reads_at_most_so_many_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first tokens of sequences that join count: they are read by the same step."""
    decoder = compile_decoder(long_model())
    batch = batch_of(decoder, 8, 56, steps=1)
    read: list[int] = []
    prefill, step = decoder.prefill, decoder.steps_and_draws

    def count_prefill(tokens: Tensor, *rest: Any) -> Any:
        read[-1] += tokens.shape[1]
        return prefill(tokens, *rest)

    def count_step(*rest: Any) -> Any:
        read[-1] += batch.num_seqs_running
        return step(*rest)

    monkeypatch.setattr(decoder, "prefill", count_prefill)
    monkeypatch.setattr(decoder, "steps_and_draws", count_step)
    for _ in range(8):
        batch.add(Request([1] * 26, 60))
    while batch.has_work:
        read.append(0)
        batch.step()
    assert max(read) <= 56


@needs_cpu_backend
def test_nan_aborts_its_own_sequence_alone() -> None:
    model = long_model()
    decoder = compile_decoder(model)
    _, state = decoder.prefill(torch.zeros(1, 3, dtype=torch.int64))
    huge = replace(
        state, layers=tuple(type(x)(*(y * 1e38 * 1e38 for y in x)) for x in state.layers)
    )
    batch = batch_of(decoder)
    with pytest.raises(ValueError, match=r"^state: expected finite"):
        batch.add(Request([], 20, state=huge))
    large = replace(state, layers=tuple(type(x)(x.s + 3e38, x.z) for x in state.layers))
    first = batch.add(Request([], 20, SamplingParams(seed=1), state=large))
    second = batch.add(Request([], 20, SamplingParams(seed=1)))
    answers = run_batch(batch)
    assert answers.ends == {(first, 0): "abort", (second, 0): "length"}
    assert (
        answers.tokens[second, 0] == generated(decoder, Request([], 20, SamplingParams(seed=1)))[0]
    )


def test_a_state_with_a_decay_that_grows_is_refused_before_a_step() -> None:
    """A step that fails would end all requests."""
    model = tiny_model(Linear(window_size=2, decay="gated"))
    _, state = model.prefill(random_tokens(model, 1, 5))
    layers = tuple(x._replace(keys=x.keys.abs() + 1) for x in state.layers)
    with pytest.raises(ValueError, match=r"^state: expected decays of at most 0"):
        batch_of(model).add(Request([], 9, state=replace(state, layers=layers)))


@pytest.mark.parametrize(
    "fields",
    [
        {"parameters": None},
        {"parameters": torch.zeros(1, LEVELS - 1)},
        {"parameters": torch.zeros(2, LEVELS)},
        {"parameters": torch.zeros(LEVELS)},
        {"parameters": torch.zeros(1, LEVELS, dtype=torch.int64)},
        {"layers": lambda x: x._replace(z=x.z[..., :2])},
        {"layers": lambda x: x._replace(z=x.z.double())},
        {"layers": lambda x: x._replace(z=x.z.expand(2, -1, -1))},
        {"cursor": Cursor(2**63 - 1, 2**63 - 1)},
    ],
)
def test_a_state_of_other_sizes_is_refused_before_a_step(fields: dict[str, Any]) -> None:
    """A step that fails would end all requests."""
    decoder = long_model()
    _, state = decoder.prefill(torch.zeros(1, 3, dtype=torch.int64))
    change = fields.get("layers")
    if change is not None:
        fields = {"layers": tuple(map(change, state.layers))}
    with pytest.raises(ValueError, match=r"state: expected|of the state: expected"):
        batch_of(decoder).add(Request([], 20, state=replace(state, **fields)))


@needs_cpu_backend
def test_memory_stays() -> None:
    """The number of tensors that live is the same after many requests."""
    decoder = compile_decoder(long_model())
    batch = batch_of(decoder, 8)

    def live_tensors() -> int:
        gc.collect()
        return sum(issubclass(type(x), Tensor) for x in gc.get_objects())

    rng = random.Random(2)
    counts = []
    for _ in range(3):
        for _ in range(40):
            number = batch.add(random_request(rng, return_state=True))
            batch.step()
            if rng.random() < 0.2:
                batch.cancel(number)
        run_batch(batch)
        batch.add(Request([], 9, SamplingParams(seed=0)))  # the last settings are cached
        run_batch(batch)
        counts.append(live_tensors())
    assert counts[2] < counts[1] + 10  # a state has a tensor of positions, or an int


@pytest.mark.parametrize(
    ("fields", "error", "name"),
    [
        ({"prompt": [LEVELS]}, ValueError, "prompt"),
        ({"prompt": [0.5]}, TypeError, "prompt"),
        ({"prompt": "text"}, ValueError, "prompt"),
        ({"prompt": None}, TypeError, "prompt"),
        ({"prompt": 3}, TypeError, "prompt"),
        ({"prompt": iter([1])}, TypeError, "prompt"),
        ({"prompt": [[1, 2]]}, ValueError, "prompt"),
        ({"prompt": [2**70]}, TypeError, "prompt"),
        ({"prompt": torch.zeros(1, 2, dtype=torch.int64)}, ValueError, "prompt"),
        ({"prompt": torch.zeros(2)}, TypeError, "prompt"),
        ({"length": LONGEST + 1}, ValueError, "length"),
        ({"length": 0}, ValueError, "length"),
        ({"prompt": [1, 2], "length": 2}, ValueError, "length"),
        ({"sampling": 3}, TypeError, "sampling"),
        ({"sampling": SamplingParams(temperature=[1.0])}, ValueError, "temperature"),  # type: ignore[arg-type]
        ({"sampling": SamplingParams(seed=1.5)}, TypeError, "seed"),  # type: ignore[arg-type]
        ({"sampling": SamplingParams(n=7)}, ValueError, "n"),
        ({"sampling": SamplingParams(n=0)}, ValueError, "n"),
        ({"stop_tokens": LEVELS}, ValueError, "stop_tokens"),
        ({"stop_strings": "a"}, ValueError, "stop_strings"),  # without a tokenizer
        ({"state": 3}, TypeError, "state"),
        ({"return_state": 1}, ValueError, "return_state"),
    ],
)
def test_a_wrong_request_is_refused(
    fields: dict[str, Any], error: type[Exception], name: str
) -> None:
    model = AutoregressiveTransformer(long_model().config, LEVELS, LONGEST, "learned").eval()
    batch = batch_of(model)
    with pytest.raises(error, match=f"^({name}): expected"):
        batch.add(Request(**{"prompt": [1], "length": 9, **fields}))
    assert not batch.has_work


@pytest.mark.parametrize(
    ("call", "error", "name"),
    [
        (lambda model: batch_of(model, 0), ValueError, "max_num_seqs"),
        (lambda model: batch_of(model, 20, 64), ValueError, "max_num_batched_tokens"),
        (lambda model: batch_of(model, steps=0), ValueError, "steps_per_call"),
        (lambda _: batch_of(3), TypeError, "decoder"),
        (lambda model: batch_of(model.transformer), TypeError, "decoder"),
        (lambda model: batch_of(type(model)), TypeError, "decoder"),
        (lambda model: batch_of(model).add([1]), TypeError, "request"),
    ],
)
def test_a_wrong_batch_is_refused(
    call: Callable[[Any], Any], error: type[Exception], name: str
) -> None:
    with pytest.raises(error, match=f"^{name}: expected"):
        call(long_model())
