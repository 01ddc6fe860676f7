"""A page in a real browser, for the tests that look at one."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

QUIET = ("no-sandbox", "disable-gpu", "disable-background-networking", "disable-component-update", "disable-sync")
PATIENCE = 60_000
"""Milliseconds: a busy machine is slow, not wrong."""
CHROMIUM = shutil.which("chromium")


class Visit:
    """An open page and everything it complained of or asked for."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.problems: list[str] = []
        page.on("pageerror", lambda error: self.problems.append(f"page error: {error}"))
        page.on("console", lambda line: self.problems.append(line.text) if line.type in ("error", "warning") else None)
        page.on("request", lambda request: self._requested(request.url))

    def _requested(self, url: str) -> None:
        if not url.startswith(("file:", "data:", "blob:")):
            self.problems.append(f"outside request: {url}")

    def open(self, path: Path, html: str) -> None:
        path.write_text(html, encoding="utf-8")
        self.page.goto(path.as_uri())
        self.page.locator("html.drawn").wait_for(state="attached")

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Of what the page has told us: looked at again while the browser works, for as long as it takes under load."""
        for _ in range(PATIENCE // 50):
            if condition():
                return
            self.page.wait_for_timeout(50)
        raise AssertionError(f"waited in vain; the page complained of {self.problems}")

    def column(self, number: int) -> list[str]:
        return self.page.locator(f"#study-1 tbody td:nth-child({number})").all_inner_texts()

    def opacities(self, marks: str) -> list[float]:
        """Of the paths of the first chart's marks, as drawn now."""
        found = self.page.locator(f"#study-1 figure.chart:first-child {marks} path").all()
        return [float(path.get_attribute("opacity") or 1) for path in found]
