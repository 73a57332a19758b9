"""What is sent for completions: one body, or server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from typing import Any

from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from linattn_models.decoding import Output
from linattn_models.serving.completion import ChatCompletion, Completion
from linattn_models.serving.engine import Stopped, Stream
from linattn_models.serving.metrics import Watch
from linattn_models.serving.states import States, Unavailable

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # proxies such as nginx would wait for more
]


def refusal(status: int, message: str, field: str | None = None, **headers: str) -> JSONResponse:
    """An answer with an error."""
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return JSONResponse(_describe_error(status, message, field), status, names)


def _describe_error(status: int, message: str, field: str | None = None) -> dict[str, Any]:
    """The content of an error, as OpenAI's clients read it."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    code = "model_not_found" if (status, field) == (404, "model") else None
    return {"error": {"message": message, "type": kind, "param": field, "code": code}}


class CompletionResponse(Response):
    """Sends the outputs of a stream, and cancels it where the client goes or does not read.

    Args:
        stream: the outputs.
        completion: their content.
        states: keeps the states of sequences.
        watch: counts them.
        streams: whether each part is sent at once.
        tells_usage: whether the numbers of tokens are sent after the last part.
        stall: seconds after which a client that takes nothing is dropped.
    """

    def __init__(
        self,
        stream: Stream,
        completion: Completion | ChatCompletion,
        states: States,
        watch: Watch,
        streams: bool,
        tells_usage: bool,
        stall: float,
    ) -> None:
        super().__init__()
        self._stream = stream
        self._completion = completion
        self._states = states
        self._watch = watch
        self._streams = streams
        self._tells_usage = tells_usage
        self._stall = stall

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request."""
        work = self._send_events(send) if self._streams else self._send_whole(scope, receive, send)
        try:
            await _run_while_connected(receive, work)
        except TimeoutError:
            pass  # the server closes a connection whose answer is not complete
        finally:
            self._watch.end(self._stream.close())

    async def _send_whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        outputs: list[Output] = []
        try:
            while new := await self._read():
                outputs += new
        except (Stopped, Unavailable) as error:
            await refusal(503, str(error))(scope, receive, send)
            return
        await JSONResponse(self._completion.whole(outputs))(scope, receive, send)

    async def _send_events(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        try:
            while new := await self._read():
                await self._send_data(send, *map(json.dumps, self._completion.parts(new)))
            if self._tells_usage:
                await self._send_data(send, json.dumps(self._completion.end()))
            await self._send_data(send, "[DONE]")
        except (Stopped, Unavailable) as error:
            await self._send_data(send, json.dumps(_describe_error(503, str(error))))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _read(self) -> list[Output]:
        """The outputs that are new, after their states are kept."""
        new = await self._stream.read()
        self._watch.add(new)
        ended = {output.index: output.state for output in new if output.state is not None}
        ids = await asyncio.gather(*map(self._states.put, ended.values()))
        self._completion.state_ids.update(zip(ended, ids, strict=True))
        return new

    async def _send_data(self, send: Send, *contents: str) -> None:
        body = "".join(f"data: {content}\n\n" for content in contents).encode()
        async with asyncio.timeout(self._stall):
            await send({"type": "http.response.body", "body": body, "more_body": True})


async def _run_while_connected(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Runs the work, and cancels it where the client disconnects."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_wait_until_gone(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
    finally:
        for each in (task, gone):
            each.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _wait_until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
