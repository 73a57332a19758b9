"""`python -m linattn_models.serving`."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx2
import pytest

from linattn_models import CompiledDecoder, save
from linattn_models.serving.__main__ import Flags, main, make_decoder
from tests.models.decoding.decoders import needs_cpu_backend
from tests.serving.clients import make_model


@needs_cpu_backend
def test_a_saved_model_is_compiled(tmp_path: Path) -> None:
    model = make_model()
    save(model, tmp_path / "tiny")
    decoder = make_decoder(Flags(tmp_path / "tiny"))
    assert isinstance(decoder, CompiledDecoder)
    assert decoder.fingerprint() == model.fingerprint()
    assert decoder.tokenizer.encode("abc") == model.tokenizer.encode("abc")
    assert not isinstance(make_decoder(Flags(tmp_path / "tiny", decoder="eager")), CompiledDecoder)


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ({"decoder": "eager", "weights": "int8"}, "--weights"),
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens"),
        ({"max_num_seqs": 1 << 60}, "max_num_seqs"),
        ({"port": 1 << 16}, "--port"),
    ],
)
def test_wrong_flags_are_refused(tmp_path: Path, flags: dict[str, Any], name: str) -> None:
    save(make_model(), tmp_path / "tiny")
    with pytest.raises(ValueError, match=f"^{name}: expected"):
        main(Flags(tmp_path / "tiny", **flags))


@pytest.mark.slow
def test_an_interrupt_ends_the_server_beside_a_client_that_reads(tmp_path: Path) -> None:
    save(make_model(1_000_000), tmp_path / "tiny")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    command = [sys.executable, "-m", "linattn_models.serving", str(tmp_path / "tiny")]
    server = subprocess.Popen([*command, "--port", str(port)])
    try:
        while True:
            try:
                httpx2.get(f"http://127.0.0.1:{port}/health")
                break
            except httpx2.ConnectError:
                assert server.poll() is None
                time.sleep(0.1)
        body = {"prompt": "abc", "max_tokens": 900_000, "stream": True}
        url = f"http://127.0.0.1:{port}/v1/completions"
        with httpx2.stream("POST", url, json=body, timeout=60) as events:
            next(events.iter_lines())
            server.send_signal(signal.SIGINT)
            server.wait(120)
    finally:
        server.kill()


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "linattn_models.serving", str(tmp_path / "none")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr.startswith("error: ") and ended.stderr.count("\n") == 1
