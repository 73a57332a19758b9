"""Clients that go, or that do not read, at a server with sockets."""

from __future__ import annotations

import json
import socket
import time

import httpx2
import pytest

from linattn_models import ContinuousBatch
from linattn_models.serving import create_app
from tests.serving.clients import PATIENCE, make_batch, run_server

SEND_BUFFER = 4096  # small, so that a client that does not read is soon noticed


def wait_until_free(batch: ContinuousBatch) -> float:
    """The seconds until no row is in use."""
    began = time.monotonic()
    while batch.num_seqs_running:
        assert time.monotonic() - began < PATIENCE
        time.sleep(0.01)
    return time.monotonic() - began


@pytest.mark.parametrize("streams", [True, False])
def test_a_client_that_goes_frees_its_rows(streams: bool) -> None:
    batch = make_batch(max_length=1_000_000)
    body = {"prompt": "abc", "max_tokens": 900_000, "n": 4, "stream": streams}
    with run_server(create_app(batch), SEND_BUFFER) as port:
        client = socket.create_connection(("127.0.0.1", port))
        client.sendall(http_post(body))
        while batch.num_seqs_running < 4:
            time.sleep(0.01)
        if streams:
            assert client.recv(100).startswith(b"HTTP/1.1 200")
        client.close()
        wait_until_free(batch)
        answer = httpx2.post(
            f"http://127.0.0.1:{port}/v1/completions",
            json={"prompt": "abc", "max_tokens": 5},
            timeout=PATIENCE,
        )
        assert len(answer.json()["choices"][0]["tokens"]) == 5
        metrics = httpx2.get(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE).text
        assert 'linattn_sequences_total{finish_reason="abort"} 4.0' in metrics


def test_a_reader_that_stalls_is_dropped() -> None:
    batch = make_batch(max_length=1_000_000)
    body = {"prompt": "abc", "max_tokens": 900_000, "n": 8, "stream": True}
    app = create_app(batch, stall=0.2)
    with run_server(app, SEND_BUFFER) as port, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", port))
        client.sendall(http_post(body))
        while not batch.num_seqs_running:
            time.sleep(0.01)
        wait_until_free(batch)


def http_post(body: dict[str, object]) -> bytes:
    content = json.dumps(body).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: server\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content
