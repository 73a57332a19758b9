"""The application of a server: its routes and refusals."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Response
from fastapi import Request as HttpRequest
from fastapi.exceptions import RequestValidationError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import FileResponse, JSONResponse

from linattn_core.errors import expected, quote, rename_subject, subject_of
from linattn_models.basics.validation import at_least, in_range, instance
from linattn_models.decoding import ContinuousBatch, Request
from linattn_models.serving.access import KeyCheck
from linattn_models.serving.chat import ChatTemplate
from linattn_models.serving.completion import ChatCompletion, Completion
from linattn_models.serving.engine import Engine, Overloaded, Stopped
from linattn_models.serving.fields import (
    BODY,
    FIELDS,
    ChatFields,
    CompletionFields,
    describe_error,
    read_chat,
    read_echoes,
    read_fields,
    render_chat,
)
from linattn_models.serving.limits import BodyLimits, BodyReader
from linattn_models.serving.metrics import Metrics, StatusCounter, Watch
from linattn_models.serving.responses import CompletionResponse, refusal
from linattn_models.serving.states import RecentStates, States, StateStore, Unavailable

# Names of fields of the batch's requests, and those of a body that they come from.
_FIELDS = {"length": "max_tokens", "text": "prompt", "stop_strings": "stop"}
# States that are kept, and their bytes: a cache of softmax attention can be large.
_KEPT_STATES, _KEPT_BYTES = 256, 1 << 30
# Values of a body beside the tokens of its prompt.
_OTHER_VALUES = 1 << 16
# A page on which a text is continued.
PAGE = Path(__file__).with_name("page.html")


def create_app(
    batch: ContinuousBatch,
    queue: int = 256,
    *,
    name: str = "linattn",
    chat: ChatTemplate | None = None,
    api_key: str | None = None,
    allowed_origins: Sequence[str] = (),
    page: Path = PAGE,
    states: StateStore | None = None,
    store_time: float = 10.0,
    most_bytes: int = 1 << 24,
    most_unfinished: int = 1 << 26,
    body_time: float = 60.0,
    most_prompt: int = 1 << 20,
    stall: float = 30.0,
) -> FastAPI:
    """An application that answers requests for completions from one batch.

    POST /v1/completions takes OpenAI's fields, and also `top_k`, `min_p`, `stop_tokens`,
    `return_state`, `state` and `state_bytes`. What would change the answer and is not supported is
    refused. With `stream`, the answer is server-sent events: all samples come over one connection,
    each choice with its `index`.
    POST /v1/chat/completions answers the messages of a chat, which a template makes a prompt.
    GET /v1/states/ID is a state as a file. GET /v1/models, /v1/models/ID, /health and /metrics tell
    about the server, and GET / is a page for a browser.

    Args:
        batch: owned by the application from now on, and stepped in a thread.
        queue: requests that may wait for their first token; more are answered by 503.
        name: of the model.
        chat: the template of chats; by default one line for each message.
        api_key: what clients have to send as `Authorization: Bearer KEY`; others get 401 for all
            but / and /health.
        allowed_origins: sites whose pages may send requests from browsers, such as
            "https://example.org"; "*" for all.
        page: the file that answers GET /.
        states: keeps the states that clients continue, such as `SharedStates` for several servers;
            by default the last 256 in memory, of at most 1 GiB together.
        store_time: seconds in which `states` has to answer; the client of a slower one gets 503.
        most_bytes: of a request's body; larger ones are answered by 413.
        most_unfinished: bytes of all bodies that are not whole yet; beyond them, the one that began
            first is answered by 408.
        body_time: seconds in which a body has to be whole; slower ones are answered by 408.
        most_prompt: characters or tokens of a body's prompts, which are refused before they are
            encoded.
        stall: seconds after which a reader of events that takes nothing is dropped.

    Returns:
        An ASGI application. A client that disconnects cancels its request. At shutdown, what has
        not ended is stopped.

    Raises:
        ValueError: numbers out of range, or a key that cannot be sent.
        TypeError: not a batch.
    """
    instance("batch", batch, ContinuousBatch)
    in_range("stall", stall, 0.0, math.inf)
    in_range("body_time", body_time, 0.0, math.inf)
    in_range("store_time", store_time, 0.0, math.inf)
    queue, most_prompt = at_least("queue", queue, 1), at_least("most_prompt", most_prompt, 1)
    limits = BodyLimits(
        most=at_least("most_bytes", most_bytes, 1),
        values=most_prompt + _OTHER_VALUES,
        unfinished=at_least("most_unfinished", most_unfinished, 1),
        seconds=body_time,
    )
    engine = Engine(batch, queue)
    store = RecentStates(_KEPT_STATES, _KEPT_BYTES) if states is None else states
    service = _Service(
        name=name,
        batch=batch,
        engine=engine,
        metrics=Metrics(engine),
        states=States(store, _most_of_file(batch), store_time),
        template=chat or ChatTemplate(),
        rendering=ThreadPoolExecutor(1, "linattn-chat"),
        most_prompt=most_prompt,
        queue=queue,
        stall=stall,
    )
    # From the outermost on.
    middleware = [Middleware(StatusCounter, service.metrics.responses)]
    if allowed_origins:
        middleware.append(
            Middleware(CORSMiddleware, allowed_origins, allow_methods=["*"], allow_headers=["*"])
        )
    if api_key is not None:
        key = KeyCheck(api_key)
        middleware.append(Middleware(AuthenticationMiddleware, backend=key, on_error=_refuse_key))
    middleware.append(Middleware(BodyReader, limits=limits, refuse=_refuse_body))

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        engine.stop()

    app = FastAPI(lifespan=lifespan, middleware=middleware, openapi_url=None)
    app.state.engine = engine
    _add_refusals(app)
    _add_completions(app, service)
    _add_reports(app, service, page)
    return app


@dataclass(frozen=True)
class _Service:
    """What the routes share.

    Args:
        rendering: a thread of its own, because a slow template would hold up those that read other
            requests.
    """

    name: str
    batch: ContinuousBatch
    engine: Engine
    metrics: Metrics
    states: States
    template: ChatTemplate
    rendering: ThreadPoolExecutor
    most_prompt: int
    queue: int
    stall: float

    def refuse_model(self, name: str) -> Response:
        """An answer to a wrong model."""
        return refusal(404, expected("model", repr(self.name), quote(name)), "model")

    async def answer(self, fields: CompletionFields | ChatFields) -> Response:
        """Adds the requests of a body to the batch."""
        if fields.model not in (None, self.name):
            return self.refuse_model(fields.model)
        watch = Watch(self.metrics)
        try:
            requests, completion = await self._read(fields)
            stream = await self.engine.submit(requests)
        except (ValueError, TypeError) as error:
            return refusal(400, *_message_and_field(error, _names_of(fields)))
        watch.add_prompts(completion.prompt_tokens)
        tells_usage = bool(fields.stream_options.include_usage)
        return CompletionResponse(
            stream, completion, self.states, watch, fields.stream, tells_usage, self.stall
        )

    async def _read(
        self, fields: CompletionFields | ChatFields
    ) -> tuple[list[Request], Completion | ChatCompletion]:
        """The requests of a body, and the content of their answer."""
        if isinstance(fields, CompletionFields):
            return await self._read_completion(fields)
        loop = asyncio.get_running_loop()
        text = await loop.run_in_executor(self.rendering, self._render, fields)
        read = partial(read_chat, fields, text, self.template, self.batch)
        requests, completion = await self._read_completion(await run_in_threadpool(read))
        return requests, ChatCompletion(completion, fields.top_logprobs)

    def _render(self, fields: ChatFields) -> str:
        return render_chat(fields, self.template, self.batch, most_prompt=self.most_prompt)

    async def _read_completion(self, fields: CompletionFields) -> tuple[list[Request], Completion]:
        stored = None
        if fields.state is not None and fields.state_bytes is None:
            stored = await self.states.get(fields.state)
        # Other clients are answered while a long text is encoded or a state is read.
        return await run_in_threadpool(self._make_requests, fields, stored)

    def _make_requests(
        self, fields: CompletionFields, stored: bytes | None
    ) -> tuple[list[Request], Completion]:
        most = {"most_prompt": self.most_prompt, "most_prompts": self.queue}
        requests = read_fields(fields, self.batch, stored, **most)
        tokenizer = self.batch.decoder.tokenizer
        echoes = read_echoes(fields, self.batch, requests)
        return requests, Completion(self.name, tokenizer, requests, echoes, fields.max_tokens)


def _refuse_key(request: object, error: Exception) -> Response:
    wanted, name = "Bearer and the key of the server", "Authorization"
    message = expected(name, wanted, "another or none")
    return refusal(401, message, WWW_Authenticate="Bearer", connection="close")


def _refuse_body(status: int, message: str) -> Response:
    return refusal(status, message, connection="close")


def _add_refusals(app: FastAPI) -> None:
    """Answers to wrong fields and unknown routes, and of a server that cannot answer."""

    @app.exception_handler(Overloaded)
    @app.exception_handler(Unavailable)
    async def tell_to_retry(request: HttpRequest, error: Exception) -> Response:
        return refusal(503, str(error), Retry_After="1")

    @app.exception_handler(Stopped)
    async def tell_end(request: HttpRequest, error: Stopped) -> Response:
        return refusal(503, str(error), Retry_After="10")

    @app.exception_handler(RequestValidationError)
    async def refuse_fields(request: HttpRequest, error: RequestValidationError) -> Response:
        return refusal(400, *describe_error(error.errors()[0]))

    @app.exception_handler(Exception)  # logged and counted all the same
    async def tell_failure(request: HttpRequest, error: Exception) -> Response:
        return refusal(500, expected("the server", "an answer", f"a {type(error).__name__}"))

    @app.exception_handler(HTTPException)
    async def refuse_request(request: HttpRequest, error: HTTPException) -> Response:
        if error.status_code == 400:
            return refusal(400, expected("the body", BODY, error.detail))
        name, wanted = f"{request.method} {request.url.path}", "a route of the server"
        message = expected(name, wanted, error.detail, "POST /v1/completions is one")
        return refusal(error.status_code, message, **(error.headers or {}))


def _add_completions(app: FastAPI, service: _Service) -> None:
    """Completions, and the states that they end in."""

    @app.post("/v1/completions", response_model=None)
    async def complete(fields: CompletionFields) -> Response:
        return await service.answer(fields)

    @app.post("/v1/chat/completions", response_model=None)
    async def answer_chat(fields: ChatFields) -> Response:
        return await service.answer(fields)

    @app.get("/v1/states/{state}", response_model=None)
    async def read_state(state: str) -> Response:
        try:
            content = await service.states.get(state)
        except ValueError as error:
            return refusal(404, *_message_and_field(error, _FIELDS))
        return Response(content, media_type="application/octet-stream")


def _add_reports(app: FastAPI, service: _Service, page: Path) -> None:
    """What the server tells about itself."""
    created = int(time.time())
    model = {
        "id": service.name,
        "object": "model",
        "created": created,
        "owned_by": "linattn",
        "max_model_len": service.batch.decoder.longest,
        "state_bytes": service.batch.state_nbytes,  # of a sequence
    }
    methods = ["GET", "HEAD"]

    @app.api_route("/", methods=methods, response_model=None)
    async def send_page() -> Response:
        return FileResponse(page)

    @app.api_route("/v1/models", methods=methods)
    async def list_models() -> dict[str, Any]:
        return {"object": "list", "data": [model]}

    @app.api_route("/v1/models/{name:path}", methods=methods, response_model=None)
    async def tell_model(name: str) -> Response:
        return JSONResponse(model) if name == service.name else service.refuse_model(name)

    @app.api_route("/health", methods=methods, response_model=None)
    async def tell_health() -> Response:
        if not service.engine.is_alive:
            raise Stopped
        return Response('{"status":"ok"}', media_type="application/json")

    @app.get("/metrics", response_model=None)
    async def tell_metrics() -> Response:
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")


def _most_of_file(batch: ContinuousBatch) -> int:
    """More bytes than the file of any state of the batch's model has."""
    return 2 * batch.state_nbytes + 16 * batch.decoder.head.num_parameters + (1 << 20)


def _names_of(fields: CompletionFields | ChatFields) -> dict[str, str]:
    """Names in the batch's errors, and the fields of a body that they come from."""
    if isinstance(fields, ChatFields):
        return {**_FIELDS, "text": "messages", "prompt": "messages"}
    return _FIELDS if fields.state_bytes is None else {**_FIELDS, "state": "state_bytes"}


def _message_and_field(
    error: ValueError | TypeError, names: Mapping[str, str]
) -> tuple[str, str | None]:
    """The sentence of an error with the field that it is about."""
    name = subject_of(error) or ""
    field = names.get(name, name)
    if field not in FIELDS:
        return str(error), None
    return str(rename_subject(error, field)), field
