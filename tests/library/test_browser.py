"""liblinattn compiled for browsers draws the tokens of Python; node runs it."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from linattn_models import export_decoder, load_decoder
from tests.library.test_library import MODELS

ROOT = Path(__file__).parents[2]
APP = ROOT / "apps" / "browser"
NATIVE = ROOT / "packages" / "linattn-cpu" / "native"
BUILT = ROOT / "build" / "web" / "linattn.wasm"
SCRIPT = """
import { readFileSync } from "node:fs";
import { Decoder } from "LINATTN";
const [wasm, ...files] = process.argv.slice(2);
const module = await WebAssembly.compile(readFileSync(wasm));
const drawn = [];
for (const file of files) {
  const decoder = await Decoder.open(module, new Uint8Array(readFileSync(file)));
  const state = decoder.newState(2), tokens = [];
  decoder.read(state, Array(2 * 3 * decoder.info.channels).fill(2), 3);
  for (let i = 0; i < 12; ++i) {
    tokens.push(decoder.sample(state, 2, { seed: 9, temperature: 0.8 }));
    decoder.read(state, tokens.at(-1), 1);
  }
  let refusal = "";
  try { decoder.newState(0); } catch (error) { refusal = error.message; }
  drawn.push({ tokens, refusal });
}
console.log(JSON.stringify(drawn));
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled library: that of `nox -s web` if it is newer than its sources, or a new one."""
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    newest = max(path.stat().st_mtime for path in NATIVE.rglob("*") if path.is_file())
    if BUILT.is_file() and BUILT.stat().st_mtime > newest:
        return BUILT
    if importlib.util.find_spec("ziglang") is None:
        pytest.skip("ziglang is not installed: run nox -s web")
    spec = importlib.util.spec_from_file_location("wasm", NATIVE.parent / "wasm.py")
    assert spec is not None and spec.loader is not None
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    file = tmp_path_factory.mktemp("web") / "linattn.wasm"
    build.compile_library(file)
    return file


@pytest.mark.slow
def test_tokens_are_those_of_python(library: Path, tmp_path: Path) -> None:
    script = tmp_path / "draw.mjs"
    script.write_text(SCRIPT.replace("LINATTN", str(APP / "linattn.mjs")))
    files, wanted = [], []
    for number, (name, model) in enumerate(MODELS.items()):
        for weights in ("float32", "int8"):
            file = tmp_path / f"{number}-{weights}.linattn"
            export_decoder(model, file, weights)
            files.append(file)
            prefix = [[[2] * 3] * 3 if name == "colors" else [2] * 3]
            drawn = load_decoder(file).generate(
                prefix=prefix, max_new_tokens=12, seeds=9, num_samples=2, temperature=0.8
            )
            wanted.append(drawn[:, 3:].transpose(0, 1).flatten(1).tolist())
    done = subprocess.run(
        ["node", script, library, *files], capture_output=True, check=True, text=True
    )
    results = json.loads(done.stdout)
    assert [result["tokens"] for result in results] == wanted
    assert all("expected" in result["refusal"] for result in results)
