"""liblinattn compiled for browsers draws the tokens of Python; node runs it."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from linattn_models import AutoregressiveTransformer, TransformerConfig, export_decoder
from tests.library.configurations import Case, random_case
from tests.library.linattn_library import CROSS, compile_for

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
for (const { file, rows, prompt, count, settings } of JSON.parse(readFileSync(list))) {
  const decoder = await Decoder.open(module, new Uint8Array(readFileSync(file)));
  const state = decoder.newState(rows), tokens = [];
  for (let next = prompt; tokens.length < count; next = tokens.at(-1)) {
    decoder.read(state, next);
    tokens.push(decoder.sample(state, settings));
  }
  const numbers = decoder.numbers(state).reduce((sum, part) => sum + part.length, 0);
  drawn.push({ tokens, row: 4 * numbers / rows, wanted: decoder.info.stateBytes });
}
console.log(JSON.stringify(drawn));
"""
REFUSALS = """
import { readFileSync } from "node:fs";
import { Decoder } from "LINATTN";
const [wasm, file] = process.argv.slice(2);
const module = await WebAssembly.compile(readFileSync(wasm));
const decoder = await Decoder.open(module, new Uint8Array(readFileSync(file)));
const refusal = async (work) => {
  try { await work(); } catch (error) { return error.message; }
};
const begin = () => {
  const state = decoder.newState(2);
  decoder.read(state, [1, 2]);
  return state;
};
const state = begin(), wanted = decoder.sample(state).join();
const top = decoder.c.__stack_pointer.value;
const full = () => {
  const { c } = decoder;
  decoder.c = { ...c, malloc: () => 0 };
  try { decoder.sample(state); } finally { decoder.c = c; }
};
const empty = new WebAssembly.Module(Uint8Array.of(0, 97, 115, 109, 1, 0, 0, 0));
const refusals = [
  await refusal(() => decoder.read(state, [1, 2, 3])),
  await refusal(() => decoder.read(state, [1, 999])),
  await refusal(() => decoder.newState(2 ** 20)),
  await refusal(() => decoder.sample(state, { temperature: -1 })),
  await refusal(full),
  await refusal(() => Decoder.open(module, new Uint8Array(100))),
  await refusal(() => Decoder.open(empty, [])),
];
const after = decoder.sample(begin()).join(), stack = top - decoder.c.__stack_pointer.value;
let last = 0;
for (const size of [2 ** 30, 2 ** 26, 2 ** 22, 2 ** 18]) {
  for (let place; (place = decoder.c.malloc(size)) !== 0;) last = place;
}
refusals.push(await refusal(() => decoder.newState(64)));
decoder.c.free(last);
const beyond = decoder.sample(begin()).join();
const same = last < 0 && wanted === after && wanted === beyond;
console.log(JSON.stringify({ refusals, stack, same }));
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled library: that of `nox -s web` if it is newer than its sources, or a new one."""
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    sources = [CROSS, *NATIVE.rglob("*")]
    newest = max(path.stat().st_mtime for path in sources if path.is_file())
    if BUILT.is_file() and BUILT.stat().st_mtime > newest:
        return BUILT
    file = tmp_path_factory.mktemp("web") / "linattn.wasm"
    compile_for("wasm", file)
    return file


@pytest.mark.slow
def test_tokens_are_those_of_python(library: Path, tmp_path: Path) -> None:
    cases = [x.without_history.portable for x in map(random_case, range(300)) if x.settings]
    files = [case.export(tmp_path) for case in cases]
    (tmp_path / "jobs.json").write_text(json.dumps(list(map(job_of, cases, files))))
    results = run_node(SCRIPT, library, tmp_path / "jobs.json")
    for case, file, result in zip(cases, files, results, strict=True):
        steps, channels = result["tokens"], case.model.head.channels
        places = range(0, len(steps[0]), channels)
        drawn = [[x for step in steps for x in step[at : at + channels]] for at in places]
        assert drawn == case.draw(file), case
        assert result["row"] == result["wanted"]


@pytest.mark.slow
def test_what_is_refused_changes_nothing(library: Path, tmp_path: Path) -> None:
    """Each refusal ends the library's call in its midst; then 4 GiB are taken, but for a little."""
    torch.manual_seed(0)
    model = AutoregressiveTransformer(TransformerConfig(1, 2, 32, 16), 7, positions="none")
    export_decoder(model, tmp_path / "model.linattn")
    result = run_node(REFUSALS, library, tmp_path / "model.linattn")
    expected = (
        "tokens", "tokens", "the state", "temperature", "memory", "the file", "linattn.wasm",
        "memory",
    )  # fmt: skip
    for name, refusal in zip(expected, result["refusals"], strict=True):
        assert refusal.startswith(f"{name}: expected "), refusal
    assert result["same"] and result["stack"] == 0


def job_of(case: Case, file: Path) -> dict[str, Any]:
    """What node draws; the names of settings are JavaScript's."""
    names = {"top_k": "topK", "top_p": "topP", "min_p": "minP"}
    settings = {names.get(name, name): value for name, value in case.settings.items()}
    return {
        "file": str(file), "rows": len(case.prefix), "prompt": case.prompt, "count": case.count,
        "settings": settings,
    }  # fmt: skip


def run_node(text: str, library: Path, file: Path) -> Any:
    """What a script prints, as JSON; it gets the library and a file beside itself."""
    script = file.with_suffix(".mjs")
    script.write_text(text.replace("LINATTN", str(APP / "linattn.mjs")))
    done = subprocess.run(
        ["node", script, library, file], capture_output=True, check=True, text=True
    )
    return json.loads(done.stdout)
