"""Models, servers and clients of the tests."""

from __future__ import annotations

import asyncio
import json
import socket
import string
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import torch
import uvicorn

from linattn_models import (
    AutoregressiveTransformer,
    CharacterTokenizer,
    ContinuousBatch,
    TransformerConfig,
)
from linattn_models.serving import create_app

TEXT = "abcdefgh "
# Seconds. No test needs longer; a server that hangs fails it.
PATIENCE = 30


def make_model(max_length: int = 300) -> AutoregressiveTransformer:
    """A tiny model of the characters of TEXT."""
    torch.manual_seed(0)
    config = TransformerConfig(num_layers=1, num_heads=2, head_dim=4, ffn_dim=8)
    model = AutoregressiveTransformer(config, len(TEXT), max_length, "sinusoidal").eval()
    torch.nn.init.normal_(model.output.weight, std=0.5)
    model.tokenizer = CharacterTokenizer(TEXT)
    return model


def make_batch(seqs: int = 8, max_length: int = 300) -> ContinuousBatch:
    return ContinuousBatch(
        make_model(max_length), max_num_seqs=seqs, max_num_batched_tokens=seqs + 48
    )


def make_chat_batch() -> ContinuousBatch:
    """A batch whose tokenizer has all printable characters of ASCII."""
    config = TransformerConfig(num_layers=1, num_heads=2, head_dim=4, ffn_dim=8)
    model = AutoregressiveTransformer(config, len(string.printable), 200, "learned").eval()
    model.tokenizer = CharacterTokenizer(string.printable)
    return ContinuousBatch(model, max_num_seqs=4)


class Server:
    """An application and its client."""

    def __init__(self, batch: ContinuousBatch, **arguments: Any) -> None:
        self.batch = batch
        self.app = create_app(batch, **arguments)

    def client(self) -> httpx2.AsyncClient:
        transport = httpx2.ASGITransport(self.app)
        return httpx2.AsyncClient(transport=transport, base_url="http://server", timeout=600)

    def ask(self, method: str, path: str, **request: Any) -> httpx2.Response:
        """The answer to one request."""

        async def main() -> httpx2.Response:
            async with self.client() as client:
                return await client.request(method, path, **request)

        return asyncio.run(main())

    def complete(self, **fields: Any) -> dict[str, Any]:
        """A completion."""
        return content_of(self.ask("POST", "/v1/completions", json=fields))

    def stream(self, **fields: Any) -> list[dict[str, Any]]:
        """The parts of a completion that is streamed."""

        async def main() -> list[dict[str, Any]]:
            async with self.client() as client:
                return await read_events(client, **fields)

        return asyncio.run(main())


@contextmanager
def run_server(app: Any, send_buffer: int = 0) -> Iterator[int]:
    """Serves an application by sockets; yields the port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        if send_buffer:
            # Connections take it over from the listener.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        server = uvicorn.Server(uvicorn.Config(app, log_level="critical"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(PATIENCE)


@contextmanager
def running(folder: Path, errors: int, *flags: str) -> Iterator[tuple[Any, str]]:
    """A server in a process of its own at a free port, and the address that it prints."""
    command = [sys.executable, "-m", "linattn_models.serving", str(folder), "--port", "0"]
    server = subprocess.Popen([*command, *flags], stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        address = server.stdout.readline().strip() if server.stdout else ""
        while True:
            try:
                httpx2.get(f"{address}/health")
                break
            except httpx2.ConnectError:
                assert server.poll() is None
                time.sleep(0.1)
        yield server, address
    finally:
        server.kill()
        server.communicate()


def content_of(response: httpx2.Response) -> dict[str, Any]:
    assert response.status_code == 200, response.text
    content: dict[str, Any] = response.json()
    return content


async def complete(client: httpx2.AsyncClient, **fields: Any) -> dict[str, Any]:
    return content_of(await client.post("/v1/completions", json=fields))


async def read_events(client: httpx2.AsyncClient, **fields: Any) -> list[dict[str, Any]]:
    """The parts of a streamed answer, which must end with [DONE]."""
    body = {**fields, "stream": True}
    async with client.stream("POST", "/v1/completions", json=body) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line async for line in response.aiter_lines() if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
