"""`generate` starts from a state and returns one; all decoders agree."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from linattn_models import (
    AutoregressiveTransformer,
    CannotCompile,
    ContinuousBatch,
    Request,
    SamplingParams,
    compile_decoder,
)
from tests.models.decoding.decoders import (
    Kind,
    close,
    long_model,
    model_of,
    needs_cpu_backend,
    run_batch,
    same_state,
)
from tests.models.tiny import STEPPING, greedy, random_tokens, seeded, tiny_config, tiny_model


@settings(max_examples=30)
@given(
    attention=st.sampled_from(STEPPING),
    lengths=st.lists(st.integers(0, 3), min_size=1, max_size=3),
    cut=st.integers(4, 7),
)
def test_two_halves_are_the_whole(attention: str, lengths: list[int], cut: int) -> None:
    model = tiny_model(attention)
    prompts = [random_tokens(model, 1, length)[0].tolist() for length in lengths]
    whole = greedy(model, prefix=prompts)
    first, state = greedy(model, prefix=prompts, length=cut, return_state=True)
    assert torch.equal(first, whole[:, :cut])
    assert state.position == cut + 1  # the start vector counts
    kept = state.clone()
    rest = greedy(model, state=state)  # by default as many as there is room for
    assert torch.equal(rest, whole[:, cut:])
    assert all(map(torch.equal, state.layers[0], kept.layers[0]))  # the state stays as it is


@pytest.mark.parametrize("prefix", [0, 3])
def test_every_decoder_goes_on_from_a_state(kind: Kind, prefix: int) -> None:
    model = long_model().to(kind.device)
    options = kind.options(model)
    tokens, more = kind.tokens(model, 3, 4), kind.tokens(model, 3, prefix)
    whole = greedy(model, prefix=tokens, length=6, decoder="eager")
    _, state = greedy(model, prefix=tokens, length=6, return_state=True, **options)
    expected, after = greedy(
        model, state=state, prefix=more, length=12, return_state=True, decoder="eager"
    )
    actual, ours = greedy(model, state=state, prefix=more, length=12, return_state=True, **options)
    assert torch.equal(actual, expected)
    same_state(ours, after)
    alone = torch.cat([whole, more], 1)
    assert torch.equal(greedy(model, prefix=alone, length=18, decoder="eager")[:, 6:], expected)
    if kind.name != "eager":
        assert torch.equal(
            greedy(options["decoder"], state=state, prefix=more, length=12), expected
        )


KINDS_OF_LAYERS: list[dict[str, Any]] = [
    {},
    {"positions": "rotary", "num_kv_heads": 1},
    {"decay": "learned", "positions": "sinusoidal"},
    {"window_size": 3},
    {"window_size": 3, "decay": "gated"},
]


def test_a_decoder_reads_ragged_tokens_behind_a_state(compiled: Kind) -> None:
    for fields in KINDS_OF_LAYERS:
        model = model_of(**fields).to(compiled.device)
        tokens, more = compiled.tokens(model, 3, 4), compiled.tokens(model, 3, 5)
        with torch.no_grad():
            _, state = model.prefill(tokens, torch.tensor([2, 4, 0]))
            # Padding of the first would be beyond the last position; the second has none.
            for new, lengths in ((more, torch.tensor([5, 0, 2])), (more[:, :4], None)):
                expected, theirs = model.prefill(new, lengths, state)
                actual, ours = compiled.decoder(model).prefill(new, lengths, state)
                close(actual, expected)
                same_state(replace(ours, max_length=theirs.max_length), theirs)
                assert torch.equal(ours.recent, theirs.recent)


@settings(max_examples=40)
@given(
    attention=st.sampled_from(STEPPING),
    stop=st.integers(0, 6),
    rows=st.lists(st.tuples(st.integers(1, 5), st.integers(0, 3)), min_size=1, max_size=5),
    samples=st.integers(1, 2),
    count=st.integers(1, 3),
)
@example(attention="linear", stop=6, rows=[(2, 0), (2, 1)], samples=1, count=1)
def test_stopped_rows_leave_the_state_of_their_own_tokens(
    attention: str, stop: int, rows: list[tuple[int, int]], samples: int, count: int
) -> None:
    """Rows of any prefix and number of new tokens, of which some may have none; also a stream."""
    assume(any(new for _, new in rows))
    model = tiny_model(attention)
    lengths = [known for known, _ in rows]
    prompts = [random_tokens(model, 1, length)[0].tolist() for length in lengths]
    fields: dict[str, Any] = {
        "prefix": prompts, "length": [known + new for known, new in rows], "stop_tokens": stop,
        "num_samples": samples, "return_state": True,
    }  # fmt: skip
    tokens, state = model.generate(**fields, generator=seeded())
    assert state.batch == len(tokens) == len(lengths) * samples
    for row, known in enumerate(tokens):
        own = known[known >= 0]
        expected, _ = model.prefill(own[None])
        torch.testing.assert_close(state.parameters[row], expected[0])
        assert int(state.cursor.rows(len(tokens))[row]) == len(own) + 1
    stream = model.stream(**fields, generator=seeded())
    drawn = torch.stack(list(islice(stream, count)), 1)
    for row, state in enumerate(stream.state.split(1)):
        own = torch.cat([tokens[row, : lengths[row // samples]], drawn[row][drawn[row] >= 0]])
        torch.testing.assert_close(state.parameters, model.prefill(own[None])[0])
        assert state.position == len(own) + 1


@pytest.mark.parametrize(
    ("how", "count"),
    [({"temperature": 0.0}, 4), ({"seeds": [3, 4, 5]}, 1), ({"seeds": [3, 4, 5]}, 20)],
    ids=str,
)
def test_a_stream_is_left_and_continued(kind: Kind, how: dict[str, Any], count: int) -> None:
    model = long_model().to(kind.device)
    options = kind.options(model) | {"prefix": [[1, 2], [], [3]], "max_new_tokens": 21, **how}
    whole = torch.stack(list(model.stream(**options)), 1)
    stream = model.stream(return_state=True, **options)
    first = torch.stack(list(islice(stream, count)), 1)
    state = stream.state
    assert torch.equal(state.cursor.rows(3).cpu(), torch.tensor([3, 1, 2]) + count)
    assert torch.equal(torch.cat([first, torch.stack(list(stream), 1)], 1), whole)  # it goes on
    options |= {"prefix": None, "state": state, "max_new_tokens": 21 - count}
    rest = torch.stack(list(model.stream(**options)), 1)
    assert torch.equal(torch.cat([first, rest], 1), whole)
    with pytest.raises(ValueError, match="return_state"):
        _ = model.stream(2).state
    with pytest.raises(ValueError, match="state"):
        _ = model.stream(2, return_state=True).state


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"return_state": 1}, ValueError, "return_state"),
        ({"length": 9, "return_state": True}, ValueError, "state that is returned needs one more"),
        ({"length": 7, "from": True}, ValueError, "9 positions, got 7 after the 3 of the state"),
        ({"batch": 3, "from": True}, ValueError, "state"),
        ({"prefix": [[1]], "from": True}, ValueError, "prefix"),
        ({"method": "rerun", "from": True}, ValueError, "a model that steps, got method 'rerun'"),
        ({"method": "rerun", "return_state": True, "length": 3}, ValueError, "method 'rerun'"),
        ({"state": 3}, TypeError, "state"),
        ({"prefix": [[1, 2]], "length": 2, "return_state": True}, ValueError, "more tokens than"),
    ],
)
def test_refuses_what_cannot_be_right(
    attention: str, options: dict[str, Any], error: type[Exception], said: str
) -> None:
    model = tiny_model(attention)
    if options.get("from"):
        _, state = greedy(model, prefix=[[1], [2]], length=3, return_state=True)
        options = {name: x for name, x in options.items() if name != "from"} | {"state": state}
    with pytest.raises(error, match=re.escape(said)):
        model.generate(**options)


def endless(positions: str, **fields: Any) -> AutoregressiveTransformer:
    model = AutoregressiveTransformer(tiny_config(**fields), 7, None, positions).double().eval()
    torch.nn.init.normal_(model.output.weight, std=2.0)
    return model


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary", "none"])
@pytest.mark.parametrize("length", [500, pytest.param(10_000, marks=pytest.mark.slow)])
def test_greedy_tokens_are_the_parallel_forms_however_far(positions: str, length: int) -> None:
    model = endless(positions)
    tokens, state = greedy(model, length=length, decoder="eager", return_state=True)
    with torch.no_grad():
        assert torch.equal(model(tokens).argmax(-1), tokens)
    assert state.max_length is None and state.position == length + 1
    assert state.nbytes == model.transformer.initial_state(1).nbytes


@pytest.mark.parametrize("positions", ["sinusoidal", "none"])
def test_compiled_decoders_go_on_without_an_end(compiled: Kind, positions: str) -> None:
    model = endless(positions).float().to(compiled.device)
    prefix = compiled.tokens(model, 2, 3)
    expected = greedy(model, prefix=prefix, length=40, decoder="eager")
    assert torch.equal(greedy(compiled.decoder(model), prefix=prefix, length=40), expected)


def test_a_prompt_longer_than_the_table_is_read_without_positions() -> None:
    model = endless("none").float()
    decoder = compile_decoder(model)
    prompt = random_tokens(model, 1, 1100)
    expected, theirs = model.prefill(prompt)
    actual, ours = decoder.prefill(prompt)
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4)
    assert ours.position == theirs.position and decoder.longest is None
    assert torch.equal(
        greedy(model, prefix=prompt, length=1120, decoder="compiled"),
        greedy(model, prefix=prompt, length=1120, decoder="eager"),
    )


def test_sinusoidal_positions_are_compiled_up_to_a_length() -> None:
    model = endless("sinusoidal").float()
    assert compile_decoder(model).longest == 4096
    decoder = compile_decoder(model, max_length=5000)
    assert decoder.longest == 8192  # few sizes of tables
    with pytest.raises(ValueError, match="at most 8192 positions, got 8193"):
        model.generate(length=8193, decoder=decoder)
    with pytest.raises(
        CannotCompile, match="expected at most 131,072, rows of a table, got 200000"
    ):
        next(model.stream(length=200_000, decoder="compiled"))
    assert next(model.stream(length=200_000)).shape == (1,)  # "auto" steps eagerly
    with pytest.raises(ValueError, match="max_length"):
        compile_decoder(model.transformer, max_length=5)  # type: ignore[call-overload]


@pytest.mark.parametrize("positions", ["sinusoidal", "none"])
def test_a_stream_without_a_length_goes_on_for_ever(positions: str) -> None:
    model = endless(positions)
    assert len(list(islice(model.stream(2), 50))) == 50
    with pytest.raises(ValueError, match="the model has no max_length"):
        model.generate(2)


@pytest.mark.parametrize(
    ("attention", "decoder"),
    [
        ("linear", "eager"),
        ("softmax", "eager"),
        pytest.param("windowed", "compiled", marks=needs_cpu_backend),
    ],
)
@pytest.mark.parametrize("positions", ["learned", "none"])
def test_without_a_start_vector_the_last_token_has_a_position(
    attention: str, decoder: str, positions: str
) -> None:
    """So the state takes no other: in `generate`, in a batch, and for the default length."""
    model = AutoregressiveTransformer(tiny_config(attention), 5, 24, positions, start=False).eval()
    options: dict[str, Any] = {"prefix": [[1, 2], []], "seeds": [3, 4], "decoder": decoder}
    tokens, state = model.generate(return_state=True, **options)
    assert torch.equal(tokens, model.generate(**options)) and tokens.shape == (2, 24)
    assert state.cursor.position == 24
    batch = ContinuousBatch(model if decoder == "eager" else compile_decoder(model), 2)
    requests = [
        Request(prompt, None, SamplingParams(seed=seed), return_state=True)
        for prompt, seed in (([1, 2], 3), ([], 4))
    ]
    answers = run_batch(batch, *requests)
    for row, wanted in enumerate(tokens.tolist()):
        assert wanted[2 - 2 * row :] == answers.tokens[row + 1, 0]
        assert answers.states[row + 1, 0].position == 24


@pytest.mark.parametrize("attention", STEPPING)
@pytest.mark.parametrize("positions", ["learned", "rotary", "sinusoidal", "none"])
def test_a_batch_has_a_default_length_that_leaves_room_for_the_state(
    attention: str, positions: str
) -> None:
    model = tiny_model(attention, positions=positions)
    batch = ContinuousBatch(model, 2)
    batch.add(Request([1, 2], return_state=True))
    *_, last = (output for _ in range(20) for output in batch.step())
    most = model.config.has_cache or positions == "learned"
    assert last.state is not None and last.state.position == model.max_length + (not most)


def test_a_returned_state_can_be_differentiated_through(attention: str) -> None:
    model = tiny_model(attention)
    prompts = [[1, 2, 3], [1]]
    _, state = greedy(model, prefix=prompts, length=6, stop_tokens=[2], return_state=True)

    model.step(torch.tensor([1, 1]), state)[0].sum().backward()
    assert model.output.weight.grad is not None
