"""Limits of bodies: the size of one, that of all which are not whole yet, and their time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from linattn_core.errors import expected


@dataclass(frozen=True)
class BodyLimits:
    """How much of bodies is read.

    Attributes:
        most: bytes of one; a larger one is answered by 413.
        unfinished: bytes of all that are not whole yet; more are answered by 503.
        seconds: in which a body has to be whole; a slower one is answered by 408.
    """

    most: int
    unfinished: int
    seconds: float


class _Refused(Exception):
    """A body that is not read further: the status and the message of the answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


class BodyReader:
    """Reads bodies whole before they are passed on, within limits; refuses what is beyond.

    Args:
        app: what answers.
        limits: the limits.
        refuse: makes the answer to others from a status and a message.
    """

    def __init__(
        self, app: ASGIApp, limits: BodyLimits, refuse: Callable[[int, str], ASGIApp]
    ) -> None:
        self._app = app
        self._limits = limits
        self._refuse = refuse
        self._unfinished = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            messages = await self._read(scope, receive)
        except _Refused as refused:
            await self._refuse(refused.status, refused.message)(scope, receive, send)
            return

        async def receive_again() -> Message:
            return messages.popleft() if messages else await receive()

        await self._app(scope, receive_again, send)

    async def _read(self, scope: Scope, receive: Receive) -> deque[Message]:
        """The messages of a body."""
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        self._check_size(int(declared) if declared.isdigit() else 0)
        messages: deque[Message] = deque()
        size = 0
        try:
            async with asyncio.timeout(self._limits.seconds):
                while not messages or messages[-1].get("more_body", False):
                    messages.append(await receive())
                    count = len(messages[-1].get("body", b""))
                    size += count
                    self._unfinished += count
                    self._check_size(size)
        except TimeoutError:
            wanted = f"whole within {self._limits.seconds:g} seconds"
            raise _Refused(408, expected("the body", wanted, f"{size:,} bytes")) from None
        finally:
            self._unfinished -= size
        return messages

    def _check_size(self, size: int) -> None:
        if size > self._limits.most:
            wanted = f"at most {self._limits.most:,} bytes"
            raise _Refused(413, expected("the body", wanted, "more"))
        if self._unfinished > self._limits.unfinished:
            wanted = f"at most {self._limits.unfinished:,} bytes"
            raise _Refused(503, expected("bodies that are not whole yet", wanted, "more", "retry"))
