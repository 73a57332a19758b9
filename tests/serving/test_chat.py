"""Chats: templates, and OpenAI's client."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from linattn_models.serving import ChatTemplate, create_app
from linattn_models.serving.chat import read_template
from linattn_models.serving.fields import ChatFields, read_chat
from tests.serving.clients import (
    PATIENCE,
    Server,
    complete,
    make_batch,
    make_chat_batch,
    run_server,
)

Serve = Callable[..., Server]

USER = {"role": "user", "content": "abc"}
CHAT = [{"role": "system", "content": "be"}, USER]
JOINED = ChatTemplate("{% for m in messages %}{{ m['content'] }}{% endfor %}")


def test_without_a_template_each_message_is_a_line() -> None:
    messages = [*CHAT, {"role": "assistant", "content": "d"}, USER]
    text = ChatTemplate().render(messages, 1000)
    assert text == "system: be\nuser: abc\nassistant: d\nuser: abc\nassistant:"


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    openai = pytest.importorskip("openai")
    with run_server(create_app(make_chat_batch())) as port:
        url = f"http://127.0.0.1:{port}/v1"
        yield openai.OpenAI(base_url=url, api_key="none", timeout=PATIENCE, max_retries=0)


def test_openais_client_chats(client: Any) -> None:
    fields = {"model": "linattn", "messages": CHAT, "seed": 1, "max_completion_tokens": 30}
    whole = client.chat.completions.create(**fields, n=2)
    assert whole.object == "chat.completion" and whole.usage.completion_tokens == 60
    assert {choice.message.role for choice in whole.choices} == {"assistant"}
    prompt = ChatTemplate().render(CHAT, 1000)
    plain = client.completions.create(
        model="linattn", prompt=prompt, seed=1, n=2, max_tokens=30, stop="\nuser:"
    )
    texts = [choice.text for choice in plain.choices]
    assert [choice.message.content for choice in whole.choices] == texts
    options = {"include_usage": True}
    chunks = list(client.chat.completions.create(**fields, stream=True, stream_options=options))
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert "".join(delta.content for delta in deltas) == texts[0]
    assert [delta.role for delta in deltas] == ["assistant", *[None] * (len(deltas) - 1)]
    assert chunks[-1].usage.completion_tokens == 30
    parts = [{"type": "text", "text": "ab"}, {"type": "text", "text": "c"}]
    messages = [CHAT[0], {"role": "user", "content": parts}]
    again = client.chat.completions.create(**{**fields, "messages": messages})
    assert again.choices[0].message.content == texts[0]


def test_an_answer_fills_the_room_that_is_left(client: Any) -> None:
    answer = client.chat.completions.create(model="linattn", messages=CHAT, seed=1)
    assert answer.usage.total_tokens == 200


WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": CHAT[:1]}, "messages"),
    ({"messages": "abc"}, "messages"),
    ({"messages": [{"role": "tool", "content": "a"}]}, "messages"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages"),
    ({"messages": [{"role": "user", "content": "?"}]}, "messages"),
    ({"messages": [{"role": "user", "content": "a" * 2000}]}, "messages"),
    ({"messages": [USER], "tools": [{"type": "function"}]}, "tools"),
    ({"messages": [USER], "response_format": {"type": "json_object"}}, "response_format"),
    ({"messages": [USER], "prompt": "abc"}, "prompt"),
    ({"messages": [USER], "max_tokens": 0}, "max_tokens"),
]


def test_a_wrong_chat_is_one_sentence(serve: Serve) -> None:
    server = serve(make_batch(), chat=JOINED, most_prompt=1000)
    for fields, field in WRONG:
        answer = server.ask("POST", "/v1/chat/completions", json=fields)
        error = answer.json()["error"]
        assert answer.status_code == 400 and error["param"] == field, fields
        assert error["message"].startswith(f"{field}: ") and "\n" not in error["message"]


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in range(99999) %}{% for b in range(99999) %}a{% endfor %}{% endfor %}",
        "{{ 'a' | center(10000000000) }}",
        "{% set x = namespace(y='a') %}{% for i in range(60) %}{% set x.y = x.y ~ x.y %}"
        "{% endfor %}",
        "{{ 10 ** 10000000000 }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].content.nothing.more }}",
        "{{ raise_exception('no') }}",
    ],
)
def test_a_template_has_limits(source: str) -> None:
    began = time.monotonic()
    with pytest.raises(ValueError, match=r"^(messages|the chat template): expected") as caught:
        ChatTemplate(source).render([USER], 1000)
    assert "\n" not in str(caught.value) and time.monotonic() - began < PATIENCE
    assert JOINED.render([USER], 1000) == "abc"


def test_templates_come_from_the_models_folder(tmp_path: Path) -> None:
    assert read_template(tmp_path) == ChatTemplate()
    values = {
        "eos_token": {"content": "</s>"},
        "bos_token": "<s>",
        "chat_template": "{{ bos_token }}",
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(values))
    template = read_template(tmp_path)
    assert template.render([USER], 10) == "<s>" and template.tokens["eos_token"] == "</s>"
    (tmp_path / "chat_template.jinja").write_text("{{ eos_token }}")
    assert read_template(tmp_path).render([USER], 10) == "</s>"
    (tmp_path / "chat_template.jinja").write_text("{% if %}")
    with pytest.raises(ValueError, match=r"^the chat template: expected"):
        read_template(tmp_path)


def test_an_answer_ends_at_the_end_of_a_text(serve: Serve) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    table = {word: token for token, word in enumerate(["</s>", *"abcdefgh"])}
    batch = make_batch()
    batch.decoder.tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(table, "a"))
    template = ChatTemplate(JOINED.source, {"eos_token": "</s>"})
    body = {"messages": [{"role": "user", "content": "a"}], "seed": 1}
    answer = serve(batch, chat=template).ask("POST", "/v1/chat/completions", json=body)
    (choice,) = answer.json()["choices"]
    assert (
        choice["finish_reason"] == "stop" and choice["tokens"].index(0) == len(choice["tokens"]) - 1
    )


def test_a_template_that_takes_long_delays_nobody_else(serve: Serve) -> None:
    """Also with more of its chats than threads that read requests."""
    loops = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"

    async def main() -> None:
        async with serve(chat=ChatTemplate(loops)).client() as client:
            body = {"messages": [USER]}
            chats = [
                asyncio.create_task(client.post("/v1/chat/completions", json=body))
                for _ in range(50)
            ]
            await asyncio.wait(chats, return_when=asyncio.FIRST_COMPLETED)
            await complete(client, prompt="abc", max_tokens=1)
            assert not all(chat.done() for chat in chats)
            for chat in chats:
                chat.cancel()
            await asyncio.gather(*chats, return_exceptions=True)

    asyncio.run(main())


@pytest.mark.parametrize("count", [0, 64])
def test_a_template_stops_beside_strings_of_the_client(serve: Serve, count: int) -> None:
    fields = ChatFields(messages=[USER], stop=[f"{number}?" for number in range(count)])
    completion = read_chat(fields, "abc", ChatTemplate(), make_batch())
    assert len(completion.stop) == count + 1 and "\nuser:" in completion.stop
