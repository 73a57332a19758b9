"""Completions over HTTP: what comes back, and what is refused."""

from __future__ import annotations

import asyncio
import base64
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from pydantic import ValidationError

from linattn_models import Output
from linattn_models.serving import create_app
from linattn_models.serving.fields import CompletionFields
from tests.serving.clients import Server, complete, make_batch, make_model

Serve = Callable[..., Server]


def expected_tokens(length: int, **settings: Any) -> list[list[int]]:
    """The new tokens that `generate` draws after "abc"."""
    tokens = make_model().generate(prefix=["abc"], length=3 + length, **settings)
    rows: list[list[int]] = tokens[:, 3:].tolist()
    return rows


def test_an_answer_has_the_tokens_that_generate_draws(serve: Serve) -> None:
    fields = {"model": "tiny", "prompt": "abc", "max_tokens": 20, "seed": 7}
    answer = serve(name="tiny").complete(**fields, n=3, temperature=0.8)
    rows = expected_tokens(20, seeds=7, num_samples=3, temperature=0.8)
    assert [choice["tokens"] for choice in answer["choices"]] == rows
    assert [choice["text"] for choice in answer["choices"]] == make_model().decode(rows)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert {choice["finish_reason"] for choice in answer["choices"]} == {"length"}
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 60, "total_tokens": 63}
    assert answer["object"] == "text_completion" and answer["model"] == "tiny"


def test_all_samples_come_over_one_connection(serve: Serve) -> None:
    rows: dict[int, list[int]] = {}
    texts: dict[int, str] = {}
    for part in serve().stream(prompt="abc", max_tokens=20, seed=7, n=8):
        assert len(part["choices"]) == 1
        for choice in part["choices"]:
            rows.setdefault(choice["index"], []).extend(choice["tokens"])
            texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
    expected = expected_tokens(20, seeds=7, num_samples=8)
    assert [rows[index] for index in range(8)] == expected
    assert [texts[index] for index in range(8)] == make_model().decode(expected)


@pytest.mark.parametrize(
    "prompts", [["abc", "b", ""], [[0, 1, 2], [1], []]], ids=["text", "tokens"]
)
def test_each_prompt_of_a_list_is_continued(serve: Serve, prompts: list[Any]) -> None:
    fields: dict[str, Any] = {"max_tokens": 6, "seed": 5, "n": 2}
    server = serve(queue=3)
    alone = [server.complete(prompt=prompt, **fields) for prompt in prompts]
    choices = [choice for one in alone for choice in one["choices"]]
    many = server.complete(prompt=prompts, echo=True, **fields)
    assert [x["tokens"] for x in many["choices"]] == [x["tokens"] for x in choices]
    assert [x["index"] for x in many["choices"]] == list(range(6))
    begins = ["abc", "abc", "b", "b", "", ""]
    texts = [begin + x["text"] for begin, x in zip(begins, choices, strict=True)]
    assert [x["text"] for x in many["choices"]] == texts
    usage = {"prompt_tokens": 4, "completion_tokens": 36, "total_tokens": 40}
    assert many["usage"] == usage
    fields["stream_options"] = {"include_usage": True}
    *parts, last = server.stream(prompt=prompts, echo=True, **fields)
    assert last["choices"] == [] and last["usage"] == usage
    for index, text in enumerate(texts):
        own = [x for part in parts for x in part["choices"] if x["index"] == index]
        assert "".join(x["text"] for x in own) == text


def test_what_asks_for_nothing_changes_nothing(serve: Serve) -> None:
    """Of LangChain and other clients, which send each field they know."""
    off = {
        "best_of": 1,
        "frequency_penalty": 0,
        "logit_bias": {},
        "presence_penalty": 0.0,
        "suffix": "",
        "user": "me",
        "metadata": {"key": "value"},
        "stop": [],
        "n": 1,
    }
    fields = {"prompt": ["abc"], "seed": 1}
    bodies = [fields, {**off, **fields}, {**dict.fromkeys(off), **fields}]
    bodies.append({**fields, "max_tokens": None, "temperature": None, "logprobs": None})
    server = serve()
    for body in bodies:
        assert server.complete(**body)["choices"][0]["tokens"] == expected_tokens(16, seeds=1)[0]


def test_nobody_gets_the_tokens_of_others(serve: Serve) -> None:
    rng = random.Random(0)
    lengths = [rng.randint(1, 60) for _ in range(40)]

    async def main() -> list[dict[str, Any]]:
        async with serve().client() as client:
            return await asyncio.gather(
                *(
                    complete(client, prompt="abc", max_tokens=length, seed=seed)
                    for seed, length in enumerate(lengths)
                )
            )

    for seed, answer in enumerate(asyncio.run(main())):
        assert answer["choices"][0]["tokens"] == expected_tokens(lengths[seed], seeds=seed)[0]


def test_a_stop_token_ends_a_sequence(serve: Serve) -> None:
    answer = serve().complete(prompt="abc", seed=1, max_tokens=200, stop_tokens=2)
    choice = answer["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert choice["tokens"].index(2) == len(choice["tokens"]) - 1


def test_a_stop_string_ends_a_sequence(serve: Serve) -> None:
    text = make_model().decode(expected_tokens(20, seeds=1))[0]
    fields = {"prompt": "abc", "seed": 1, "max_tokens": 20, "stop": ["?", text[7:9]]}
    server = serve()
    whole, parts = server.complete(**fields), server.stream(**fields)
    choice = whole["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert choice["text"] == text[: text.index(text[7:9])]
    assert choice["tokens"] == expected_tokens(20, seeds=1)[0][: text.index(text[7:9]) + 2]
    streamed = [choice for part in parts for choice in part["choices"]]
    assert "".join(x["text"] for x in streamed) == choice["text"]


def test_what_is_no_stop_string_after_all_is_sent(serve: Serve) -> None:
    text = make_model().decode(expected_tokens(20, seeds=1))[0]
    stop = [text[3:12] + "?", text[-2:] + "?"]
    parts = serve().stream(prompt="abc", seed=1, max_tokens=20, stop=stop)
    choices = [choice for part in parts for choice in part["choices"]]
    assert "".join(choice["text"] for choice in choices) == text
    assert choices[-1]["finish_reason"] == "length"


@pytest.mark.parametrize("as_bytes", [False, True])
def test_a_state_is_continued(serve: Serve, as_bytes: bool) -> None:
    server = serve()
    (first,) = server.complete(prompt="abc", max_tokens=9, seed=1, return_state=True)["choices"]
    fields = {"state": first["state"]}
    if as_bytes:
        content = server.ask("GET", f"/v1/states/{first['state']}").content
        fields = {"state_bytes": base64.b64encode(content).decode()}
    (second,) = server.complete(max_tokens=9, seed=1, **fields)["choices"]
    assert first["tokens"] + second["tokens"] == expected_tokens(18, seeds=1)[0]


def test_prompt_and_texts_are_the_decoded_whole(serve: Serve) -> None:
    """With a decoder that leaves out a space before a text; also in streams and after states."""
    tokenizers = pytest.importorskip("tokenizers")
    table = {word: token for token, word in enumerate(["<u>", *(f"\u2581{x}" for x in "abcdefgh")])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(table, "<u>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    tokenizer.decoder = tokenizers.decoders.Metaspace()
    batch = make_batch()
    batch.decoder.tokenizer = tokenizer
    fields = {"max_tokens": 6, "return_state": True, "seed": 3}
    server = serve(batch)
    first = server.complete(prompt="a b", n=2, **fields)["choices"][1]
    parts = server.stream(state=first["state"], **fields)
    streamed = [choice for part in parts for choice in part["choices"]]
    tokens = first["tokens"] + [token for x in streamed for token in x["tokens"]]
    text = "a b" + first["text"] + "".join(x["text"] for x in streamed)
    assert text == tokenizer.decode(tokenizer.encode("a b").ids + tokens)
    for prompt in ({"prompt": "a b"}, {"prompt": "b", "state": first["state"]}):
        text = server.complete(**prompt, **fields)["choices"][0]["text"]
        one = server.complete(stop=text[2:4], **prompt, **fields)
        assert text[0] == " " and one["choices"][0]["text"] == text[: text.index(text[2:4])]


def test_the_server_tells_about_itself(serve: Serve) -> None:
    server = serve(name="tiny")
    server.complete(prompt="abc", max_tokens=5, n=2)
    server.stream(prompt="abc", max_tokens=5)
    (model,) = server.ask("GET", "/v1/models").json()["data"]
    assert server.ask("GET", "/v1/models/tiny").json() == model
    assert server.ask("GET", "/v1/models/an/other").status_code == 404
    for route in ("/health", "/v1/models", "/v1/models/tiny"):
        assert server.ask("HEAD", route).status_code == 200
    state = make_model().generate(prefix=["abc"], length=4, return_state=True)[1]
    assert (model["id"], model["state_bytes"]) == ("tiny", state.nbytes)
    assert server.ask("GET", "/health").text == '{"status":"ok"}'
    metrics = server.ask("GET", "/metrics").text
    for line in (
        "linattn_prompt_tokens_total 6.0",
        "linattn_generated_tokens_total 15.0",
        'linattn_sequences_total{finish_reason="length"} 3.0',
        "linattn_running_sequences 0.0",
        'linattn_responses_total{status="404"} 1.0',
        "linattn_first_token_seconds_count 2.0",
        "linattn_completion_seconds_count 2.0",
    ):
        assert f"{line}\n" in metrics
    assert "linattn_next_token_seconds_count 0.0" not in metrics


# Fields beside a prompt, and the one that is named. One number of a draw stands for all: they are
# tested where they are checked.
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 10_000_000_000_000_000_000_000}, "max_tokens"),
    ({"n": 9}, "n"),
    ({"temperature": -1}, "temperature"),
    ({"top_k": 0}, "top_k"),
    ({"seed": 2**63}, "seed"),
    ({"stop_tokens": [99]}, "stop_tokens"),
    ({"stop": [""]}, "stop"),
    ({"stop": ["a"] * 65}, "stop"),
    ({"stop": "a" * 257}, "stop"),
    ({"stream_options": 1}, "stream_options"),
    ({"prompt": "XYZ"}, "prompt"),
    ({"prompt": [99]}, "prompt"),
    ({"prompt": [[[1, 2, 3]]]}, "prompt"),
    ({"prompt": [1, "a"]}, "prompt"),
    ({"prompt": ["a", "XYZ"]}, "prompt"),
    ({"prompt": ["a"] * 300}, "prompt"),
    ({"prompt": [-1], "echo": True}, "prompt"),
    ({"prompt": None}, "prompt"),
    ({"state": "none"}, "state"),
    ({"state_bytes": "?"}, "state_bytes"),
    ({"state_bytes": "AAAA"}, "state_bytes"),
    ({"state": "none", "state_bytes": "AAAA"}, "state_bytes"),
    ({"prompt": {"text": "abc"}}, "prompt"),
    ({"seeds": 1}, "seeds"),
    ({"seeds": None}, "seeds"),
    ({"frequency_penalty": 1}, "frequency_penalty"),
    ({"logit_bias": {"1": 2}}, "logit_bias"),
    ({"best_of": 2}, "best_of"),
    ({"suffix": "a"}, "suffix"),
    ({"model": "another"}, "model"),
]


def test_a_wrong_field_is_named(serve: Serve) -> None:
    server = serve()
    for fields, field in WRONG:
        response = server.ask("POST", "/v1/completions", json={"prompt": "abc", **fields})
        error, unknown = response.json()["error"], field == "model"
        assert response.status_code == (404 if unknown else 400), fields
        assert error["code"] == ("model_not_found" if unknown else None)
        assert error["param"] == field and error["type"] == "invalid_request_error"
        assert error["message"].startswith(f"{field}: ")
    assert server.complete(prompt="abc", max_tokens=1)["choices"]


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b'{"n": ' + b"9" * 5000 + b"}", b'{"\\ud800": 1}'],
    ids=lambda body: body[:20],
)
def test_a_body_that_is_no_object_is_refused(serve: Serve, body: bytes) -> None:
    error = send(serve(), "POST", "/v1/completions", body)
    assert error["message"].startswith("the body: expected a JSON object")


def test_the_content_type_is_asked_for(serve: Serve) -> None:
    """Of clients such as curl -d, which sends forms."""
    form = "application/x-www-form-urlencoded"
    error = send(serve(), "POST", "/v1/completions", b'{"prompt": "abc"}', form)
    assert "application/json" in error["message"]


@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/completions"), ("POST", "/nothing")])
def test_another_route_is_refused(serve: Serve, method: str, path: str) -> None:
    error = send(serve(), method, path)
    assert error["message"].startswith(f"{method} {path}: expected")


def test_a_fault_of_the_server_has_the_form_of_its_errors(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **named: object) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr("linattn_models.serving.app.read_fields", fail)

    async def main() -> None:
        server = serve()
        transport = httpx2.ASGITransport(server.app, raise_app_exceptions=False)
        async with httpx2.AsyncClient(transport=transport, base_url="http://server") as client:
            answer = await client.post("/v1/completions", json={"prompt": "abc"})
            error = answer.json()["error"]
            assert answer.status_code == 500 and error["type"] == "server_error"
            assert "RuntimeError" in error["message"] and "secret" not in error["message"]
            metrics = (await client.get("/metrics")).text
            assert 'linattn_responses_total{status="500"} 1.0' in metrics

    asyncio.run(main())


@pytest.mark.parametrize("field", ["prompt", "stop_tokens", "stop"])
def test_a_long_list_is_read_up_to_its_first_error(field: str) -> None:
    with pytest.raises(ValidationError) as caught:
        CompletionFields.model_validate({field: [None] * 100})
    assert caught.value.error_count() <= 4


def send(
    server: Server, method: str, path: str, body: bytes = b"", kind: str = "application/json"
) -> dict[str, Any]:
    """The error that answers a request."""
    response = server.ask(method, path, content=body, headers={"content-type": kind})
    assert 400 <= response.status_code < 500
    error: dict[str, Any] = response.json()["error"]
    return error


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"queue": 0}, "queue"),
        ({"most_bytes": 0}, "most_bytes"),
        ({"most_unfinished": 0}, "most_unfinished"),
        ({"body_time": -1}, "body_time"),
        ({"store_time": -1}, "store_time"),
        ({"most_prompt": 0}, "most_prompt"),
        ({"stall": -1}, "stall"),
    ],
)
def test_a_wrong_application_is_refused(arguments: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name}: expected"):
        create_app(make_batch(), **arguments)
    with pytest.raises(TypeError, match=r"^batch: expected"):
        create_app(make_model())  # type: ignore[arg-type]


def test_event_loops_of_several_threads_share_a_server(serve: Serve) -> None:
    """One thread owns the batch, whichever loop asks first."""
    server = serve()

    def ask(seed: int) -> list[int]:
        (choice,) = server.complete(prompt="abc", max_tokens=20, seed=seed)["choices"]
        tokens: list[int] = choice["tokens"]
        return tokens

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, range(24)))
    assert answers == [expected_tokens(20, seeds=seed)[0] for seed in range(24)]


def test_a_request_that_comes_while_the_server_stops_is_refused(serve: Serve) -> None:
    """It would never be answered, if nothing read it after the thread's last look."""

    async def main() -> None:
        server = serve()
        engine = server.app.state.engine
        async with server.client() as client:
            await complete(client, prompt="abc", max_tokens=1)
            asks = [
                client.post("/v1/completions", json={"prompt": "abc", "max_tokens": 50})
                for _ in range(20)
            ]
            answers = asyncio.gather(*asks)
            await asyncio.to_thread(engine.stop)
            async with asyncio.timeout(60):
                assert {answer.status_code for answer in await answers} <= {200, 503}

    asyncio.run(main())


@pytest.mark.parametrize("declared", [True, False])
def test_a_large_body_is_refused(serve: Serve, declared: bool) -> None:
    async def parts() -> Any:
        yield b'{"prompt": "'
        for _ in range(100):
            yield b"a" * 100

    server, headers = serve(most_bytes=1000), {"content-type": "application/json"}
    content: Any = b"a" * 2000 if declared else parts()
    answer = server.ask("POST", "/v1/completions", content=content, headers=headers)
    assert answer.status_code == 413
    metrics = server.ask("GET", "/metrics").text
    assert 'linattn_responses_total{status="413"} 1.0' in metrics


def test_a_full_queue_refuses_and_the_others_go_on(serve: Serve) -> None:
    async def main() -> list[Any]:
        async with serve(make_batch(1), queue=2).client() as client:
            body = {"prompt": "abc", "max_tokens": 200, "seed": 3}
            return await asyncio.gather(
                *(client.post("/v1/completions", json=body) for _ in range(10))
            )

    responses = asyncio.run(main())
    refused = [response for response in responses if response.status_code == 503]
    answered = [response for response in responses if response.status_code == 200]
    assert refused and all(response.headers["retry-after"] for response in refused)
    assert len(answered) == 10 - len(refused) >= 2
    rows = expected_tokens(200, seeds=3)
    assert all(response.json()["choices"][0]["tokens"] == rows[0] for response in answered)


def test_a_server_that_stops_ends_its_answers(serve: Serve) -> None:
    server = serve(make_batch(max_length=100_000))

    async def main() -> tuple[int, int]:
        async with server.client() as client:
            first = asyncio.create_task(
                client.post("/v1/completions", json={"prompt": "abc", "max_tokens": 90_000})
            )
            while not server.batch.num_seqs_running:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(server.app.state.engine.stop)
            second = await client.get("/health")
            return (await first).status_code, second.status_code

    assert asyncio.run(main()) == (503, 503)


@pytest.mark.parametrize(("seconds", "steps"), [(2**-12, 16), (2**-6, 3), (2**-2, 1)])
def test_few_steps_are_made_at_once_where_they_take_long(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, seconds: float, steps: int
) -> None:
    """At most 50 ms, so that the events of a stream come evenly. The clock is a number."""
    batch, clock, counts = make_batch(), [0.0], []
    batch.steps_per_call = 16
    engine = serve(batch).app.state.engine

    def step() -> list[Output]:
        counts.append(batch.steps_per_call)
        clock[0] += seconds * batch.steps_per_call
        return [Output(1, 0, [0] * batch.steps_per_call)]

    monkeypatch.setattr(batch, "step", step)
    time = SimpleNamespace(perf_counter=lambda: clock[0])
    monkeypatch.setattr("linattn_models.serving.engine.time", time)
    for _ in range(3):
        engine._step()
    assert counts == [1, steps, steps]
