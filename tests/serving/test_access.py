"""Keys, pages of other servers, and proxies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from linattn_models.serving import create_app
from tests.serving.clients import Server, content_of, make_batch

Serve = Callable[..., Server]
KEY = "sécret-1"


def bearer(key: str, scheme: str = "Bearer") -> dict[str, bytes]:
    return {"authorization": f"{scheme} {key}".encode()}


@pytest.mark.parametrize(
    "headers",
    [{}, bearer(""), bearer(KEY[:-1]), bearer(KEY + "1"), bearer(KEY * 1000), bearer(KEY, "Basic")],
    ids=lambda headers: str(headers)[:40],
)
def test_without_the_key_all_refusals_are_alike(serve: Serve, headers: dict[str, bytes]) -> None:
    requests = [
        ("GET", "/v1/models"),
        ("GET", "/v1/models/none"),
        ("GET", "/metrics"),
        ("GET", "/nothing"),
        ("POST", "/v1/completions"),
        ("POST", "/v1/chat/completions"),
    ]

    server = serve(api_key=KEY, most_bytes=10)
    answers = [server.ask(*x, headers=headers, content=b"a" * 100) for x in requests]
    assert {answer.status_code for answer in answers} == {401}
    assert len({answer.content for answer in answers}) == 1
    error = answers[0].json()["error"]
    assert "expected Bearer" in error["message"] and error["param"] is None
    for path in ("/", "/health"):
        assert server.ask("GET", path, headers=headers).status_code == 200
    assert not server.batch.has_work


def test_the_key_opens(serve: Serve) -> None:
    server, headers = serve(api_key=KEY), bearer(KEY)
    answer = server.ask("POST", "/v1/completions", headers=headers, json={"prompt": "abc"})
    assert content_of(answer)["choices"]
    assert server.ask("GET", "/nothing", headers=headers).status_code == 404


@pytest.mark.parametrize("key", ["", " ", "a ", "a\n"])
def test_a_key_that_cannot_be_sent_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match=r"^api_key: expected") as caught:
        create_app(make_batch(), api_key=key)
    assert "'a" not in str(caught.value)


def test_pages_of_allowed_origins_may_ask(serve: Serve) -> None:
    asks = {"access-control-request-method": "POST", "access-control-request-headers": "a"}

    def allowed(server: Server, method: str, origin: str) -> Any:
        answer = server.ask(method, "/v1/completions", headers={"origin": origin, **asks})
        return answer.headers.get("access-control-allow-origin")

    origin = "https://example.org"
    server = serve(api_key=KEY, allowed_origins=[origin])
    # A browser asks without the key first, and reads why it was refused.
    for method in ("OPTIONS", "POST"):
        assert allowed(server, method, origin) == origin
        assert allowed(server, method, "https://example.com") is None
    assert allowed(serve(), "OPTIONS", origin) is None


def test_a_proxy_may_take_off_a_prefix(serve: Serve) -> None:
    """Servers put it before the path that the proxy asks for."""

    async def main() -> None:
        transport = httpx2.ASGITransport(serve(api_key=KEY).app, root_path="/text")
        async with httpx2.AsyncClient(transport=transport, base_url="http://server/text") as client:
            assert (await client.get("/")).status_code == 200
            assert (await client.get("/v1/models")).status_code == 401
            client.headers.update(bearer(KEY))  # type: ignore[arg-type]
            assert (await client.get("/v1/models")).status_code == 200

    asyncio.run(main())
