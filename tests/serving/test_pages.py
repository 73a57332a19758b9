"""The page of the application on images, in a browser."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from linattn_models import AutoregressiveTransformer, Categorical, TransformerConfig
from pixels.models import TrainedRun
from tests.serving.clients import run_server

APP = Path(__file__).parents[2] / "apps" / "pixel_generation"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
PATIENCE = 60_000  # milliseconds


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The address of the application with an untrained model of digits."""
    sys.path.insert(0, str(APP))
    try:
        from serve import make_app
    finally:
        sys.path.remove(str(APP))
    config = TransformerConfig(num_layers=1, num_heads=2, head_dim=4, ffn_dim=8)
    model = AutoregressiveTransformer(config, Categorical(17), 64).eval()
    with run_server(make_app(TrainedRun(model, "digits", "linear", "sub-pixels", 0), 64)) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_each_image_reaches_its_last_pixel(url: str) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            page = browser.new_page()
            requests: list[str] = []
            page.on("request", lambda request: requests.append(request.url))
            errors: list[Any] = []
            page.on("pageerror", lambda error: errors.append(error))
            page.goto(url)
            page.wait_for_selector("body[data-done]", timeout=PATIENCE)
            assert page.evaluate("tiles.map((tile) => tile.numbers.length)") == [64] * 64
            assert page.locator(".drawing").count() == 0
            first = page.evaluate("tiles[5].numbers")
            page.evaluate("delete document.body.dataset.done")
            page.locator(".image").nth(5).click()
            page.wait_for_selector("body[data-done]", timeout=PATIENCE)
            halves = page.evaluate("tiles.map((tile) => tile.numbers.slice(0, 32))")
            assert halves == [first[:32]] * 64
            assert page.evaluate("new Set(tiles.map((tile) => tile.numbers.join())).size") > 1
        finally:
            browser.close()
    assert not errors
    # Nothing is fetched from elsewhere, and each drawing is one connection.
    assert all(one.startswith((url, "data:")) for one in requests)
    assert sum(one.endswith("/v1/completions") for one in requests) == 2
