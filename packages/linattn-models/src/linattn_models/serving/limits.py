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
        values: in the JSON of one; one with more is answered by 413 before it is parsed, which
            would hold up all other requests.
        unfinished: bytes of all that are not whole yet; beyond them, the body that began first is
            given up, so that clients which send theirs slowly do not keep others waiting.
        seconds: in which a body has to be whole; one that is slower, or given up, is answered by
            408.
    """

    most: int
    values: int
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
        self._sizes: dict[asyncio.Timeout, int] = {}  # of each, the one that began first is first

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
        timeout = asyncio.timeout(self._limits.seconds)
        try:
            async with timeout:
                while not messages or messages[-1].get("more_body", False):
                    messages.append(await receive())
                    size += len(messages[-1].get("body", b""))
                    self._check_size(size)
                    self._count(timeout, size)
        except TimeoutError:
            wanted = (
                f"the whole in {self._limits.seconds:g} seconds, or less while many bodies arrive"
            )
            raise _Refused(408, expected("the body", wanted, f"{size:,} bytes")) from None
        finally:
            self._unfinished -= self._sizes.pop(timeout, 0)
        values = sum(map(_count_values, messages))
        if values > self._limits.values:
            wanted = f"at most {self._limits.values:,} values"
            raise _Refused(413, expected("the body", wanted, f"{values:,}"))
        return messages

    def _count(self, timeout: asyncio.Timeout, size: int) -> None:
        """Notes the bytes of a body, and gives up those that began first until there is room."""
        if timeout.when() == 0:  # given up, though a message was waiting
            raise TimeoutError
        self._unfinished += size - self._sizes.get(timeout, 0)
        self._sizes[timeout] = size
        while self._unfinished > self._limits.unfinished:
            first = next(iter(self._sizes))
            self._unfinished -= self._sizes.pop(first)
            if not first.expired():
                first.reschedule(0)

    def _check_size(self, size: int) -> None:
        if size > self._limits.most:
            wanted = f"at most {self._limits.most:,} bytes"
            raise _Refused(413, expected("the body", wanted, "more"))


def _count_values(message: Message) -> int:
    """The values of JSON in a part of a body, or more: texts have such characters, too."""
    part: bytes = message.get("body", b"")
    return len(part) - len(part.translate(None, b",[{"))
