"""Clients of OpenAI's server talk to ours: each with its own library, and curl's requests."""

from __future__ import annotations

import json
import string
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from linattn_models.serving import create_app
from tests.serving.clients import PATIENCE, make_chat_batch, run_server

KEY = "secret"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with run_server(create_app(make_chat_batch(), name="tiny", api_key=KEY)) as port:
        yield f"http://127.0.0.1:{port}/v1"


def post(url: str, route: str, body: dict[str, Any]) -> httpx2.Response:
    headers = {"Authorization": f"Bearer {KEY}"}
    return httpx2.post(f"{url}/{route}", json=body, headers=headers, timeout=PATIENCE)


SAY = {"model": "tiny", "prompt": "Say this is a test", "max_tokens": 7, "temperature": 0}
CHAT = {
    "model": "tiny",
    "messages": [
        {"role": "developer", "content": "You are a helpful assistant."},
        {"role": "user", "content": "Hello!"},
    ],
}


@pytest.mark.parametrize(
    ("route", "body", "kind"),
    [
        ("completions", SAY, "text_completion"),
        ("chat/completions", CHAT, "chat.completion"),
        ("chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 2}, "chat.completion"),
    ],
)
def test_examples_of_openais_reference(
    url: str, route: str, body: dict[str, Any], kind: str
) -> None:
    """Those of curl: https://platform.openai.com/docs/api-reference."""
    answer = post(url, route, body).json()
    assert answer["object"] == kind and answer["id"] and answer["created"]
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    (choice,) = answer["choices"]
    assert choice["index"] == 0 and choice["finish_reason"] in ("stop", "length")
    lines = post(url, route, {**body, "stream": True}).text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]


def test_open_webui(url: str) -> None:
    """The calls of its backend: a connection, a chat as it comes, and a title for the chat."""
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    models = httpx2.get(f"{url}/models", headers=headers, timeout=PATIENCE).json()
    (model,) = [each["id"] for each in models["data"]]
    chat = {
        "stream": True,
        "model": model,
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Hello!"}]},
            {"role": "assistant", "content": "Hi."},
            {"role": "user", "content": "Go on."},
        ],
        "stream_options": {"include_usage": True},
        "temperature": 0.8,
        "top_p": 0.9,
        "max_tokens": 20,
        "stop": ["###"],
        "seed": 1,
        "logit_bias": {},
    }
    *lines, done, _ = post(url, "chat/completions", chat).text.split("\n\n")
    events = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert done == "data: [DONE]" and events[0]["choices"][0]["delta"]["role"] == "assistant"
    assert events[-1]["usage"]["completion_tokens"] == 20
    title = {"model": model, "messages": CHAT["messages"], "stream": False}
    title |= {"max_completion_tokens": 10}
    answer = post(url, "chat/completions", title).json()
    assert isinstance(answer["choices"][0]["message"]["content"], str)


def test_openai(url: str) -> None:
    openai = pytest.importorskip("openai")
    fields = {"base_url": url, "timeout": PATIENCE, "max_retries": 0}
    client = openai.OpenAI(api_key=KEY, **fields)
    answer = client.chat.completions.create(**CHAT, max_tokens=5, logprobs=True, top_logprobs=2)
    content = answer.choices[0].logprobs.content
    assert "".join(each.token for each in content) == answer.choices[0].message.content
    assert [len(each.top_logprobs) for each in content] == [2] * 5
    answer = client.completions.create(**SAY, logprobs=2).choices[0]
    assert "".join(answer.logprobs.tokens) == answer.text
    assert client.models.retrieve("tiny") == client.models.list().data[0]
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(**SAY, frequency_penalty=1.0)
    assert refused.value.param == "frequency_penalty"
    with pytest.raises(openai.NotFoundError) as refused:
        client.completions.create(**{**SAY, "model": "another"})
    assert refused.value.code == "model_not_found"
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(api_key="another", **fields).models.list()


def test_langchain(url: str) -> None:
    langchain = pytest.importorskip("langchain_openai", reason="needs langchain-openai")
    fields = {"base_url": url, "api_key": KEY, "model": "tiny", "timeout": PATIENCE}
    model = langchain.OpenAI(**fields, max_tokens=5, seed=1)
    text = model.invoke("Say this")
    assert len(text) == 5 and "".join(model.stream("Say this")) == text
    assert len(model.batch(["a", "b", "c"])) == 3
    assert model.invoke("Say this", stop=[text[2]]) == text[: text.index(text[2])]
    many = model.generate(["a", "b"])
    assert many.llm_output["token_usage"]["completion_tokens"] == 10
    chat = langchain.ChatOpenAI(**fields, max_completion_tokens=5, seed=1)
    messages = [("system", "You are a cow."), ("human", "Hello!")]
    answer = chat.invoke(messages)
    assert len(answer.content) == 5 and answer.usage_metadata["output_tokens"] == 5
    streamed = list(chat.stream(messages))
    assert "".join(chunk.content for chunk in streamed) == answer.content
    assert chat.bind(logprobs=True).invoke(messages).response_metadata["logprobs"]["content"]


@pytest.mark.filterwarnings("ignore")  # of what litellm imports
def test_litellm(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # nothing is fetched
    litellm = pytest.importorskip("litellm", reason="litellm is large")
    fields = {"api_base": url, "api_key": KEY, "max_tokens": 5, "seed": 1, "timeout": PATIENCE}
    messages = CHAT["messages"]
    answer = litellm.completion(model="openai/tiny", messages=messages, **fields)
    content = answer.choices[0].message.content
    assert len(content) == 5 and answer.usage.completion_tokens == 5
    parts = litellm.completion(model="openai/tiny", messages=messages, stream=True, **fields)
    assert "".join(part.choices[0].delta.content or "" for part in parts) == content
    model = "text-completion-openai/tiny"
    text = litellm.text_completion(model=model, prompt="Say this", **fields).choices[0].text
    assert len(text) == 5 and set(text) <= set(string.printable)
