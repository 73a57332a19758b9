"""States that clients continue: in memory, and in a folder that servers share."""

from __future__ import annotations

import asyncio
import base64
import errno
import secrets
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch

from linattn_models.serving import SharedStates, StateStore, states
from linattn_models.serving.states import RecentStates, States, Unavailable
from tests.serving.clients import Server, complete, make_batch, make_model, read_events

Serve = Callable[..., Server]
MOST = 1 << 20
FIELDS: dict[str, Any] = {"max_tokens": 9, "seed": 1}


@pytest.fixture(params=["local", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "local":
        return str(tmp_path / "made" / "here")
    return f"memory://{secrets.token_hex(8)}"


def expected_tokens(length: int) -> list[int]:
    tokens: list[int] = (
        make_model().generate(prefix=["abc"], length=3 + length, seeds=1)[0].tolist()
    )
    return tokens[3:]


def test_old_states_are_dropped_by_number_and_by_bytes() -> None:
    for most, most_bytes in ((2, 1 << 20), (9, 20)):
        store = RecentStates(most, most_bytes)
        names = [store.put(bytes([number] * 10)) for number in range(3)]
        store.tidy()
        contents = [None, bytes([1] * 10), bytes([2] * 10)]
        assert [store.get(name, MOST) for name in names] == contents
    store = RecentStates(9, 1)
    name = store.put(b"large")
    store.tidy()
    assert store.get(name, MOST) == b"large"


def test_what_one_server_keeps_another_continues(serve: Serve, url: str) -> None:
    """Also after the first one is gone; whole and streamed."""

    async def main() -> None:
        first = serve(states=SharedStates(url))
        async with first.client() as client:
            begun = await complete(client, prompt="abc", return_state=True, n=2, **FIELDS)
        first.app.state.engine.stop()
        name = begun["choices"][0]["state"]
        tokens = begun["choices"][0]["tokens"]
        async with serve(states=SharedStates(url)).client() as client:
            again = await complete(client, state=name, return_state=True, **FIELDS)
            (choice,) = again["choices"]
            assert tokens + choice["tokens"] == expected_tokens(18)
            parts = await read_events(client, state=choice["state"], return_state=True, **FIELDS)
            streamed = [x for part in parts for x in part["choices"]]
            new = [token for x in streamed for token in x["tokens"]]
            assert tokens + choice["tokens"] + new == expected_tokens(27)
            content = (await client.get(f"/v1/states/{streamed[-1]['state']}")).content
            assert content == SharedStates(url).get(streamed[-1]["state"], MOST)

    asyncio.run(main())


def test_a_store_forgets_by_age_and_by_bytes(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1e9]
    monkeypatch.setattr("linattn_models.serving.shared.time.time_ns", lambda: int(now[0] * 1e9))
    monkeypatch.setattr("linattn_models.serving.shared.time.monotonic", lambda: now[0])
    store, other = (SharedStates(url, seconds=100, most_bytes=1000) for _ in range(2))
    names = []
    for number in range(12):
        names.append((store, other)[number % 2].put(bytes([number] * 100)))
        now[0] += 61
        store.tidy()
        assert total_bytes(url) <= 200
    assert store.get(names[0], MOST) is None
    assert store.get(names[-1], MOST) == bytes([11] * 100)
    full = SharedStates(url, seconds=10_000, most_bytes=1000)
    for _ in range(30):
        last = full.put(b"a" * 100)
        now[0] += 1e-3
        full.tidy()
        assert total_bytes(url) <= 1000
    assert full.get(last, MOST) == b"a" * 100
    for _ in range(3):
        last = full.put(b"b" * 900)
        now[0] += 1e-3
        full.tidy()
        assert full.get(last, MOST) == b"b" * 900  # its id was just given


def total_bytes(url: str) -> int:
    files, folder = fsspec.url_to_fs(url)
    return sum(about["size"] for about in files.ls(folder, detail=True))


def test_more_calls_than_a_store_takes_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "_MOST_CALLS", 2)
    store = States(RecentStates(9, 9_000_000), MOST, seconds=60)
    _, state = make_model().prefill(torch.tensor([[1]]))

    async def put_all() -> list[str]:
        return await asyncio.gather(*(store.put(state) for _ in range(7)))

    assert len(set(asyncio.run(put_all()))) == 7


def test_a_call_without_a_thread_keeps_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(states, "_MOST_CALLS", 1)
    store = States(RecentStates(9, 9_000_000), MOST, seconds=60)
    _, state = make_model().prefill(torch.tensor([[1]]))
    with monkeypatch.context() as context:
        context.setattr(threading.Thread, "start", refuse)
        with pytest.raises(Unavailable):
            asyncio.run(store.put(state))
    assert asyncio.run(store.put(state))


def test_files_of_others_stay(tmp_path: Path) -> None:
    other = tmp_path / "other.safetensors"
    other.write_bytes(b"a" * 100)
    folder = tmp_path / f"{0:016x}-{'a' * 22}.safetensors"
    folder.mkdir()
    store = SharedStates(str(tmp_path), most_bytes=10)
    for _ in range(3):
        store.put(b"b" * 10)
        store.tidy()
    assert other.exists() and folder.exists()


@pytest.mark.parametrize(
    "name", ["", "none", "../secret", "/etc/passwd", "a" * 33, f"{10**19:016x}-{'a' * 22}"]
)
def test_another_id_is_unknown(url: str, name: str) -> None:
    assert SharedStates(url).get(name, MOST) is None


def test_what_is_no_file_or_too_large_is_not_read(tmp_path: Path) -> None:
    store = SharedStates(str(tmp_path))
    name = store.put(b"a" * 100)
    assert store.get(name, 99) is None
    file = tmp_path / f"{name}.safetensors"
    file.rename(tmp_path / "moved")
    file.symlink_to(tmp_path / "moved")
    assert store.get(name, MOST) is None


@pytest.mark.parametrize("arguments", [{"url": "none-such://a"}, {"seconds": 0}, {"most_bytes": 0}])
def test_a_wrong_store_is_refused(tmp_path: Path, arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=": expected"):
        SharedStates(**{"url": str(tmp_path), **arguments})
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file: expected a folder or store"):
        SharedStates(str(tmp_path / "file"))


def test_a_file_that_is_not_whole_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SharedStates(str(tmp_path))

    def fill(path: str, content: bytes) -> None:
        Path(path).write_bytes(content[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(store._files, "pipe_file", fill)
    with pytest.raises(OSError, match="No space"):
        store.put(b"a" * 100)
    assert not list(tmp_path.iterdir())


class Faulty(StateStore):
    """Fails, or hangs until it is let go."""

    def __init__(self, hangs: bool) -> None:
        self.hangs, self.free = hangs, threading.Event()

    def put(self, content: bytes) -> str:
        return self.get("", 0).decode()

    def get(self, name: str, most: int) -> bytes:
        if not self.hangs:
            raise PermissionError("the key is 1234")
        self.free.wait(60)
        return b""

    def tidy(self) -> None:
        self.get("", 0)


@pytest.mark.parametrize("hangs", [False, True])
def test_a_store_that_fails_is_told_to_its_client_alone(serve: Serve, hangs: bool) -> None:
    store = Faulty(hangs)

    async def main() -> None:
        async with serve(states=store, store_time=0.2).client() as client:
            wrong: list[dict[str, Any]] = [{"prompt": "abc", "return_state": True}, {"state": "id"}]
            asks = [
                client.post("/v1/completions", json={**fields, **FIELDS})
                for fields in wrong
                for _ in range(20)
            ]
            for answer in await asyncio.gather(*asks, client.get("/v1/states/id")):
                error = answer.json()["error"]
                assert answer.status_code == 503 and error["type"] == "server_error"
                assert error["message"].startswith("the store of states: expected")
                assert "1234" not in error["message"]
            fields = {"prompt": "abc", "return_state": True, "stream": True, **FIELDS}
            text = (await client.post("/v1/completions", json=fields)).text
            assert text.count("the store of states: expected") == 1 and "[DONE]" not in text

    try:
        asyncio.run(main())
    finally:
        store.free.set()


def test_others_are_answered_while_a_store_hangs(serve: Serve) -> None:
    store = Faulty(hangs=True)

    async def main() -> None:
        async with serve(states=store, store_time=60).client() as client:
            body = {"state": "id", **FIELDS}
            asks = [client.post("/v1/completions", json=body) for _ in range(60)]
            waiting = asyncio.gather(*asks)
            answer = await complete(client, prompt="abc", **FIELDS)
            assert answer["choices"][0]["tokens"] == expected_tokens(9)
            assert not waiting.done()
            store.free.set()
            assert {answer.status_code for answer in await waiting} == {400}

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["damaged", "other weights", "larger"])
def test_a_hostile_state_is_refused(serve: Serve, tmp_path: Path, kind: str) -> None:
    store = SharedStates(str(tmp_path))
    other = make_model()
    torch.nn.init.normal_(other.output.weight)
    content = other.generate(length=3, return_state=True)[1].to_bytes()
    name = store.put({"damaged": content[:-9], "larger": bytes(1 << 23)}.get(kind, content))

    async def main() -> None:
        async with serve(make_batch(), states=store).client() as client:
            inline = base64.b64encode(content).decode()  # of other weights
            for field, value in {"state": name, "state_bytes": inline}.items():
                answer = await client.post("/v1/completions", json={field: value})
                assert answer.status_code == 400 and answer.json()["error"]["param"] == field
            assert (await complete(client, prompt="abc", **FIELDS))["choices"]

    asyncio.run(main())
