"""Threads: torch's number of them, sequences cut among them, several callers, other processes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor

from linattn_cpu import _native
from linattn_models import CompiledTransformer, Transformer, TransformerConfig, compile_decoder

from .calls import draw, run, run_program, torch_threads

needs_tasks = pytest.mark.skipif(
    not Path("/proc/self/task").is_dir(), reason="no /proc/self/task lists the threads here"
)

FORKED = """
import os, signal, torch
from linattn_models import Transformer, TransformerConfig, compile_decoder

torch.set_num_threads(2)
model = Transformer(TransformerConfig(num_layers=2, num_heads=2, head_dim=32, ffn_dim=64)).eval()
decoder = compile_decoder(model)
x = torch.ones(1, 64)

def take_steps():
    state = decoder.initial_state(1)
    for _ in range(20):
        y, state = decoder.step(x, state)
    return y

mine = take_steps()
child = os.fork()
if child == 0:
    signal.alarm(600)  # a child that waits for its parent's helpers
    os._exit(0 if torch.equal(take_steps(), mine) else 1)
assert os.waitpid(child, 0)[1] == 0
"""

BOUND = """
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import torch
from linattn_cpu import _native
from linattn_models import Transformer, TransformerConfig, compile_decoder

assert _native.available_cores() == 1
assert _native.team_size(64) == 1
torch.set_num_threads(1)
model = Transformer(TransformerConfig(num_layers=2, num_heads=2, head_dim=32, ffn_dim=64)).eval()
decoder = compile_decoder(model)
state, x = decoder.initial_state(1), torch.ones(1, 64)
before = len(os.listdir("/proc/self/task"))
torch.set_num_threads(64)
for _ in range(20):
    decoder.step(x, state)
assert len(os.listdir("/proc/self/task")) == before
"""

BUSY = "while True: pass"


@pytest.fixture
def busy_processes() -> Iterator[None]:
    """Two processes that take all the time they get."""
    processes = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(2)]
    yield
    for process in processes:
        process.kill()
        process.wait()


def small_decoder() -> CompiledTransformer:
    config = TransformerConfig(num_layers=2, num_heads=4, head_dim=32, ffn_dim=512)
    compiled = compile_decoder(Transformer(config).eval())
    assert isinstance(compiled, CompiledTransformer)
    return compiled


def take_steps(compiled: CompiledTransformer, steps: int = 200) -> list[Tensor]:
    """What so many steps of a row return, and its state after the last."""
    x, outputs = torch.ones(1, 128), []
    state = compiled.initial_state(1)
    for _ in range(steps):
        x, state = compiled.step(x, state)
        outputs.append(x)
    return outputs


def test_heads_do_not_depend_on_how_many_threads_there_are() -> None:
    """With as many heads as threads or more, results are equal bit for bit."""
    tensors = draw(2, 4, 300, 20)
    with torch_threads(1):
        alone = run(tensors, is_causal=True)
    with torch_threads(2):
        shared = run(tensors, is_causal=True)

    assert all(torch.equal(shared[name], x) for name, x in alone.items())


@pytest.mark.usefixtures("two_threads")
def test_two_python_threads_at_once() -> None:
    calls = [draw(1, 2, 700, 16, seed=seed) for seed in range(2)]
    expected = [run(tensors, is_causal=True) for tensors in calls]

    with ThreadPoolExecutor(2) as pool:
        for _ in range(10):
            found = list(pool.map(lambda x: run(x, is_causal=True), calls))
            for one, other in zip(found, expected, strict=True):
                assert all(torch.equal(one[name], x) for name, x in other.items())


def test_a_team_has_no_more_threads_than_there_are_cores() -> None:
    cores = _native.available_cores()

    assert 1 <= cores <= (os.cpu_count() or 1)
    assert [_native.team_size(threads) for threads in (1, cores, cores + 1, 64 * cores)] == [
        1, cores, cores, cores,
    ]  # fmt: skip


@needs_tasks
def test_a_process_bound_to_one_core_gets_one_thread() -> None:
    """A decoder must not start one thread for each of torch's: all would wait for one core."""
    run_program("-c", BOUND)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_decodes_with_helpers_of_its_own() -> None:
    run_program("-W", "ignore", "-c", FORKED)


@pytest.mark.parametrize("threads", [2, 64])
def test_a_decoder_beside_busy_processes_steps_the_same(
    threads: int, request: pytest.FixtureRequest
) -> None:
    """Parts of helpers that get no core in time are done by other threads."""
    compiled = small_decoder()
    with torch_threads(threads):
        alone = take_steps(compiled)
        request.getfixturevalue("busy_processes")
        crowded = take_steps(compiled)

    assert all(map(torch.equal, crowded, alone))


@needs_tasks
@pytest.mark.usefixtures("two_threads")
def test_helpers_without_work_sleep() -> None:
    """A helper that waits in a loop would be running whenever the test looks."""
    take_steps(small_decoder())
    for _ in range(6_000):
        if other_threads_running() == 0:
            return
        time.sleep(0.1)
    pytest.fail("helpers wait in a loop")


def other_threads_running() -> int:
    """The other threads of this process that run or wait for a core."""
    own = str(threading.get_native_id())
    files = (task / "stat" for task in Path("/proc/self/task").iterdir() if task.name != own)
    # "number (name) state ...", where the name may hold anything.
    return sum(file.read_text().rpartition(")")[2].split()[0] == "R" for file in files)
