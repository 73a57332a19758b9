"""Numbers for Prometheus."""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from linattn_models.decoding import Output
from linattn_models.serving.engine import Engine

# Bounds of histograms in seconds: between two tokens, and of whole answers.
_BETWEEN = (1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0)
_WHOLE = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)


class Metrics:
    """The metrics of one engine, in a registry of their own."""

    def __init__(self, engine: Engine) -> None:
        self._registry = own = CollectorRegistry()
        self.prompt = Counter("linattn_prompt_tokens", "Tokens of prompts", registry=own)
        self.tokens = Counter("linattn_generated_tokens", "Tokens drawn", registry=own)
        self.ended = Counter(
            "linattn_sequences", "Sequences ended", ["finish_reason"], registry=own
        )
        self.responses = Counter("linattn_responses", "Answers", ["status"], registry=own)
        self.first = Histogram(
            "linattn_first_token_seconds", "Time to the first token", registry=own
        )
        self.between = Histogram(
            "linattn_next_token_seconds", "Time between tokens", buckets=_BETWEEN, registry=own
        )
        self.whole = Histogram(
            "linattn_completion_seconds", "Time of whole answers", buckets=_WHOLE, registry=own
        )
        running = Gauge("linattn_running_sequences", "Sequences in rows", registry=own)
        running.set_function(lambda: engine.batch.num_seqs_running)
        waiting = Gauge("linattn_waiting_requests", "Requests waiting", registry=own)
        waiting.set_function(lambda: engine.num_waiting)

    def text(self) -> bytes:
        """All metrics in Prometheus' format."""
        return generate_latest(self._registry)


class Watch:
    """Measures one answer from now on."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._began = time.perf_counter()
        self._last: float | None = None

    def add_prompts(self, tokens: int) -> None:
        """Counts the tokens of prompts."""
        self._metrics.prompt.inc(tokens)

    def add(self, outputs: list[Output]) -> None:
        """Counts outputs."""
        now, count = time.perf_counter(), sum(len(output.tokens) for output in outputs)
        sequences = {output.index for output in outputs}
        if self._last is None:
            self._metrics.first.observe(now - self._began)
        elif count:
            self._metrics.between.observe((now - self._last) * len(sequences) / count)
        self._last = now
        self._metrics.tokens.inc(count)
        for output in outputs:
            if output.finish_reason is not None:
                self._metrics.ended.labels(output.finish_reason).inc()

    def end(self, aborted: int) -> None:
        """Counts the answer, or its sequences that nobody reads to their end."""
        if aborted:
            self._metrics.ended.labels("abort").inc(aborted)
        else:
            self._metrics.whole.observe(time.perf_counter() - self._began)


class StatusCounter:
    """Counts the status of each answer; 499 where the client disconnected before it.

    Args:
        app: what answers.
        counter: has the label "status".
    """

    def __init__(self, app: ASGIApp, counter: Counter) -> None:
        self._app, self._counter = app, counter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 499

        async def note(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self._app(scope, receive, note)
        except Exception:
            status = 500
            raise
        finally:
            self._counter.labels(status).inc()
