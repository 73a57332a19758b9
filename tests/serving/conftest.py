"""A tiny model behind the application, called in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.serving.clients import Server, make_batch


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    """Makes a server with the arguments of `create_app`; all are stopped at the end."""
    servers: list[Server] = []

    def make(batch: Any = None, **arguments: Any) -> Server:
        servers.append(Server(batch or make_batch(), **arguments))
        return servers[-1]

    yield make
    for server in servers:
        server.app.state.engine.stop()
