"""The page of the report in headless Chromium: no word on the console, and it fits its window."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from replication.report.__main__ import PAGE, rendered

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
BROWSER = next(filter(None, map(shutil.which, NAMES)), "")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom")
WIDTHS = (390, 1_280)  # a phone and a desktop, in CSS pixels
SECONDS = 300
# The page in frames as wide as these windows; what does not fit makes a frame's page wider.
FRAMES = """<!doctype html><title>frames</title><pre id="found"></pre>{frames}<script>
addEventListener("load", () => {{
  const pages = [...document.querySelectorAll("iframe")].map(x => x.contentDocument);
  document.getElementById("found").textContent = JSON.stringify(pages.map(page => ({{
    overflow: page.documentElement.scrollWidth - page.documentElement.clientWidth,
    headings: page.querySelectorAll("h2").length,
    broken: [...page.images].filter(x => !x.naturalWidth).length,
  }})));
}});
</script>"""


@pytest.mark.skipif(not BROWSER, reason=f"no browser is installed: none of {', '.join(NAMES)}")
def test_the_page_fits_a_phone_and_a_desktop_and_leaves_the_console_empty(tmp_path: Path) -> None:
    page = html.escape(rendered()[PAGE])
    frame = '<iframe width="{}" height="800" style="border: 0" srcdoc="{}"></iframe>'
    frames = "".join(frame.format(width, page) for width in WIDTHS)
    file = tmp_path / "frames.html"
    file.write_text(FRAMES.format(frames=frames))

    profile = f"--user-data-dir={tmp_path / 'profile'}"
    ended = subprocess.run(
        [BROWSER, *FLAGS, profile, file.as_uri()],
        capture_output=True, text=True, timeout=SECONDS, check=True,
    )  # fmt: skip

    match = re.search(r'<pre id="found">(.*?)</pre>', ended.stdout)
    assert match is not None
    pages = json.loads(html.unescape(match[1]))
    assert [page["overflow"] for page in pages] == [0] * len(WIDTHS)
    assert all(page["headings"] > 5 and page["broken"] == 0 for page in pages)
    assert [line for line in ended.stderr.splitlines() if "CONSOLE" in line] == []
