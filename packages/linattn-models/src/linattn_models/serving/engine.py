"""The thread that owns a batch, and the streams of outputs that event loops read."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from linattn_core.errors import expected
from linattn_models.decoding import ContinuousBatch, Output, Request

# The most seconds that the steps of one call should take, so that their tokens come evenly.
_MOST_SECONDS = 0.05


class Overloaded(Exception):
    """Too many requests wait."""


class Stopped(Exception):
    """The thread has ended, so no more outputs come."""

    def __init__(self) -> None:
        super().__init__("The server stops.")


class Stream:
    """The outputs of some requests, read in the event loop that asked for them.

    Args:
        engine: where the requests are.
        requests: their sequences are numbered from the first to the last.
    """

    def __init__(self, engine: Engine, requests: Sequence[Request]) -> None:
        self.loop = asyncio.get_running_loop()
        self.requests = requests
        # The first sequence of each request, by its id in the batch.
        self.first: dict[int, int] = {}
        self.added: asyncio.Future[None] = self.loop.create_future()
        self._engine = engine
        self._left = sum(request.sampling.n for request in requests)
        self._answered: set[int] = set()
        self._outputs: list[Output] = []
        self._news = asyncio.Event()
        self._is_stopped = False

    @property
    def num_waiting(self) -> int:
        """Requests without an output so far."""
        return len(self.requests) - len(self._answered)

    async def read(self) -> list[Output]:
        """The outputs that are new, at least one; an empty list after the last.

        Raises:
            Stopped: the engine has ended.
        """
        while not self._outputs and self._left:
            if self._is_stopped:
                raise Stopped
            self._news.clear()
            await self._news.wait()
        outputs, self._outputs = self._outputs, []
        return outputs

    def push(self, outputs: list[Output]) -> None:
        """Takes the outputs of a step, in the loop."""
        for output in outputs:
            self._answered.add(output.request)
            index = self.first[output.request] + output.index
            self._outputs.append(replace(output, index=index))
        if not self.num_waiting:
            self._engine.waiting.discard(self)
        self._left -= _count_ended(outputs)
        self._news.set()

    def stop(self) -> None:
        """Ends the stream, in the loop."""
        self._engine.waiting.discard(self)
        self._is_stopped = True
        self._news.set()
        if not self.added.done():
            self.added.set_exception(Stopped())

    def close(self) -> int:
        """Cancels what has not ended, in the loop; returns the sequences whose end was not read."""
        self._engine.waiting.discard(self)
        if self._left:
            self._engine.cancel(self)
        return self._left + _count_ended(self._outputs)


class Engine:
    """Steps a batch in a thread of its own, which starts with the first request.

    Args:
        batch: nothing else may use it. Its `steps_per_call` is the most; fewer steps are made where
            they take long.
        most_waiting: requests that may wait for their first token.

    Attributes:
        waiting: the streams with requests that have no output so far; of the event loop.
    """

    def __init__(self, batch: ContinuousBatch, most_waiting: int) -> None:
        self.batch = batch
        self.waiting: set[Stream] = set()
        self._most_waiting = most_waiting
        self._most_steps, batch.steps_per_call = batch.steps_per_call, 1
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._streams: dict[int, Stream] = {}  # of the thread
        self._thread: threading.Thread | None = None
        self._is_stopping = False
        self._lock = threading.Lock()

    @property
    def is_alive(self) -> bool:
        """Whether requests are taken."""
        return not self._is_stopping and (self._thread is None or self._thread.is_alive())

    @property
    def num_waiting(self) -> int:
        """Requests that wait for their first token."""
        return sum(stream.num_waiting for stream in tuple(self.waiting))

    async def submit(self, requests: Sequence[Request]) -> Stream:
        """Adds all of the requests, or none.

        Raises:
            Overloaded: too many wait.
            Stopped: the thread has ended.
            ValueError, TypeError: as `ContinuousBatch.add`.
        """
        stream = Stream(self, requests)
        with self._lock:  # event loops of several threads may ask, and the thread may just end
            if not self.is_alive:
                raise Stopped
            waiting = self.num_waiting
            if waiting + len(requests) > self._most_waiting:
                wanted = f"at most {self._most_waiting} requests"
                raise Overloaded(expected("the queue", wanted, waiting + len(requests), "retry"))
            self.waiting.add(stream)
            self._commands.put(partial(self._add, stream))
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="linattn-engine", daemon=True
                )
                self._thread.start()
        try:
            await stream.added
        except asyncio.CancelledError:
            stream.close()
            raise
        except (ValueError, TypeError):
            self.waiting.discard(stream)
            raise
        return stream

    def cancel(self, stream: Stream) -> None:
        """Ends the requests; their rows are free after the step that runs."""
        self._commands.put(partial(self._cancel, stream))

    def stop(self) -> None:
        """Ends the thread after its current step, and all streams."""
        self._is_stopping = True
        self._commands.put(lambda: None)
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._is_stopping:
                self._take_commands()
                if self.batch.has_work and not self._is_stopping:
                    self._deliver(self._step())
        finally:
            with self._lock:  # no request is added later
                self._is_stopping = True
            for stream in self._streams.values():
                _call(stream, stream.stop)
            while not self._commands.empty():
                self._commands.get()()  # streams that come now are refused, see _add

    def _step(self) -> list[Output]:
        """A step of the batch, whose time decides how many steps the next one makes."""
        began = time.perf_counter()
        outputs = self.batch.step()
        seconds = time.perf_counter() - began
        if steps := max((len(output.tokens) for output in outputs), default=0):
            within = int(_MOST_SECONDS * steps / max(seconds, 1e-9))
            self.batch.steps_per_call = max(1, min(within, self._most_steps))
        return outputs

    def _take_commands(self) -> None:
        """Runs the commands there are; waits for one where the batch has nothing to do."""
        if not self.batch.has_work:
            self._commands.get()()
        while not self._commands.empty():
            self._commands.get()()

    def _add(self, stream: Stream) -> None:
        if self._is_stopping:
            _call(stream, stream.stop)
            return
        try:
            first = 0
            for request in stream.requests:
                number = self.batch.add(request)
                self._streams[number] = stream
                stream.first[number] = first
                first += request.sampling.n
        except (ValueError, TypeError) as error:
            self._cancel(stream)
            _call(stream, partial(_fail, stream.added, error))
            return
        except BaseException:
            _call(stream, stream.stop)
            raise
        _call(stream, partial(_finish, stream.added))

    def _cancel(self, stream: Stream) -> None:
        for number in stream.first:
            if self._streams.pop(number, None) is not None:
                self.batch.cancel(number)

    def _deliver(self, outputs: list[Output]) -> None:
        by_request: dict[int, list[Output]] = defaultdict(list)
        for output in outputs:
            by_request[output.request].append(output)
        calls: dict[asyncio.AbstractEventLoop, list[tuple[Stream, list[Output]]]]
        calls = defaultdict(list)
        for request, own in by_request.items():
            stream = self._streams.get(request)  # None for one that was canceled
            if stream is not None:
                calls[stream.loop].append((stream, own))
        for pairs in calls.values():
            if not _call(pairs[0][0], partial(_push_all, pairs)):
                for stream, _ in pairs:
                    self._cancel(stream)
        running = self.batch.requests
        for request in [number for number in by_request if number not in running]:
            self._streams.pop(request, None)


def _count_ended(outputs: list[Output]) -> int:
    return sum(output.finish_reason is not None for output in outputs)


def _call(stream: Stream, function: Callable[[], object]) -> bool:
    """Calls a function in the stream's loop; False where the loop has closed."""
    try:
        stream.loop.call_soon_threadsafe(function)
    except RuntimeError:
        return False
    return True


def _push_all(pairs: list[tuple[Stream, list[Output]]]) -> None:
    for stream, outputs in pairs:
        stream.push(outputs)


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _fail(future: asyncio.Future[None], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
