"""Who is answered: clients with the server's key."""

from __future__ import annotations

from hashlib import sha256
from secrets import compare_digest

from starlette.authentication import AuthenticationBackend, AuthenticationError
from starlette.requests import HTTPConnection

from linattn_core.errors import expected

# Answered without a key: they tell nothing about the model or its clients.
_OPEN = {"/", "/health"}


class KeyCheck(AuthenticationBackend):
    """Refuses requests without the server's key, whatever else they are.

    Args:
        key: what clients send as `Authorization: Bearer KEY`.

    Raises:
        ValueError: a key that no header can have.
    """

    def __init__(self, key: str) -> None:
        if not key or key.strip() != key or not key.isprintable():
            wanted = "a text without spaces around it"
            raise ValueError(expected("api_key", wanted, "an empty or another one"))
        self._digest = _digest(key.encode())

    async def authenticate(self, conn: HTTPConnection) -> None:
        """Raises AuthenticationError for a wrong key, after a time that tells nothing about it."""
        if conn.scope["path"].removeprefix(conn.scope.get("root_path", "")) in _OPEN:
            return
        scheme, _, key = conn.headers.get("authorization", "").partition(" ")
        is_right = compare_digest(_digest(key.strip(" ").encode("latin-1")), self._digest)
        if scheme.lower() != "bearer" or not is_right:
            raise AuthenticationError


def _digest(key: bytes) -> bytes:
    """Of one length for all keys."""
    return sha256(key).digest()
