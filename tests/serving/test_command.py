"""`python -m linattn_models.serving`."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE
from typing import Any

import httpx2
import pytest

from linattn_models import CompiledDecoder, save
from linattn_models.serving.__main__ import Flags, main
from linattn_models.serving.command import make_decoder
from tests.models.decoding.decoders import needs_cpu_backend
from tests.serving.clients import make_model, running


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
        main(Flags(tmp_path / "tiny", **{"port": 0, **flags}))


@pytest.mark.slow
def test_an_interrupt_ends_the_server_beside_a_client_that_reads(tmp_path: Path) -> None:
    save(make_model(1_000_000), tmp_path / "tiny")
    with running(tmp_path / "tiny", subprocess.DEVNULL) as (server, address):
        body = {"prompt": "abc", "max_tokens": 900_000, "stream": True}
        url = f"{address}/v1/completions"
        with httpx2.stream("POST", url, json=body, timeout=600) as events:
            next(events.iter_lines())
            server.send_signal(signal.SIGINT)
            server.wait(120)


@pytest.mark.slow
@pytest.mark.parametrize(("level", "lines"), [("info", 1), ("warning", 0)])
def test_the_real_address_is_printed_and_answers_are_logged(
    tmp_path: Path, level: str, lines: int
) -> None:
    save(make_model(), tmp_path / "tiny")
    (tmp_path / "key").write_text("secret\n")
    flags = ("--host", "::1", "--log-level", level, "--api-key", f"@{tmp_path / 'key'}")
    flags += ("--root-path", "/text")
    with running(tmp_path / "tiny", PIPE, *flags) as (server, address):
        assert re.fullmatch(r"http://\[::1\]:[1-9]\d+", address)
        body = {"prompt": "abc", "max_tokens": 2}
        url, headers = f"{address}/v1/completions", {"authorization": "Bearer secret"}
        assert httpx2.post(url, json=body, timeout=600).status_code == 401
        assert httpx2.post(url, json=body, headers=headers, timeout=600).is_success
        server.send_signal(signal.SIGINT)
        _, errors = server.communicate(timeout=120)
    assert errors.count('"POST /text/v1/completions HTTP/1.1" 200') == lines
    assert "secret" not in errors


PROGRAM = """
import gated_delta, torch
from linattn import AutoregressiveTransformer, CharacterTokenizer, TransformerConfig, save
torch.manual_seed(0)
config = TransformerConfig(1, 2, 4, 8, attention=gated_delta.GatedDelta())
model = AutoregressiveTransformer(config, 9, positions="none").eval()
torch.nn.init.normal_(model.output.weight, std=0.5)
model.tokenizer = CharacterTokenizer("abcdefgh ")
save(model, "model")
tokens = model.generate(prefix=[model.tokenizer.encode("abc")], max_new_tokens=20, seeds=5)
print(model.tokenizer.decode(tokens[0, 3:].tolist()), end="")
"""


@pytest.mark.slow
def test_an_attention_from_a_file_elsewhere_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guide = (Path(__file__).parents[2] / "docs/your-model.md").read_text()
    cells = re.findall(r"^```\{code-cell\}\n(.*?)^```", guide, re.MULTILINE | re.DOTALL)
    (cell,) = [cell for cell in cells if "register_attention(GatedDelta" in cell]
    header = "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n"
    (tmp_path / "gated_delta.py").write_text(header + cell)
    monkeypatch.chdir(tmp_path)
    made = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    with running(Path("model"), subprocess.DEVNULL, "--imports", "gated_delta") as (_, address):
        body = {"prompt": "abc", "max_tokens": 20, "seed": 5}
        answer = httpx2.post(f"{address}/v1/completions", json=body, timeout=600).json()
    assert answer["choices"][0]["text"] == made.stdout
    command = [sys.executable, "-m", "linattn_models.serving", "model"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 1 and "'gated-delta'; import the module" in ended.stderr


def test_a_port_that_is_used_is_refused_before_the_model_is_read(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(OSError, match=rf"^127.0.0.1, port {port}: expected a free port"):
            main(Flags(tmp_path / "none", port=port))
    with pytest.raises(OSError, match=r"^nowhere\.invalid, port 0: expected"):
        main(Flags(tmp_path / "none", host="nowhere.invalid", port=0))


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "linattn_models.serving", str(tmp_path / "none")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr.startswith("error: ") and ended.stderr.count("\n") == 1
