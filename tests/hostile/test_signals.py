"""Signals and resource limits that would end the process at once, with calls in flight."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from calls import Answer, OrdinaryClient, call, infer_request, scan
from http2 import await_true
from row_attacks import IGNORED
from server import MODELS, REPOSITORY, Server


class LongCall(threading.Thread):
    """One request of a whole scan, which is computed when the constructor returns."""

    def __init__(self, server: Server) -> None:
        super().__init__(daemon=True)
        self._server = server
        self.answer: Answer | None = None
        before = server.cpu_seconds()
        self.start()
        assert await_true(lambda: server.cpu_seconds() > before + 0.1, 30, 0.01)

    def run(self) -> None:
        self.answer = call(self._server.address, infer_request(scan(200_000)), 120)

    def end(self) -> Answer:
        self.join(120)
        assert self.answer is not None
        return self.answer


def test_signals_that_mean_nothing_are_ignored(serve, figure):
    server = serve()
    running = LongCall(server)
    for number in IGNORED:
        server.process.send_signal(number)
    answer = running.end()
    others = OrdinaryClient(server.address).ask(3)
    seconds, status = server.terminate()
    figure(
        signals=len(IGNORED),
        in_flight=answer,
        others=others.figures(),
        end=f"{seconds:.1f} s, exit {status}",
    )
    assert answer.is_ok
    assert not others.failures
    assert status == 0


@pytest.mark.parametrize(
    "number",
    [signal.SIGQUIT, signal.SIGPWR, signal.SIGXCPU],
    ids=lambda number: number.name,
)
def test_other_signals_to_end_drain_as_sigterm_does(serve, figure, number):
    server = serve()
    running = LongCall(server)
    server.process.send_signal(number)
    answer = running.end()
    status = server.process.wait(60)
    figure(in_flight=answer, exit=status)
    assert answer.is_ok
    assert status == 0
    assert f"INFO draining signal={int(number)} " in server.log()


def test_a_drain_and_a_start_go_on_whatever_signals_come(serve, figure, tmp_path):
    """No signal but a second one to end cuts a drain short, and none takes the second one's effect away."""
    server = Server(os.environ["VOXSERVE_BINARY"], tmp_path / "starting", "--drain_timeout=2m")
    try:
        assert await_true(lambda: "voxserve starts" in server.log(), 60, 0.001)
        for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGRTMIN):
            server.process.send_signal(number)
        server.await_ready()
        running = LongCall(server)
        server.process.send_signal(signal.SIGTERM)
        assert await_true(lambda: "INFO draining" in server.log(), 30, 0.01)
        for _ in range(3):
            for number in (
                signal.SIGHUP,
                signal.SIGUSR1,
                signal.SIGUSR2,
                signal.SIGXCPU,
                signal.SIGRTMIN,
            ):
                server.process.send_signal(number)
        answer = running.end()
        status = server.process.wait(60)
    finally:
        server.close()
    second = serve("--drain_timeout=2m", "--threads=1")
    held = [LongCall(second) for _ in range(6)]  # several seconds of work
    second.process.send_signal(signal.SIGTERM)
    assert await_true(lambda: "INFO draining" in second.log(), 30, 0.01)
    second.process.send_signal(signal.SIGUSR1)
    time.sleep(0.1)
    second.process.send_signal(signal.SIGQUIT)
    at_once = second.process.wait(60)
    figure(in_flight=answer, exit=status, second_signal=f"exit {at_once}", cut=held[-1].end())
    assert answer.is_ok
    assert status == 0
    assert at_once == 128 + signal.SIGQUIT


def test_sighup_reads_the_repository_again(serve, figure, tmp_path):
    repository = tmp_path / "models"
    shutil.copytree(MODELS / "minkunet", repository / "minkunet")
    server = serve(f"--model_repository={repository}")
    shutil.copytree(repository / "minkunet", tmp_path / "second")
    (tmp_path / "second").rename(repository / "second")
    running = LongCall(server)
    assert "model=second" not in server.log()
    server.process.send_signal(signal.SIGHUP)
    loaded = await_true(lambda: "INFO model ready model=second" in server.log(), 60)
    answer = running.end()
    lines = server.log().count("INFO SIGHUP: ")
    figure(loaded=bool(loaded), in_flight=answer, lines=lines)
    assert loaded, server.log()[-2000:]
    assert answer.is_ok
    assert lines == 1
    shutil.rmtree(repository / "second")
    server.process.send_signal(signal.SIGHUP)
    assert await_true(lambda: "INFO model unloaded model=second" in server.log(), 60)


def test_a_log_at_its_size_limit_loses_lines_alone(serve, figure, tmp_path: Path):
    """The log's file has reached `ulimit -f`. The system then sends SIGXFSZ with each write."""
    server = serve("--log_level=debug")
    limits = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(
        server.pid,
        resource.RLIMIT_FSIZE,
        ((tmp_path / "log").stat().st_size, limits[1]),
    )
    during = OrdinaryClient(server.address).ask(5)
    assert server.process.poll() is None, "the server ended"
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, limits)
    after = OrdinaryClient(server.address).ask(3)
    told = await_true(
        lambda: "log lines were lost: stderr could not be written num_lines=" in server.log(),
        20,
    )
    seconds, status = server.terminate()
    figure(
        during=during.figures(),
        after=after.figures(),
        end=f"{seconds:.1f} s, exit {status}",
    )
    assert not during.failures + after.failures
    assert told
    assert status == 0


def test_a_clients_file_at_its_size_limit_is_an_error(serve_once, tmp_path: Path):
    client = os.environ.get("VOXSERVE_CLIENT_BINARY")
    if not client:
        pytest.skip("VOXSERVE_CLIENT_BINARY does not name the client's binary; tests/run.sh sets it")
    scan_file = REPOSITORY / "deploy" / "scans" / "pandaset_070.bin"
    done = subprocess.run(
        [client, "infer", "--address", serve_once.address, "--model", "minkunet", "--save", tmp_path / "labels.npy",
         scan_file],
        capture_output=True, text=True, timeout=120,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)),
    )  # fmt: skip
    assert done.returncode == 1, done
    assert "labels.npy: cannot be written: File too large" in done.stderr
    assert list(tmp_path.iterdir()) == []
