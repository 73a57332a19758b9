"""OpenAI's own client talks to a server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from linattn_models.serving import create_app
from tests.serving.clients import PATIENCE, make_batch, make_model, run_server

openai = pytest.importorskip("openai")


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    with run_server(create_app(make_batch(), name="tiny")) as port:
        url = f"http://127.0.0.1:{port}/v1"
        yield openai.OpenAI(base_url=url, api_key="none", timeout=PATIENCE, max_retries=0)


def test_completions_whole_and_streamed(client: openai.OpenAI) -> None:
    prompts = ["abc", "d"]
    answer = client.completions.create(model="tiny", prompt=prompts, seed=1, n=2, stop=None)
    own = make_model().generate(prefix=["abc"], length=19, seeds=1, num_samples=2)[:, 3:]
    assert [choice.text for choice in answer.choices[:2]] == make_model().decode(own.tolist())
    stream = client.completions.create(
        model="tiny",
        prompt=prompts,
        seed=1,
        n=2,
        stream=True,
        stream_options={"include_usage": True},
    )
    texts = dict.fromkeys(range(4), "")
    for part in stream:
        for choice in part.choices:
            texts[choice.index] += choice.text
    assert list(texts.values()) == [choice.text for choice in answer.choices]
    assert part.usage == answer.usage and answer.usage.completion_tokens == 64


def test_a_refusal_is_an_error_with_a_sentence(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="penalty: expected null or 0") as caught:
        client.completions.create(model="tiny", prompt="abc", frequency_penalty=1.0)
    assert caught.value.param == "frequency_penalty"
    with pytest.raises(openai.NotFoundError, match="another") as caught:
        client.completions.create(model="another", prompt="abc")
    assert caught.value.code == "model_not_found"
    assert client.models.retrieve("tiny") == client.models.list().data[0]
