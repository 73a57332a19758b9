"""liblinattn compiled for browsers draws the tokens of Python; node runs it."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.library.configurations import Case, random_case
from tests.library.linattn_library import compile_for

ROOT = Path(__file__).parents[2]
APP = ROOT / "apps" / "browser"
NATIVE = ROOT / "packages" / "linattn-cpu" / "native"
BUILT = ROOT / "build" / "web" / "linattn.wasm"
SCRIPT = """
import { readFileSync } from "node:fs";
import { Decoder } from "LINATTN";
const [wasm, list] = process.argv.slice(2);
const module = await WebAssembly.compile(readFileSync(wasm));
const drawn = [];
for (const { file, rows, prompt, length, count, settings } of JSON.parse(readFileSync(list))) {
  const decoder = await Decoder.open(module, new Uint8Array(readFileSync(file)));
  const state = decoder.newState(rows), tokens = [];
  for (let next = prompt, read = length; tokens.length < count; next = tokens.at(-1), read = 1) {
    decoder.read(state, next, read);
    tokens.push(decoder.sample(state, rows, settings));
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
    file = tmp_path_factory.mktemp("web") / "linattn.wasm"
    compile_for("wasm", file)
    return file


@pytest.mark.slow
def test_tokens_are_those_of_python(library: Path, tmp_path: Path) -> None:
    cases = [x.without_history.portable for x in map(random_case, range(300)) if x.settings]
    files = [case.export(tmp_path) for case in cases]
    results = run_node(library, tmp_path, list(map(job_of, cases, files)))
    for case, file, result in zip(cases, files, results, strict=True):
        steps, channels = result["tokens"], case.model.head.channels
        places = range(0, len(steps[0]), channels)
        drawn = [[x for step in steps for x in step[at : at + channels]] for at in places]
        assert drawn == case.draw(file), case
        assert "expected" in result["refusal"]


def job_of(case: Case, file: Path) -> dict[str, Any]:
    """What node draws; the names of settings are JavaScript's."""
    names = {"top_k": "topK", "top_p": "topP", "min_p": "minP"}
    settings = {names.get(name, name): value for name, value in case.settings.items()}
    rows, length = case.prefix.shape[:2]
    return {
        "file": str(file), "rows": rows, "prompt": case.prompt, "length": length,
        "count": case.count, "settings": settings,
    }  # fmt: skip


def run_node(library: Path, folder: Path, jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    script, listed = folder / "draw.mjs", folder / "jobs.json"
    script.write_text(SCRIPT.replace("LINATTN", str(APP / "linattn.mjs")))
    listed.write_text(json.dumps(jobs))
    done = subprocess.run(
        ["node", script, library, listed], capture_output=True, check=True, text=True
    )
    results: list[dict[str, Any]] = json.loads(done.stdout)
    return results
