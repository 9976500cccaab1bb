"""Tests the status page in a real browser, headless Chromium, while clients send scans."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from browser import Browser
from conftest import ROOT, binary, tool
from server import Server

import voxserve

SCAN = np.fromfile(ROOT / "deploy" / "scans" / "pandaset_070.bin", np.float32).reshape(-1, 4)[::50]
FPS_TILE = "frames a second"


def tile(name: str) -> str:
    """Returns a JavaScript expression for the number in the tile of this name, or -1 without the tile."""
    return (
        "(()=>{for(const c of document.querySelectorAll('.card'))"
        "if(c.querySelector('h2').textContent.startsWith('minkunet'))for(const t of c.querySelectorAll('.tile'))"
        f"if(t.querySelector('span').textContent=='{name}')return parseFloat(t.querySelector('b').textContent);"
        "return -1})()"
    )


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Server]:
    server = Server(binary(), tmp_path / "log")
    try:
        server.await_ready()
        yield server
    finally:
        server.close()


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    browser = Browser(tool("chromium", "apt-get install chromium"), tmp_path)
    try:
        yield browser
    finally:
        browser.close()


@contextmanager
def load(server: Server) -> Iterator[None]:
    """Runs two clients that each send one scan after the other. At the end it raises the first error of a client."""
    is_over = threading.Event()

    def send() -> None:
        with voxserve.Client(server.address) as client:
            while not is_over.is_set():
                client.infer("minkunet", SCAN)

    with ThreadPoolExecutor(2) as pool:
        clients = [pool.submit(send) for _ in range(2)]
        try:
            yield
        finally:
            is_over.set()
    for client in clients:
        client.result()


def test_page_follows_the_load_and_says_when_the_server_is_gone(own_server: Server, browser: Browser) -> None:
    home = f"http://127.0.0.1:{own_server.http_port}/"
    with load(own_server):
        browser.open(home)
        assert browser.value("document.title").startswith("voxserve")
        browser.await_true("document.querySelector('.pill.ok')?.textContent=='ready'")
        browser.await_true(f"{tile(FPS_TILE)} > 0")
        # At every refresh a new element `live` replaces the old one. The page itself is not loaded again.
        browser.value("window.seen = document.getElementById('live'), 0")
        for _ in range(3):
            browser.await_true("document.getElementById('live') !== window.seen")
            browser.value("window.seen = document.getElementById('live'), 0")
        assert browser.value(f"{tile(FPS_TILE)}") > 0
        assert browser.value("document.querySelectorAll('svg').length") > 0, "the frames of the last minute"
        assert browser.value("getComputedStyle(document.getElementById('gone')).display") == "none"
    browser.be_as_wide_as(380)
    assert browser.value("document.documentElement.scrollWidth") <= 380, "nothing is cut off on a phone"
    assert browser.problems() == []
    assert {address for address in browser.requests() if not address.startswith(home)} == set()

    own_server.terminate()
    browser.await_true("getComputedStyle(document.getElementById('gone')).display != 'none'")
