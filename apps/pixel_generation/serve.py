"""Serve a trained model, with a page on which images grow pixel by pixel.

    python apps/pixel_generation/serve.py
    python apps/pixel_generation/serve.py --run runs/pixel_generation/digits-linear-laptop

Without --run, the model is the one in pretrained/, of MNIST's digits. Open http://127.0.0.1:8000.
The page asks for 64 samples over one connection, and draws each pixel as it comes. The model
answers other clients at /v1/completions too; see linattn_models.serving.
Needs the extra [serving] of linattn-models.
"""

from __future__ import annotations

if __name__ == "__main__":
    import pixels  # noqa: F401, I001 - stops without linattn-lab
    import linattn_lab.startup
    import linattn_lab.threads  # noqa: F401

import dataclasses
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI

from linattn_core.decoder_spec import CannotCompile
from linattn_core.errors import expected
from linattn_lab.script import parse_flags, require_at_least, run_script
from linattn_models import ContinuousBatch, compile_decoder
from linattn_models.serving import create_app
from pixels.models import PRETRAINED, TrainedRun, load_run

PAGE = Path(__file__).parent / "page" / "index.html"


@dataclasses.dataclass(frozen=True)
class Flags:
    """Which run, and where."""

    run: Path = PRETRAINED
    """Folder of the run that train.py made, whose newest checkpoint is taken, or of a saved
    model."""
    count: int = 64
    """Images that are drawn side by side."""
    host: str = "127.0.0.1"
    """The address to listen at."""
    port: int = 8000
    """The port to listen at."""


def main(flags: Flags) -> None:
    """Serves until it is interrupted."""
    require_at_least(flags, {"count": 1, "port": 1})
    if flags.port > 65_535:
        raise ValueError(expected("--port", "1 to 65,535", flags.port))
    app = make_app(load_run(flags.run), flags.count)
    print(f"http://{flags.host}:{flags.port}", flush=True)
    # A page that draws for long is cut off after some seconds when the server is interrupted.
    uvicorn.run(
        app, host=flags.host, port=flags.port, log_level="warning", timeout_graceful_shutdown=5
    )


def make_app(run: TrainedRun, count: int) -> FastAPI:
    """The application: completions of the run's model, and the page."""
    try:
        decoder: Any = compile_decoder(run.model)
    except CannotCompile:
        decoder = run.model
    batch = ContinuousBatch(decoder, max_num_seqs=count, max_num_batched_tokens=count + 256)
    app = create_app(batch, name=run.dataset, page=PAGE)
    images = run.blank_images()
    about = {
        "attention": run.attention,
        "count": count,
        "height": images.height,
        "width": images.width,
        "channels": images.channels,
        "levels": images.levels,
        "numbers": run.model.head.channels,  # of a token
    }

    @app.get("/image")
    async def tell_about() -> dict[str, Any]:
        return about

    return app


if __name__ == "__main__":
    run_script(lambda: main(parse_flags(Flags, description=__doc__)))
