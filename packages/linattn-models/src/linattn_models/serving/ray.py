"""Replicas of a server by Ray Serve, with the extra [ray]; see `python -m linattn_models.serving`.

A replica is a process with the application of `create_app`. All of them share a store of states.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from fastapi import FastAPI

from linattn_core.errors import expected
from linattn_models.basics.optional import require_packages
from linattn_models.basics.validation import at_least
from linattn_models.serving.command import PATIENCE, Served

require_packages("linattn_models.serving.ray", "ray[serve]")

import ray  # noqa: E402
from ray import serve  # noqa: E402

NAME = "linattn"


def make_application(
    served: Served, replicas: int, max_replicas: int | None = None, cpus: float = 1.0
) -> serve.Application:
    """An application for `serve.run`, whose replicas load the model.

    Args:
        served: with a state_store that all replicas see, so that each continues all conversations.
        replicas: how many always run.
        max_replicas: how many run at most, while each has more than served.max_num_seqs requests;
            by default `replicas`.
        cpus: processors of Ray that each replica takes.

    Raises:
        ValueError: no state_store, or numbers out of range.
        FileNotFoundError: no model.
    """
    if served.state_store is None:
        advice = "each conversation is continued by any replica"
        raise ValueError(expected("state_store", "a folder or URL", None, advice))
    replicas = at_least("replicas", replicas, 1)
    most = replicas if max_replicas is None else at_least("max_replicas", max_replicas, replicas)
    served.check()
    served = _for_any_folder(served)

    def create_app() -> FastAPI:
        return served.create_app()

    class Server:
        """A replica; `app` is that of Ray's class that derives from it."""

        app: FastAPI

        def check_health(self) -> None:
            """Lets Ray replace a replica that takes no more requests."""
            if not self.app.state.engine.is_alive:
                raise RuntimeError("the server has stopped")

    return serve.deployment(
        serve.ingress(create_app)(Server),
        name="Server",
        max_ongoing_requests=served.max_num_seqs + served.queue,
        max_queued_requests=served.queue,  # in each proxy; Ray answers 503 to more
        graceful_shutdown_timeout_s=PATIENCE,
        autoscaling_config={
            "min_replicas": replicas,
            "initial_replicas": replicas,
            "max_replicas": most,
            "target_ongoing_requests": served.max_num_seqs,
        },
        ray_actor_options={"num_cpus": cpus},
    ).bind()


@contextlib.contextmanager
def running(
    application: serve.Application,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    root_path: str = "",
    log_level: str = "info",
) -> Iterator[None]:
    """Runs an application on the Ray cluster that there is, or on one of its own, until the end.

    Raises:
        OSError: the replicas do not start.
    """
    ray.init(ignore_reinit_error=True, log_to_driver=log_level == "info")
    with contextlib.ExitStack() as ends:
        ends.callback(ray.shutdown)
        serve.start(http_options={"host": host, "port": port, "root_path": root_path})
        ends.callback(serve.delete, NAME)
        logs = {"log_level": log_level.upper(), "enable_access_log": log_level == "info"}
        try:
            serve.run(application, name=NAME, logging_config=logs)
        except RuntimeError as error:
            raise OSError(_describe_failure(error)) from None
        yield


def _describe_failure(error: RuntimeError) -> str:
    """Why replicas do not start: the last line that one of them has left, or of the error."""
    application = serve.status().applications.get(NAME)
    deployments = [] if application is None else application.deployments.values()
    messages = [str(error), *(deployment.message for deployment in deployments)]
    lines = [line for message in messages for line in message.splitlines() if line.strip()]
    wanted = "one that starts, with the model and the modules of --imports at the same place"
    return expected("a replica", wanted, lines[-1] if lines else "none")


def _for_any_folder(served: Served) -> Served:
    """The same for processes that start in other folders."""
    store, key = served.state_store, served.api_key
    if store is not None and "://" not in store:
        store = str(Path(store).resolve())
    if key is not None and key[:1] == "@":
        key = f"@{Path(key[1:]).resolve()}"
    name = served.model.resolve().name if served.name is None else served.name
    return replace(served, model=served.model.resolve(), name=name, state_store=store, api_key=key)
