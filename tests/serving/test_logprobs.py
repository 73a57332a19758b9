"""Log-probabilities of tokens."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from linattn_models import Request, TokenLogprobs
from linattn_models.serving import ChatTemplate
from linattn_models.serving.logprobs import Words
from tests.serving.clients import Server, complete, make_batch, make_model, read_events

Serve = Callable[..., Server]
FIELDS: dict[str, Any] = {"prompt": "abc", "max_tokens": 12, "seed": 3, "temperature": 0.5}


def reference(tokens: list[int]) -> torch.Tensor:
    """Log-probabilities (N, V) at the places of tokens after "abc"."""
    model, prompt = make_model(), [0, 1, 2]
    rows = [
        model.prefill(torch.tensor([prompt + tokens[:count]]))[0][0] for count in range(len(tokens))
    ]
    return torch.stack(rows).log_softmax(-1)


def test_a_completion_has_those_of_the_model(serve: Serve) -> None:
    """Not those of the temperature and the filters."""

    async def main() -> tuple[dict[str, Any], list[dict[str, Any]]]:
        async with serve().client() as client:
            fields = {**FIELDS, "top_k": 2, "logprobs": 3, "n": 2}
            whole = await complete(client, **fields)
            return whole, await read_events(client, **fields)

    whole, parts = asyncio.run(main())
    for choice in whole["choices"]:
        tokens, own = choice["tokens"], choice["logprobs"]
        logs = reference(tokens)
        drawn = logs.gather(1, torch.tensor(tokens).unsqueeze(1)).squeeze(1)
        assert own["token_logprobs"] == pytest.approx(drawn.tolist(), abs=1e-4)
        assert "".join(own["tokens"]) == choice["text"] and own["text_offset"] == list(range(12))
        for row, token, top in zip(logs, own["tokens"], own["top_logprobs"], strict=True):
            assert token in top and len(top) in (3, 4)
            likeliest = [make_model().decode([x])[0] for x in row.topk(3).indices.tolist()]
            assert list(top)[:3] == likeliest
        streamed = [x["logprobs"] for part in parts for x in part["choices"]]
        mine = [x for part in parts for x in part["choices"] if x["index"] == choice["index"]]
        for name in own:
            assert [y for x in mine for y in x["logprobs"][name]] == own[name]
        assert streamed


def test_a_chat_has_the_same_in_another_form(serve: Serve) -> None:
    messages = [{"role": "user", "content": "abc"}]

    async def main() -> tuple[Any, Any]:
        template = ChatTemplate("{{ messages[0].content }}")
        async with serve(chat=template).client() as client:
            plain = await complete(client, **FIELDS, logprobs=2)
            fields = {**FIELDS, "messages": messages, "logprobs": True, "top_logprobs": 2}
            del fields["prompt"]
            answer = await client.post("/v1/chat/completions", json=fields)
            return plain["choices"][0]["logprobs"], answer.json()["choices"][0]["logprobs"]

    plain, chat = asyncio.run(main())
    assert [x["token"] for x in chat["content"]] == plain["tokens"]
    assert [x["logprob"] for x in chat["content"]] == plain["token_logprobs"]
    for x, top in zip(chat["content"], plain["top_logprobs"], strict=True):
        assert x["bytes"] == list(x["token"].encode())
        assert {y["token"]: y["logprob"] for y in x["top_logprobs"]} == dict([*top.items()][:2])


@pytest.mark.parametrize(
    ("path", "fields", "field"),
    [
        ("completions", {"logprobs": 21}, "logprobs"),
        ("completions", {"logprobs": -1}, "logprobs"),
        ("completions", {"logprobs": True}, "logprobs"),
        ("completions", {"logprobs": 1, "echo": True}, "logprobs"),
        ("completions", {"top_logprobs": 1}, "top_logprobs"),
        ("chat/completions", {"top_logprobs": 1}, "top_logprobs"),
        ("chat/completions", {"logprobs": 1}, "logprobs"),
    ],
)
def test_wrong_numbers_are_named(
    serve: Serve, path: str, fields: dict[str, Any], field: str
) -> None:
    prompt = {"prompt": "abc"}
    if path.startswith("chat"):
        prompt = {"messages": [{"role": "user", "content": "abc"}]}  # type: ignore[dict-item]

    async def main() -> Any:
        async with serve().client() as client:
            answer = await client.post(f"/v1/{path}", json={**prompt, **fields})
            assert answer.status_code == 400, answer.text
            return answer.json()["error"]

    error = asyncio.run(main())
    assert error["param"] == field and error["message"].startswith(f"{field}: ")


def test_a_token_that_is_impossible_can_be_sent(serve: Serve) -> None:
    batch = make_batch()
    with torch.no_grad():
        batch.decoder.output.bias[1:] = -math.inf

    async def main() -> Any:
        async with serve(batch).client() as client:
            return (await complete(client, **FIELDS, logprobs=2))["choices"][0]["logprobs"]

    logprobs = asyncio.run(main())
    assert json.dumps(logprobs, allow_nan=False)
    assert (
        set(logprobs["token_logprobs"]) == {0.0} and -9999.0 in logprobs["top_logprobs"][0].values()
    )


def test_tokens_that_are_no_text_alone_have_a_number() -> None:
    tokenizers = pytest.importorskip("tokenizers")
    model = tokenizers.models.BPE({"Ã": 0, "¼": 1, "Ġ": 2, "Ġa": 3, "a": 4}, [("Ġ", "a")])
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    each = TokenLogprobs(-1.0, [(1, -0.5)])
    described = Words(tokenizer).describe([0, 3, 4], [each] * 3, [0, 0, 0])
    assert described["tokens"] == ["token_id:0", " a", "a"]
    assert Words(None).describe([7], [each], [])["tokens"] == ["token_id:7"]


def test_a_batch_refuses_wrong_numbers() -> None:
    with pytest.raises(ValueError, match=r"^logprobs: expected an integer"):
        make_batch().add(Request("abc", 4, logprobs=-1))
