"""A limit of the size of bodies."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from linattn_core.errors import expected


class BodyLimit:
    """Answers 413 to requests whose body is larger, and reads no more of it.

    Args:
        app: what answers the others.
        most: bytes.
        refuse: makes the answer to the others from a message.
    """

    def __init__(self, app: ASGIApp, most: int, refuse: Callable[[str], ASGIApp]) -> None:
        self._app = app
        self._most = most
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        messages = await self._read(scope, receive)
        if messages is None:
            message = expected("the body", f"at most {self._most:,} bytes", "more")
            await self._refuse(message)(scope, receive, send)
            return

        async def receive_again() -> Message:
            return messages.popleft() if messages else await receive()

        await self._app(scope, receive_again, send)

    async def _read(self, scope: Scope, receive: Receive) -> deque[Message] | None:
        """The messages of the body; None where it is too large."""
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > self._most:
            return None
        messages: deque[Message] = deque()
        size = 0
        while not messages or messages[-1].get("more_body", False):
            messages.append(await receive())
            size += len(messages[-1].get("body", b""))
            if size > self._most:
                return None
        return messages
