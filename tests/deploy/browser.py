"""Drives a headless Chromium by the Chrome DevTools Protocol (https://chromedevtools.github.io/devtools-protocol/) over
its pipe: messages of JSON on file descriptors 3 and 4, each ended by a zero byte. It needs no package beside Chromium.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

ANSWER_SECONDS = 30.0


class Browser:
    """One page of one Chromium process, until close(). `profile` is an empty folder for the browser's own files."""

    def __init__(self, program: str, profile: Path) -> None:
        from_test, self._write = os.pipe()
        self._read, to_test = os.pipe()
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        # Without this flag the browser asks its maker's servers for updates and experiments.
        flags += ["--disable-background-networking", "--disable-component-update", "--window-size=1100,900"]

        def pass_pipes() -> None:
            # Descriptors 3 and 4 may be the pipes' own ends, so both are copied out of the way first.
            ends = [os.dup(from_test), os.dup(to_test)]
            high = [os.dup2(end, 100 + i) for i, end in enumerate(ends)]
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        with (profile / "browser.log").open("wb") as log:
            self.process = subprocess.Popen(
                [program, *flags, "--remote-debugging-pipe", f"--user-data-dir={profile / 'data'}", "about:blank"],
                stdout=log,
                stderr=log,
                preexec_fn=pass_pipes,
                close_fds=False,
                start_new_session=True,
            )
        os.close(from_test)
        os.close(to_test)
        self.events: list[dict[str, Any]] = []  # what the page reported, in order
        self._received = b""
        self._last_id = 0
        self._session: str | None = None
        page = next(t for t in self._call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        attached = self._call("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self._call(f"{domain}.enable")

    def open(self, url: str) -> None:
        """Opens the address and waits until the page has loaded."""
        self._call("Page.navigate", url=url)
        self.await_true("document.readyState == 'complete' && location.href != 'about:blank'")

    def value(self, expression: str) -> Any:
        """Returns the value of a JavaScript expression in the page."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def await_true(self, expression: str, seconds: float = ANSWER_SECONDS) -> None:
        """Waits until the expression is true. Raises AssertionError after the seconds."""
        end = time.monotonic() + seconds
        while not self.value(expression):
            assert time.monotonic() < end, f"not true after {seconds} s: {expression}"
            time.sleep(0.1)

    def be_as_wide_as(self, pixels: int) -> None:
        self._call("Emulation.setDeviceMetricsOverride", width=pixels, height=800, deviceScaleFactor=1, mobile=True)

    def problems(self) -> list[str]:
        """Returns the page's exceptions and the errors and warnings on its console so far."""
        found = []
        for event in self.events:
            details = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                found.append(json.dumps(details["exceptionDetails"]))
            elif event["method"] == "Log.entryAdded" and details["entry"]["level"] in ("error", "warning"):
                found.append(details["entry"]["text"])
            elif event["method"] == "Runtime.consoleAPICalled" and details["type"] in ("error", "warning"):
                found.append(json.dumps(details["args"]))
        return found

    def requests(self) -> list[str]:
        """Returns the addresses that the page has requested so far."""
        return [e["params"]["request"]["url"] for e in self.events if e["method"] == "Network.requestWillBeSent"]

    def close(self) -> None:
        for descriptor in (self._write, self._read):
            with contextlib.suppress(OSError):
                os.close(descriptor)
        # The browser has child processes, all in the session that this process began.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._last_id += 1
        message: dict[str, Any] = {"id": self._last_id, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + ANSWER_SECONDS
        while time.monotonic() < end:
            answer = self._next(end)
            if answer.get("id") == self._last_id:
                assert "error" not in answer, (method, answer["error"])
                result: dict[str, Any] = answer["result"]
                return result
            if "method" in answer:
                self.events.append(answer)
        raise AssertionError(f"no answer to {method} after {ANSWER_SECONDS} s")

    def _next(self, end: float) -> dict[str, Any]:
        while b"\0" not in self._received:
            ready, _, _ = select.select([self._read], [], [], max(0, end - time.monotonic()))
            assert ready, "the browser says nothing"
            part = os.read(self._read, 1 << 16)
            assert part, f"the browser ended: {self.process.poll()}"
            self._received += part
        line, _, self._received = self._received.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message
