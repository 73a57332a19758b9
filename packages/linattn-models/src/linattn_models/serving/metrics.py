"""Numbers for Prometheus."""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from linattn_models.decoding import Output
from linattn_models.serving.engine import Engine


class Metrics:
    """The metrics of one engine, in a registry of their own."""

    def __init__(self, engine: Engine) -> None:
        self._registry = CollectorRegistry()
        self._tokens = Counter("linattn_generated_tokens", "Tokens drawn", registry=self._registry)
        self._ended = Counter(
            "linattn_sequences", "Sequences ended", ["finish_reason"], registry=self._registry
        )
        self._refused = Counter(
            "linattn_refused_requests", "Requests refused", ["status"], registry=self._registry
        )
        self._first = Histogram(
            "linattn_first_token_seconds", "Time to the first token", registry=self._registry
        )
        running = Gauge("linattn_running_sequences", "Sequences in rows", registry=self._registry)
        running.set_function(lambda: engine.batch.num_seqs_running)
        waiting = Gauge("linattn_waiting_requests", "Requests waiting", registry=self._registry)
        waiting.set_function(lambda: engine.num_waiting)

    def begin(self) -> Watch:
        """Starts to measure a request."""
        return Watch(self._tokens, self._ended, self._first)

    def refuse(self, status: int) -> None:
        """Counts a request that was refused."""
        self._refused.labels(str(status)).inc()

    def text(self) -> bytes:
        """All metrics in Prometheus' format."""
        return generate_latest(self._registry)


class Watch:
    """Measures one request."""

    def __init__(self, tokens: Counter, ended: Counter, first: Histogram) -> None:
        self._tokens, self._ended, self._first = tokens, ended, first
        self._began: float | None = time.perf_counter()

    def add(self, outputs: list[Output]) -> None:
        """Counts outputs."""
        if self._began is not None:
            self._first.observe(time.perf_counter() - self._began)
            self._began = None
        self._tokens.inc(sum(len(output.tokens) for output in outputs))
        for output in outputs:
            if output.finish_reason is not None:
                self._ended.labels(output.finish_reason).inc()

    def abort(self, count: int) -> None:
        """Counts sequences that nobody reads to their end."""
        if count:
            self._ended.labels("abort").inc(count)
