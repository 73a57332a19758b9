"""What a server reads of bodies and prompts has limits, over all connections together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Message, Receive, Scope, Send

from linattn_models import (
    AutoregressiveTransformer,
    CharacterTokenizer,
    ContinuousBatch,
    TransformerConfig,
)
from linattn_models.serving.limits import BodyLimits, BodyReader
from tests.serving.clients import TEXT, Server

Serve = Callable[..., Server]


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with the number of bytes of the body."""
    size, more = 0, True
    while more:
        message = await receive()
        size, more = size + len(message["body"]), message["more_body"]
    await PlainTextResponse(str(size))(scope, receive, send)


def reader(limits: BodyLimits) -> BodyReader:
    return BodyReader(echo, limits, lambda status, message: PlainTextResponse(message, status))


class Body:
    """A body that is sent part by part."""

    def __init__(self) -> None:
        self.parts: asyncio.Queue[Message] = asyncio.Queue()
        self.answer: list[Message] = []

    def put(self, size: int, more: bool = True, content: bytes = b"") -> None:
        body = content + b"a" * (size - len(content))
        part = {"type": "http.request", "body": body, "more_body": more}
        self.parts.put_nowait(part)

    async def send(self, message: Message) -> None:
        self.answer.append(message)

    async def through(self, app: BodyReader) -> tuple[int, str]:
        """The status and the text of the answer."""
        scope = {"type": "http", "method": "POST", "headers": []}
        await app(scope, self.parts.get, self.send)
        text = b"".join(message.get("body", b"") for message in self.answer)
        return self.answer[0]["status"], text.decode()


def test_of_bodies_that_are_not_whole_the_first_is_given_up() -> None:
    """What is sent at once is answered, however much others have begun to send."""

    async def main() -> None:
        app = reader(BodyLimits(most=100, values=9, unfinished=250, seconds=30))
        for _ in range(3):
            slow = [Body() for _ in range(3)]
            for body in slow:
                body.put(80)
            waiting = [asyncio.create_task(body.through(app)) for body in slow]
            await asyncio.sleep(0)
            whole = Body()
            whole.put(80)
            whole.put(1, more=False)
            assert await whole.through(app) == (200, "81")
            assert (await waiting[0])[0] == 408
            for body in slow[1:]:
                body.put(1, more=False)
            assert await asyncio.gather(*waiting[1:]) == [(200, "81")] * 2

    asyncio.run(main())


def test_a_body_has_a_time_and_a_size() -> None:
    async def main() -> None:
        app = reader(BodyLimits(most=100, values=9, unfinished=1000, seconds=0.05))
        slow, large = Body(), Body()
        slow.put(10)
        status, message = await slow.through(app)
        assert status == 408 and "0.05 seconds" in message
        large.put(101)
        assert (await large.through(app))[0] == 413
        for count, status in ((9, 200), (10, 413)):
            values = Body()
            values.put(80, content=b"," * (count - 1))
            values.put(1, more=False, content=b"[")
            assert (await values.through(app))[0] == status

    asyncio.run(main())


@pytest.mark.parametrize("prompt", ["a" * 50_001, [1] * 50_001, "a" * 301, [1] * 301])
def test_a_long_prompt_is_refused_before_the_batch_sees_it(
    serve: Serve, prompt: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[int] = []
    encode = CharacterTokenizer.encode

    def counting(self: CharacterTokenizer, text: str) -> list[int]:
        encoded.append(len(text))
        return encode(self, text)

    monkeypatch.setattr(CharacterTokenizer, "encode", counting)
    config = TransformerConfig(num_layers=1, num_heads=2, head_dim=4, ffn_dim=8)
    model = AutoregressiveTransformer(config, len(TEXT), 300, "learned").eval()
    model.tokenizer = CharacterTokenizer(TEXT)
    batch = ContinuousBatch(model, max_num_seqs=2, max_num_batched_tokens=50)

    async def main() -> None:
        async with serve(batch, most_prompt=50_000).client() as client:
            answer = await client.post("/v1/completions", json={"prompt": prompt})
            error = answer.json()["error"]
            assert answer.status_code == 400 and error["param"] == "prompt"
            assert "at most" in error["message"]

    asyncio.run(main())
    assert max(encoded, default=0) < 50_000
    assert not batch.has_work


def test_a_body_of_more_values_than_a_prompt_is_not_parsed(serve: Serve) -> None:
    async def main() -> None:
        async with serve(most_prompt=9).client() as client:
            for prompt in ([1] * 70_000, [[1]] * 40_000, "," * 70_000):
                answer = await client.post("/v1/completions", json={"prompt": prompt})
                assert answer.status_code == 413 and "values" in answer.json()["error"]["message"]

    asyncio.run(main())
