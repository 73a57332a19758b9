"""Replicas by Ray Serve: one dies, and every conversation goes on."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx2
import psutil
import pytest

from linattn_models import save
from linattn_models.serving.__main__ import Flags, main
from tests.serving.clients import make_model, running

pytest.importorskip("ray", reason="needs ray[serve], which is large")
pytestmark = pytest.mark.filterwarnings("ignore")  # of what ray imports
CONVERSATIONS, TURNS, TOKENS = 20, 10, 5
LONG = {"prompt": "abc", "max_tokens": 3_000}


class Clients:
    """Clients of one address, and the errors that they got."""

    def __init__(self, http: httpx2.AsyncClient) -> None:
        self.http = http
        self.answered = 0
        self.errors: list[str] = []

    async def complete(self, **fields: Any) -> dict[str, Any] | None:
        """A choice; None after a fault of the server."""
        answer = await self.http.post("/v1/completions", json=fields)
        if answer.status_code == 200:
            choice: dict[str, Any] = answer.json()["choices"][0]
            return choice
        assert answer.status_code >= 500, answer.text
        self.errors.append(answer.text)
        return None

    async def talk(self, seed: int) -> list[int]:
        """The tokens of all turns of a conversation; a turn that fails is asked for again."""
        tokens: list[int] = []
        fields: dict[str, Any] = {"prompt": "abc"}
        for _ in range(TURNS):
            fields |= {"max_tokens": TOKENS, "seed": seed, "return_state": True}
            while not (choice := await self.complete(**fields)):
                await asyncio.sleep(0.2)
            self.answered += 1
            tokens += choice["tokens"]
            fields = {"state": choice["state"]}
        return tokens


async def talk_while_one_dies(address: str, replica: psutil.Process) -> None:
    async with httpx2.AsyncClient(base_url=address, timeout=None) as http, asyncio.timeout(1_000):
        clients = Clients(http)
        long = asyncio.gather(*(clients.complete(**LONG) for _ in range(8)))
        talks = asyncio.gather(*map(clients.talk, range(CONVERSATIONS)))
        while clients.answered < 5:
            await asyncio.sleep(0.01)
        assert not clients.errors
        replica.kill()
        for seed, tokens in enumerate(await talks):
            length = 3 + TURNS * TOKENS
            row = make_model().generate(prefix=["abc"], length=length, seeds=seed)[0]
            assert tokens == row[3:].tolist()
        # Of those that the other one had, none fails.
        choices = await long
        assert {len(choice["tokens"]) for choice in choices if choice} == {LONG["max_tokens"]}
        assert clients.errors and all(clients.errors)


@pytest.mark.slow
def test_conversations_go_on_when_a_replica_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """200 requests on two cores."""
    monkeypatch.setenv("RAY_ADDRESS", "local")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # it would write a key to the home folder
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    save(make_model(1_000_000), tmp_path / "tiny")
    flags = ["--replicas", "2", "--replica-cpus", "0.5", "--state-store", f"{tmp_path}/states"]
    with running(tmp_path / "tiny", subprocess.DEVNULL, *flags) as (server, address):
        try:
            processes = psutil.Process(server.pid).children(recursive=True)
            replicas = [x for x in processes if "ServeReplica" in "".join(x.cmdline())]
            assert len(replicas) == 2
            asyncio.run(talk_while_one_dies(address, replicas[0]))
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(60)


@pytest.mark.parametrize("applications", [{}, {"linattn": SimpleNamespace(deployments={})}])
def test_replicas_that_never_began_are_told_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, applications: dict[str, Any]
) -> None:
    from linattn_models.serving import ray as replicas  # needs ray

    calls: list[str] = []

    def fail(*_: Any, **fields: Any) -> None:
        raise RuntimeError("Deploying failed.\nno module named x")

    for module, name in (
        (replicas.ray, "init"), (replicas.ray, "shutdown"), (replicas.serve, "start"),
        (replicas.serve, "delete"),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, lambda *_, name=name, **fields: calls.append(name))
    monkeypatch.setattr(replicas.serve, "run", fail)
    status = SimpleNamespace(applications=applications)
    monkeypatch.setattr(replicas.serve, "status", lambda: status)
    with (
        pytest.raises(OSError, match=r"a replica: expected .*, got no module named x\."),
        replicas.running(cast(Any, None)),
    ):
        pytest.fail("it runs")
    assert calls == ["init", "start", "delete", "shutdown"]


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ({}, "state_store"),
        ({"state_store": "states", "replicas": -1}, "replicas"),
        ({"state_store": "states", "max_replicas": 1}, "max_replicas"),
    ],
)
def test_wrong_flags_are_refused(tmp_path: Path, flags: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name}: expected"):
        main(Flags(tmp_path / "none", **{"port": 0, "replicas": 2, **flags}))
