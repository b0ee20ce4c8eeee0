"""A headless Chromium, driven over the WebDriver protocol of ChromeDriver."""

from __future__ import annotations

import base64
import contextlib
import json
import shutil
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.runs import wait_until

_FLAGS = (
    "headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking",
    "disable-component-update", "disable-sync", "disable-dev-shm-usage", "force-renderer-accessibility",
)  # fmt: skip
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"


def lacks() -> str:
    """Why there is no browser, or ''."""
    missing = [name for name in ("chromedriver", "chromium") if shutil.which(name) is None]
    return f"{' and '.join(missing)} not installed" if missing else ""


class Browser:
    """A browser with one page."""

    def __init__(self, port: int, folder: Path) -> None:
        self._root = f"http://127.0.0.1:{port}"
        options = {
            "binary": shutil.which("chromium"),
            "args": [*(f"--{flag}" for flag in _FLAGS), f"--user-data-dir={folder}"],
        }
        wanted = {
            "capabilities": {"alwaysMatch": {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}}
        }
        self._session = f"/session/{self._ask('POST', '/session', wanted)['sessionId']}"

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self._root}{path}", data, method=method)
        request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(error.read().decode()) from None

    def open(self, url: str) -> None:
        self._ask("POST", f"{self._session}/url", {"url": url})

    def run(self, script: str, *args: Any) -> Any:
        """What ``script`` returns."""
        return self._ask("POST", f"{self._session}/execute/sync", {"script": script, "args": [*args]})

    def text(self, selector: str) -> str:
        """The text that is shown."""
        return str(self.run("return document.querySelector(arguments[0]).innerText", selector))

    def click(self, selector: str) -> None:
        found = self._ask("POST", f"{self._session}/element", {"using": "css selector", "value": selector})
        self._ask("POST", f"{self._session}/element/{found[_ELEMENT]}/click", {})

    def press(self, key: str) -> None:
        down, up = ({"type": kind, "value": key} for kind in ("keyDown", "keyUp"))
        self._ask(
            "POST", f"{self._session}/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": [down, up]}]}
        )

    def emulate(self, width: int, *, dark: bool = False) -> None:
        """Give the page a width, and light or dark colours."""
        self.tool("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.tool("Emulation.setEmulatedMedia", features=[scheme])

    def tool(self, command: str, **parameters: Any) -> Any:
        """A command of the developer tools."""
        return self._ask("POST", f"{self._session}/goog/cdp/execute", {"cmd": command, "params": parameters})

    def errors(self) -> list[str]:
        """What the browser complained of."""
        found = self._ask("POST", f"{self._session}/se/log", {"type": "browser"})
        return [entry["message"] for entry in found if entry["level"] in ("SEVERE", "WARNING")]

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self._ask("GET", f"{self._session}/screenshot")))

    def close(self) -> None:
        self._ask("DELETE", self._session)


@contextlib.contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """A browser that runs in the block."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = ["chromedriver", f"--port={port}", "--log-level=SEVERE"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as driver:
        try:

            def answers() -> bool:
                with contextlib.suppress(OSError):
                    socket.create_connection(("127.0.0.1", port), timeout=1).close()
                    return True
                return False

            assert wait_until(answers)
            made = Browser(port, folder)
            try:
                yield made
            finally:
                made.close()
        finally:
            driver.terminate()
