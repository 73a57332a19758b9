"""A saved model outside of Python: in C, node and a browser; beside Python, and a step in ONNX."""

from __future__ import annotations

import dataclasses
import gzip
import http.server
import json
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from benchmarks import oracle
from benchmarks.case import Case, Make, Method, Settings
from benchmarks.cases import peers
from benchmarks.cases.decoder_checks import check_compiled
from benchmarks.cases.decoders import pack_decoder
from benchmarks.cases.models import Task
from benchmarks.cases.serving import answer_requests
from linattn_lab.timing import NotMeasured
from linattn_models import (
    AutoregressiveTransformer,
    Categorical,
    CompiledDecoder,
    ContinuousBatch,
    Head,
    MixtureOfLogistics,
    export_decoder,
)
from linattn_models.state import Cursor, DecodingState, WindowCache

ROOT = Path(__file__).parents[2]
NATIVE = ROOT / "packages" / "linattn-cpu"
MODULE = ROOT / "apps" / "browser" / "linattn.mjs"
BUILT = ROOT / "build" / "anywhere"
# How node and a page draw tokens; the second time, when the engine has compiled what it runs often.
DRAW = """
import { Decoder } from "./linattn.mjs";
export async function draw(wasm, file, count, seed) {
  const began = performance.now(), module = await WebAssembly.compile(wasm);
  const decoder = await Decoder.open(module, file), start = performance.now() - began;
  let tokens, since;
  for (let time = 0; time < 2; ++time) {
    const state = decoder.newState(1);
    since = performance.now(), tokens = [];
    for (let read = []; tokens.length < count; read = tokens.slice(-1)) {
      decoder.read(state, read);
      tokens.push(...decoder.sample(state, { seed }));
    }
  }
  return { tokens, seconds: (performance.now() - since) / 1000, start };
}
"""
NODE = """
import { readFileSync } from "node:fs";
import { draw } from "./draw.mjs";
const [wasm, file] = ["linattn.wasm", "model.linattn"].map((name) => readFileSync(name));
console.log(JSON.stringify(await draw(wasm, file, ...process.argv.slice(2).map(Number))));
"""
PAGE = """async ([count, seed]) => {
  const { draw } = await import("/draw.mjs");
  const fetched = async (name) => new Uint8Array(await (await fetch(name)).arrayBuffer());
  return draw(await fetched("linattn.wasm"), await fetched("model.linattn"), count, seed);
}"""
LOADED = "import sys; from linattn_models import load_decoder; load_decoder(sys.argv[1])"
SEED = 1


class Shape(NamedTuple):
    """A model that is exported."""

    task: Task
    head: Head
    weights: str


DIGITS = Task(num_layers=4, num_heads=4, head_dim=16, ffn_dim=256)
SHAPES = {
    "digits": Shape(DIGITS, Categorical(17), "float32"),
    "text": Shape(Task(num_layers=3, num_heads=4, language=True), Categorical(256), "int8"),
    "mnist": Shape(Task(), MixtureOfLogistics(10), "float32"),
}


class Ran(NamedTuple):
    """What a process printed, its seconds, and the largest memory that it took, in bytes."""

    out: str
    err: str
    seconds: float
    peak: int


def run_process(*command: object, folder: Path | None = None) -> Ran:
    """Runs a command to its end."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        began = time.perf_counter()
        process = subprocess.Popen([*map(str, command)], stdout=out, stderr=err, cwd=folder)
        peak, status = 0, Path("/proc", str(process.pid), "status")
        while process.poll() is None:  # what wait4 says counts this process's memory, too
            if found := re.search(r"VmHWM:\s+(\d+) kB", status.read_text()):
                peak = int(found[1]) * 1024
            time.sleep(1e-3)
        seconds = time.perf_counter() - began
        for file in (out, err):
            file.seek(0)
        ran = Ran(out.read(), err.read(), seconds, peak)
    if process.returncode:
        raise RuntimeError(f"{command[0]}: {ran.err}")
    return ran


@dataclasses.dataclass(frozen=True)
class Shipped:
    """A model in a folder, as a page has it."""

    model: AutoregressiveTransformer
    weights: str
    settings: Settings
    folder: Path

    @property
    def file(self) -> Path:
        return self.folder / "model.linattn"

    @property
    def count(self) -> int:
        """The tokens that are drawn."""
        return int(self.model.max_length or 0) or Task.length

    @cached_property
    def decoder(self) -> CompiledDecoder:
        return pack_decoder(self.model, self.weights)

    @cached_property
    def tokens(self) -> list[int]:
        """Those that every method has to draw."""
        drawn: list[int] = self.decoder.generate(1, length=self.count, seeds=SEED)[0].tolist()
        return drawn

    def find_difference(self, draw: Callable[[], list[int]]) -> str | None:
        """None where the tokens are those of Python's compiled decoder.

        Instruction sets round differently, so that a draw may end on the other side of the border
        between two neighbors; another text follows.
        """
        pairs = zip(draw(), self.tokens, strict=True)
        first = next(((i, x, y) for i, (x, y) in enumerate(pairs) if x != y), None)
        if first is None or abs(first[1] - first[2]) == 1:
            return None
        return f"token {first[0]} is not that of generate"


def ship(shape: Shape, settings: Settings, folder: Path) -> Shipped:
    """Writes the model and what a page needs."""
    model = shape.task.for_settings(settings).model(head=shape.head)
    shipped = Shipped(model, shape.weights, settings, folder)
    folder.mkdir(parents=True, exist_ok=True)
    export_decoder(model, shipped.file, shape.weights)
    shutil.copy(MODULE, folder)
    (folder / "draw.mjs").write_text(DRAW)
    (folder / "node.mjs").write_text(NODE)
    (folder / "index.html").write_text("<!doctype html>")
    return shipped


def compiled(target: str, settings: Settings) -> Path:
    """The library or command for another machine, if ziglang is installed."""
    peers.load("ziglang", settings)
    run_process(sys.executable, NATIVE / "cross.py", target, BUILT / target)
    return BUILT / target


def draw_by_command(target: str | None, shipped: Shipped) -> Method:
    """linattn-run, of the wheel or compiled for a kind of processors."""
    if target is None:
        words = run_process(sys.executable, "-m", "linattn_cpu.library", "--run").out
        program = Path(words.strip())
    else:
        program = compiled(target, shipped.settings)
    command = program, shipped.file, "-s", SEED, "-j", shipped.settings.threads
    once = run_process(*command, "-n", 1)
    figures = {"KB": program.stat().st_size / 1e3, **_of_process(once)}

    def draw() -> list[int]:
        return [int(x) for x in run_process(*command, "-n", shipped.count).out.split()]

    def measure() -> float:
        ran = run_process(*command, "-n", shipped.count, "-b")
        figures["MB"] = ran.peak / 1e6  # a process of one token ends too soon to be looked at
        (rate,) = re.findall(r"(\d+) a second", ran.err)
        return shipped.count / float(rate)

    return Method(
        partial(shipped.find_difference, draw),
        measure=measure, units=shipped.count, figures=figures,
    )  # fmt: skip


def draw_by_engine(run: Callable[[Shipped], dict[str, Any]], shipped: Shipped) -> Method:
    """The library in WebAssembly, where JavaScript runs."""
    library = compiled("wasm", shipped.settings)
    shutil.copy(library, shipped.folder / "linattn.wasm")
    content = library.read_bytes()
    figures = {"KB": len(content) / 1e3, "KB gzip": len(gzip.compress(content)) / 1e3}

    def measure() -> float:
        ran = run(shipped)
        figures["ms to start"] = ran["start"]
        return float(ran["seconds"])

    return Method(
        partial(shipped.find_difference, lambda: run(shipped)["tokens"]),
        measure=measure, units=shipped.count, figures=figures,
    )  # fmt: skip


def run_node(shipped: Shipped) -> dict[str, Any]:
    """Draws in node."""
    if shutil.which("node") is None:
        raise NotMeasured("not installed")
    ran = run_process("node", "node.mjs", shipped.count, SEED, folder=shipped.folder)
    result: dict[str, Any] = json.loads(ran.out)
    return result


def run_chromium(shipped: Shipped) -> dict[str, Any]:
    """Draws in a page."""
    playwright = peers.load("playwright.sync_api", shipped.settings)
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        raise NotMeasured("not installed")
    handler = partial(_Quiet, directory=str(shipped.folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with server, playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{server.server_port}")
        result: dict[str, Any] = page.evaluate(PAGE, [shipped.count, SEED])
        browser.close()
        server.shutdown()
    return result


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def draw_in_python(by: str, shipped: Shipped) -> Method:
    """The compiled decoder by `generate`, or by a batch of one sequence as in a server."""
    decoder, count = shipped.decoder, shipped.count
    run: Callable[[], object] = partial(decoder.generate, 1, length=count, seeds=SEED)
    if by != GENERATE:
        run = partial(answer_requests, ContinuousBatch(decoder, 1), [count])
    figures = _of_process(run_process(sys.executable, "-c", LOADED, shipped.file))
    return Method(
        partial(check_compiled, shipped.model, decoder, 1), run, units=count, figures=figures
    )


def _of_process(ran: Ran) -> dict[str, float]:
    return {"ms to start": ran.seconds * 1e3, "MB": ran.peak / 1e6}


class Step(nn.Module):
    """A step with its state as tensors, as an ONNX graph has it."""

    def __init__(self, model: AutoregressiveTransformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, token: Tensor, position: Tensor, *parts: Tensor) -> tuple[Tensor, ...]:
        layers = self.model.transformer.initial_state(1, max_length=Task.length).layers
        rest = iter(parts)
        layers = tuple(type(layer)(*(next(rest) for _ in layer)) for layer in layers)
        state = DecodingState(layers, Cursor(position, 0), Task.length)
        parameters, state = self.model.step(token, state)
        return (parameters, *(x for layer in state.layers for x in layer))


def step_in_onnx(shipped: Shipped) -> Method:
    """A step by onnxruntime, without the draw: it is given the tokens."""
    runtime = peers.load("onnxruntime", shipped.settings)
    peers.load("onnxscript", shipped.settings)
    model, file = shipped.model, shipped.folder / "step.onnx"
    parameters, state = model.prefill(torch.empty(1, 0, dtype=torch.int64))
    if any(isinstance(layer, WindowCache) for layer in state.layers):
        raise NotMeasured("a state with a window is not exported")
    parts = [x for layer in state.layers for x in layer]
    arguments = torch.zeros(1, dtype=torch.int64), state.cursor.rows(1), *parts
    exported: Any = torch.onnx.export(Step(model).eval(), arguments, dynamo=True, verbose=False)
    exported.save(file)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = shipped.settings.threads
    session = runtime.InferenceSession(file, options)
    names = [one.name for one in session.get_inputs()]
    tokens = torch.tensor(shipped.tokens[:-1])

    def run() -> Tensor:
        rows, values = [parameters], [x.numpy() for x in parts]
        for place, token in enumerate(tokens, 1):
            inputs = token.view(1).numpy(), torch.tensor([place]).numpy(), *values
            given = dict(zip(names, inputs, strict=True))
            row, *values = session.run(None, given)
            rows.append(torch.from_numpy(row))
        return torch.cat(rows)

    def find_difference() -> str | None:
        exact = model(torch.tensor([shipped.tokens]))[0]
        return oracle.find_disagreement("decoding by steps", run(), exact)

    return Method(find_difference, run, units=len(tokens))


GENERATE, BATCH, AVX2 = "Python, generate", "Python, ContinuousBatch", "C, AVX2"
WAYS: dict[str, Callable[[Shipped], Method]] = {
    AVX2: partial(draw_by_command, "x86_64_v3"),
    "C, baseline": partial(draw_by_command, "x86_64"),
    "C, of the wheel": partial(draw_by_command, None),
    "node": partial(draw_by_engine, run_node),
    "Chromium": partial(draw_by_engine, run_chromium),
    GENERATE: partial(draw_in_python, GENERATE),
    BATCH: partial(draw_in_python, BATCH),
    "onnxruntime": step_in_onnx,
}


def anywhere_case(name: str) -> Case:
    """One model by every way."""
    shape = SHAPES[name]

    def setup(settings: Settings) -> dict[str, Make]:
        shipped = ship(shape, settings, BUILT / name)
        return {way: partial(make, shipped) for way, make in WAYS.items()}

    return Case(
        f"anywhere/{name}",
        f"Tokens of one sequence, from a seed, by a model in {shape.weights}.",
        setup,
        ratios=tuple((way, AVX2) for way in WAYS if way != AVX2),
        unit="token", rounds=(5, 9),
    )  # fmt: skip


CASES = tuple(map(anywhere_case, SHAPES))
