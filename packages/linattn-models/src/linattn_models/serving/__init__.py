"""A server of completions over HTTP, with the extra [serving].

app         `create_app`, the routes
responses   what is sent: one body, or server-sent events
completion  the content of answers
fields      the fields of requests
chat        templates of chats
renderer    the process that renders them
logprobs    log-probabilities in answers
access      the key of the server
limits      the size of bodies
metrics     numbers for Prometheus
states      states that clients continue
shared      those in a folder that several servers share
ray         replicas of a server by Ray Serve, with the extra [ray]
command     what the command line and Ray serve alike
page.html   what a browser shows
engine      the thread that owns the batch
"""

from __future__ import annotations

from linattn_models.basics.optional import require_packages

require_packages(
    "linattn_models.serving",
    *("fastapi", "fsspec", "jinja2", "prometheus_client", "pydantic", "tyro", "uvicorn"),
)

from linattn_models.serving.app import create_app  # noqa: E402
from linattn_models.serving.chat import ChatTemplate  # noqa: E402
from linattn_models.serving.shared import SharedStates  # noqa: E402
from linattn_models.serving.states import StateStore  # noqa: E402

__all__ = ["ChatTemplate", "SharedStates", "StateStore", "create_app"]
