"""`python -m linattn_models.serving`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from linattn_models import CompiledDecoder, save
from linattn_models.serving.__main__ import Flags, make_decoder
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


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "linattn_models.serving", str(tmp_path / "none")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr.startswith("error: ") and ended.stderr.count("\n") == 1
