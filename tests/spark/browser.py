"""Debian's Chromium, headless, which shows a file as a person sees it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

_FLAGS: Final = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
_LONGEST_MS: Final = 60_000

# The lowest contrast of text against its background by WCAG, with that text.
_CONTRAST: Final = """
() => {
  const parse = text => {
    const n = text.match(/[\\d.]+/g).map(Number);
    return {rgb: n.slice(0, 3), alpha: n.length > 3 ? n[3] : 1};
  };
  const light = rgb => {
    const [r, g, b] = rgb.map(v => v / 255).map(
      v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = element => {
    for (let e = element; e; e = e.parentElement) {
      const colour = parse(getComputedStyle(e).backgroundColor);
      if (colour.alpha > 0) return colour.rgb;
    }
    return [255, 255, 255];
  };
  let worst = {ratio: 99, text: ""};
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    const text = walker.currentNode.textContent.trim();
    if (!text || ["SCRIPT", "STYLE", "title"].includes(element.tagName)) continue;
    const style = getComputedStyle(element);
    const isDrawn = element instanceof SVGElement;
    const [a, b] = [light(parse(isDrawn ? style.fill : style.color).rgb), light(behind(element))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < worst.ratio) worst = {ratio, text};
  }
  return worst;
}
"""


@dataclass(slots=True)
class OpenPage:
    """A page, its requests and its errors."""

    page: Page
    requests: list[str] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)

    def texts(self, selector: str) -> list[str]:
        return [text.strip() for text in self.page.locator(selector).all_text_contents()]

    def rows(self, table: str) -> list[list[str]]:
        """Return the body of a table as cells."""
        lines = self.page.locator(f"#{table} tbody tr").all()
        return [[cell.strip() for cell in line.locator("td").all_inner_texts()] for line in lines]

    def box(self, selector: str) -> tuple[float, float]:
        """Return width and height of the visible box."""
        box = self.page.locator(selector).bounding_box()
        return (0.0, 0.0) if box is None else (box["width"], box["height"])

    def worst_contrast(self) -> dict[str, Any]:
        worst: dict[str, Any] = self.page.evaluate(_CONTRAST)
        return worst


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Yield a browser without a profile, for one module: while it is open, no other loop may run in
    this thread. Skips if Chromium is missing."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("there is no chromium: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(_FLAGS))
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(
    browser: Browser, path: Path, *, scheme: str = "light", width: int = 1240
) -> Iterator[OpenPage]:
    """Open ``path`` in a separate window."""
    page = browser.new_page(
        viewport={"width": width, "height": 900},
        color_scheme="dark" if scheme == "dark" else "light",
    )
    try:
        page.set_default_timeout(_LONGEST_MS)
        seen = OpenPage(page)
        page.on("request", lambda request: seen.requests.append(request.url))
        page.on("console", lambda message: seen.troubles.append(message.text))
        page.on("pageerror", lambda error: seen.troubles.append(str(error)))
        page.on("dialog", lambda dialog: seen.troubles.append(dialog.message))
        page.goto(path.resolve().as_uri())
        yield seen
    finally:
        page.close()
