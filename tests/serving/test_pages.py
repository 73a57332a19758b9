"""Pages in a browser: that of a server, and that of the application on images."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from linattn_models import AutoregressiveTransformer, Categorical, TransformerConfig
from linattn_models.serving import create_app
from pixels.models import TrainedRun
from tests.serving.clients import make_batch, make_chat_batch, make_model, run_server

APP = Path(__file__).parents[2] / "apps" / "pixel_generation"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
PATIENCE = 60_000  # milliseconds

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")


@contextmanager
def open_page(app: Any, **settings: Any) -> Iterator[tuple[Any, list[str]]]:
    """The page of a server, and what it asks for; it may not fail, nor ask elsewhere."""
    from playwright.sync_api import sync_playwright

    requests: list[str] = []
    errors: list[Any] = []
    with run_server(app) as port, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            page = browser.new_page(**settings)
            page.set_default_timeout(PATIENCE)
            page.on("request", lambda request: requests.append(request.url))
            page.on("pageerror", lambda error: errors.append(error))
            page.goto(f"http://127.0.0.1:{port}")
            yield page, requests
        finally:
            browser.close()
    assert not errors
    assert all(one.startswith((f"http://127.0.0.1:{port}/", "data:")) for one in requests)


def press(page: Any) -> str:
    """Presses the button, and waits for the end of the answer; returns the text."""
    page.click("#go")
    page.wait_for_function("find('go').textContent === 'Continue'")
    text: str = page.input_value("#text")
    return text


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_text_is_continued_from_its_state(scheme: str) -> None:
    view = {"width": 390, "height": 844}
    with open_page(create_app(make_batch()), viewport=view, color_scheme=scheme) as (page, _):
        page.fill("#text", "abc")
        page.fill("#tokens", "20")
        page.fill("#seed", "7")
        first = press(page)
        assert (
            first
            == "abc"
            + make_model().decode(
                make_model()
                .generate(prefix=["abc"], length=23, temperature=0.8, seeds=7)[:, 3:]
                .tolist()
            )[0]
        )
        sent: list[dict[str, Any]] = []
        page.on("request", lambda request: sent.append(request.post_data_json))
        page.fill("#text", first + "de")
        second = press(page)
        assert second.startswith(first + "de") and len(second) == 45
        assert sent[0]["prompt"] == "de" and sent[0]["state"]
        page.fill("#text", "b" + second)
        press(page)
        assert sent[1]["prompt"] == "b" + second and "state" not in sent[1]
        assert "20 tokens" in page.inner_text("#status")
        assert "tokens a second" in page.inner_text("#rate")
        assert f"{make_batch().state_nbytes:,} bytes of state" in page.inner_text("#about")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.fill("#text", "?")
        assert press(page) == "?" and "prompt: expected" in page.inner_text("#status")


def test_an_answer_can_be_stopped() -> None:
    batch = make_batch(max_length=1_000_000)
    with open_page(create_app(batch)) as (page, _):
        page.fill("#tokens", "900000")
        page.click("#go")
        page.wait_for_function("text.value.length > 10")
        text = press(page)
        assert text and page.get_attribute("#status", "class") == ""


def test_the_page_asks_for_the_key() -> None:
    with open_page(create_app(make_chat_batch(), api_key="secret")) as (page, _):
        page.wait_for_selector("#key")
        assert "key" in page.inner_text("#status")
        page.fill("#key", "secret")
        page.fill("#tokens", "5")
        assert len(press(page)) == 5


@pytest.fixture
def app() -> Any:
    """The application with an untrained model of digits."""
    sys.path.insert(0, str(APP))
    try:
        from serve import make_app
    finally:
        sys.path.remove(str(APP))
    config = TransformerConfig(num_layers=1, num_heads=2, head_dim=4, ffn_dim=8)
    model = AutoregressiveTransformer(config, Categorical(17), 64).eval()
    return make_app(TrainedRun(model, "digits", "linear", "sub-pixels", 0), 64)


def test_each_image_reaches_its_last_pixel(app: Any) -> None:
    with open_page(app) as (page, requests):
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
    # Each drawing is one connection.
    assert sum(one.endswith("/v1/completions") for one in requests) == 2
