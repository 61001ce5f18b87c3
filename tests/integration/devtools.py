"""A headless Chromium driven by its own protocol over two pipes: no port, no driver, no network."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from harness.analysis.report.pdf import BROWSERS
from tests.requirements import require

_LIMIT_S = 120.0


def require_chromium() -> str:
    """Return the path of a Chromium; where there is none the test is skipped, or fails."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    require("chromium", found is not None, "there is no Chromium here")
    assert found is not None
    return found


class Page:
    """One page; ``events`` is all that the browser said of it."""

    def __init__(self, read: int, write: int) -> None:
        self._read, self._write = read, write
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []

    def attach(self) -> None:
        """Open a page and have everything told."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        found = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = found["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result; AssertionError where the browser refuses it."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def open(self, path: Path, *, width: int, height: int = 900, dark: bool = False) -> None:
        """Load a file in a window of that many CSS pixels, and wait until all of it is there."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=path.as_uri())
        deadline = time.monotonic() + _LIMIT_S
        while self.value("document.readyState") != "complete" or self.value("location.href") != (
            path.as_uri()
        ):
            assert time.monotonic() < deadline, "the page did not load"
            time.sleep(0.02)

    def value(self, expression: str) -> Any:
        """Return what a JavaScript expression gives in the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def click(self, selector: str, index: int = 0) -> None:
        """Click the middle of an element, as a hand would."""
        one = f"document.querySelectorAll({json.dumps(selector)})[{index}]"
        self.value(f"{one}.scrollIntoView({{block: 'center', inline: 'center'}})")
        box = self.value(f"(b => [b.x + b.width / 2, b.y + b.height / 2])({one}"
                         ".getBoundingClientRect())")  # fmt: skip
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left",
                      clickCount=1)  # fmt: skip

    def press(self, key: str, code: int, text: str = "") -> None:
        """Press a key where the focus is."""
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key,
                windowsVirtualKeyCode=code, text=text if kind == "keyDown" else "",
            )  # fmt: skip

    def screenshot(self, path: Path) -> None:
        """Write a picture of the whole page."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        found = self.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], _LIMIT_S)
            assert ready, "the browser does not answer"
            part = os.read(self._read, 1 << 20)
            assert part, "the browser has ended"
            self._buffer += part
        message, _, self._buffer = self._buffer.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer


@contextmanager
def chromium(browser: str, folder: Path) -> Iterator[Page]:
    """Give a page of a browser of its own, with its profile in ``folder``; it ends with this."""
    to_browser, ours = os.pipe()
    mine, from_browser = os.pipe()
    # The protocol is on descriptors 3 and 4; high numbers are out of a shell's way.
    high = [os.dup2(fd, 100 + i) for i, fd in enumerate((to_browser, from_browser))]
    script = f'exec "$0" "$@" 3<&{high[0]} 4>&{high[1]}'
    argv = [
        browser, "--headless", "--remote-debugging-pipe", "--disable-gpu", "--no-first-run",
        "--disable-dev-shm-usage", "--disable-background-networking", "--disable-sync",
        "--disable-component-update", "--disable-extensions", "--hide-scrollbars",
        "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={folder / 'profile'}",
        *(["--no-sandbox"] if os.geteuid() == 0 else []),
    ]  # fmt: skip
    process = subprocess.Popen(
        ["bash", "-c", script, *argv],
        pass_fds=high,
        env=os.environ | {"HOME": str(folder)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=(folder / "browser.log").open("wb"),
        start_new_session=True,
    )
    for fd in (to_browser, from_browser, *high):
        os.close(fd)
    try:
        page = Page(mine, ours)
        page.attach()
        yield page
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(mine)
        os.close(ours)
