"""Serve a saved model: `python -m linattn_models.serving MODEL`.

The model answers POST /v1/completions and /v1/chat/completions, in OpenAI's format; see
`linattn_models.serving.create_app`. With --replicas, Ray Serve runs several of this server.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import socket
import sys
import threading
from typing import Literal

import tyro
import uvicorn

from linattn_core.errors import expected
from linattn_models.serving.command import PATIENCE, Served


@dataclasses.dataclass(frozen=True)
class Flags(Served):
    """Which model, where, and for how many clients."""

    host: str = "127.0.0.1"
    """The address to listen at."""
    port: int = 8000
    """The port to listen at; 0: a free one."""
    root_path: str = ""
    """The prefix under which a proxy serves all this, and which it removes."""
    log_level: Literal["error", "warning", "info"] = "info"
    """What stderr shows; info: a line for each answer, too."""
    replicas: int = 0
    """Servers that Ray Serve runs behind the address; 0: this process, without Ray."""
    max_replicas: int | None = None
    """The most servers, where many requests come; by default --replicas."""
    replica_cpus: float = 1.0
    """Processors of each."""


def main(flags: Flags) -> None:
    """Serves until it is interrupted."""
    if not 0 <= flags.port < 1 << 16:
        raise ValueError(expected("--port", "a number in 0..65535", flags.port))
    with bind(flags.host, flags.port) as listener:
        if not flags.replicas:
            serve(flags, listener)
            return
        host, port = listener.getsockname()[:2]
        address = address_of(listener)
    # The socket is closed here: Ray listens at the same address by itself.
    from linattn_models.serving import ray  # with the extra [ray] alone

    application = ray.make_application(
        flags, flags.replicas, flags.max_replicas, flags.replica_cpus
    )
    places = {"host": host, "port": port, "root_path": flags.root_path}
    with (
        contextlib.suppress(KeyboardInterrupt),
        ray.running(application, **places, log_level=flags.log_level),
    ):
        print(address, flush=True)
        threading.Event().wait()


def serve(flags: Flags, listener: socket.socket) -> None:
    """Serves the model at a socket that is bound."""
    logging = copy.deepcopy(uvicorn.config.LOGGING_CONFIG)
    logging["handlers"]["access"]["stream"] = "ext://sys.stderr"  # stdout has the address alone
    config = uvicorn.Config(
        flags.create_app(),
        log_config=logging,
        log_level=flags.log_level,
        root_path=flags.root_path,
        timeout_graceful_shutdown=PATIENCE,
    )
    print(address_of(listener), flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        uvicorn.Server(config).run([listener])


def bind(host: str, port: int) -> socket.socket:
    """A socket of IPv4 or IPv6 at an address; it refuses connections until the model is loaded."""
    listener = None
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        if listener is not None:
            listener.close()
        wanted = "a free port of an address of this machine"
        advice = "choose another --port (0: any that is free) or --host"
        got = error.strerror or error
        raise OSError(expected(f"{host}, port {port}", wanted, got, advice)) from None
    return listener


def address_of(listener: socket.socket) -> str:
    """The URL of a bound socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


if __name__ == "__main__":
    try:
        main(tyro.cli(Flags, description=__doc__))
    except (ValueError, TypeError, OSError, ImportError) as error:
        sys.exit(f"error: {error}")
