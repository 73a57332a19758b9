"""Log-probabilities of tokens."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from linattn_core.decoder_spec import CannotCompile
from linattn_models import ContinuousBatch, Request, TokenLogprobs, compile_decoder
from linattn_models.serving import ChatTemplate
from linattn_models.serving.logprobs import Words
from tests.serving.clients import Server, complete, make_batch, make_model

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
    fields = {**FIELDS, "top_k": 2, "logprobs": 3, "n": 2}
    server = serve()
    whole, parts = server.complete(**fields), server.stream(**fields)
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
    server = serve(chat=ChatTemplate("{{ messages[0].content }}"))
    plain = server.complete(**FIELDS, logprobs=2)["choices"][0]["logprobs"]
    fields = {**FIELDS, "messages": messages, "logprobs": True, "top_logprobs": 2}
    del fields["prompt"]
    answer = server.ask("POST", "/v1/chat/completions", json=fields)
    chat = answer.json()["choices"][0]["logprobs"]
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

    answer = serve().ask("POST", f"/v1/{path}", json={**prompt, **fields})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == field and error["message"].startswith(f"{field}: ")


def test_a_token_that_is_impossible_can_be_sent(serve: Serve) -> None:
    batch = make_batch()
    with torch.no_grad():
        batch.decoder.output.bias[1:] = -math.inf
    logprobs = serve(batch).complete(**FIELDS, logprobs=2)["choices"][0]["logprobs"]
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
    with pytest.raises(ValueError, match=r"^prompt_logprobs: expected"):
        make_batch().add(Request("abc", 4, prompt_logprobs=True))


def prompt_reference(tokens: list[int]) -> list[float]:
    """log p of each token but the first, by the model's own loss."""
    logs = make_model().log_probs(torch.tensor([tokens]))[0]
    return logs[1:].tolist()


@pytest.mark.parametrize("compiled", [False, True])
def test_what_lm_eval_asks_for(serve: Serve, compiled: bool) -> None:
    """Its client local-completions: prompts of tokens, scored up to the one that is drawn."""
    prompts = [[0, 1, 2, 3, 4] * 12, [5, 5], [7]]
    body = {
        "model": "tiny",
        "prompt": prompts,
        "temperature": 0,
        "max_tokens": 1,
        "logprobs": 1,
        "seed": 1234,
        "echo": True,
    }

    async def main() -> Any:
        batch = make_compiled_batch() if compiled else make_batch()
        async with serve(batch, name="tiny").client() as client:
            busy = asyncio.create_task(complete(client, prompt="abc", max_tokens=200))
            answer = await complete(client, **body)
            await busy
            return answer

    answer = asyncio.run(main())
    for choice, prompt in zip(answer["choices"], prompts, strict=True):
        own = choice["logprobs"]
        assert len(own["tokens"]) == len(own["top_logprobs"]) == len(prompt) + 1
        assert own["token_logprobs"][0] is own["top_logprobs"][0] is None
        assert own["token_logprobs"][1:-1] == pytest.approx(prompt_reference(prompt), abs=1e-4)
        logits = make_model()(torch.tensor([prompt]))[0, 1:]
        is_greedy = (logits.argmax(-1) == torch.tensor(prompt[1:])).tolist()
        pairs = zip(own["token_logprobs"][1:-1], own["top_logprobs"][1:-1], strict=True)
        assert [own == max(top.values()) for own, top in pairs] == is_greedy
        assert "".join(own["tokens"]) == choice["text"]
        assert own["text_offset"] == list(range(len(prompt) + 1))
    assert answer["usage"]["completion_tokens"] == 3


def make_compiled_batch() -> ContinuousBatch:
    try:
        decoder = compile_decoder(make_model())
    except CannotCompile as error:
        pytest.skip(str(error))
    return ContinuousBatch(decoder, max_num_seqs=8)


def test_a_prompt_alone_is_scored(serve: Serve) -> None:
    """max_tokens of 0, whole and streamed, also after a state."""
    server = serve()
    fields: dict[str, Any] = {"echo": True, "max_tokens": 0, "logprobs": 2, "n": 2}
    fields |= {"prompt": ["abc", "abcdefgh " * 9], "stop": ["a", "b", "c", "d", "e"]}
    whole, parts = server.complete(**fields), server.stream(**fields)
    assert whole["usage"]["completion_tokens"] == 0
    for choice in whole["choices"]:
        prompt = fields["prompt"][choice["index"] // 2]
        assert choice["text"] == prompt and choice["tokens"] == []
        assert choice["finish_reason"] == "length"
        known = prompt_reference(make_model().tokenizer.encode(prompt))
        assert choice["logprobs"]["token_logprobs"][1:] == pytest.approx(known, abs=1e-4)
        streamed = [x for part in parts for x in part["choices"]]
        assert [x for x in streamed if x["index"] == choice["index"]] == [choice]
    begun = server.complete(prompt="abc", max_tokens=3, seed=1, return_state=True)
    (choice,) = begun["choices"]
    fields |= {"prompt": "de", "state": choice["state"], "n": 1}
    answer = server.complete(**fields)["choices"][0]["logprobs"]
    known = prompt_reference([0, 1, 2, *choice["tokens"], 3, 4])[-1]
    assert answer["token_logprobs"] == [None, pytest.approx(known, abs=1e-4)]
    for wrong in ({}, {"echo": True, "return_state": True}):
        body = {"prompt": "abc", "max_tokens": 0, **wrong}
        refused = server.ask("POST", "/v1/completions", json=body).json()
        assert refused["error"]["param"] == "max_tokens"


def test_reading_token_by_token_draws_the_same_and_leaves_the_same_state(serve: Serve) -> None:
    server, fields = serve(), {"prompt": "abcdefgh " * 9, "seed": 2, "return_state": True}
    (plain,) = server.complete(**fields)["choices"]
    (scored,) = server.complete(echo=True, logprobs=0, **fields)["choices"]
    rest = [server.complete(state=x["state"], seed=2)["choices"] for x in (plain, scored)]
    assert scored["tokens"] == plain["tokens"]
    assert rest[0][0]["tokens"] == rest[1][0]["tokens"]
