"""Model folders that an exporter or an operator should never have written. A broken version is refused with its
reason, in seconds and in little memory. The process, the versions in service and the next start stay as they are.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import threading
import time
from pathlib import Path

import pytest

import voxserve
from broken_folders import (
    CONFIG,
    DEEP,
    EVIL,
    FOLDERS,
    GRAPH,
    LOAD_SECONDS,
    TEBIBYTE,
    TOO_DEEP,
    header,
    make_repository,
    tensors,
    text,
    write_anew,
)
from calls import MODEL, OrdinaryClient
from http2 import await_true
from server import MEBIBYTE, MODELS, Server, mebibytes

# A load takes its text 20 times at most, and the limit of a text is 8 MiB.
MOST_GROWTH = 400 * MEBIBYTE
CASES = [pytest.param(write, told, id=name) for name, (write, told) in FOLDERS.items()]


@pytest.fixture(scope="module")
def serving(tmp_path_factory, serve_repository) -> tuple[Server, Path]:
    """A server for all folders of this file: each test must leave it able to load the next."""
    repository = make_repository(tmp_path_factory.mktemp("repository"))
    return serve_repository(repository), repository


def refusal(server: Server, model: str = EVIL) -> voxserve.InferenceError:
    """Returns the error of a load."""
    with voxserve.Client(server.address, admin_address=server.admin_address, max_attempts=1) as client:
        with pytest.raises(voxserve.InferenceError) as raised:
            client.load_model(model, timeout=LOAD_SECONDS)
        return raised.value


def problems_of(server: Server, name: str, version: int = 1) -> str:
    with voxserve.Client(server.address) as client:
        return "\n".join(client.model(name, version).problems)


@pytest.mark.parametrize(("write", "told"), CASES)
def test_a_load_is_refused_and_others_are_served(serving, figure, write, told):
    server, repository = serving
    assert server.process.poll() is None, "the folder before ended the server"
    write_anew(repository, write)
    before = server.rss()
    server.reset_peak()
    start = time.monotonic()
    with OrdinaryClient(server.address, timeout=30, num_points=2000) as client:
        error = refusal(server)
        seconds = time.monotonic() - start
        assert await_true(lambda: len(client.seconds) > 0 or bool(client.failures), 30)
    growth = server.peak_rss() - before
    figure(seconds=f"{seconds:.1f}", growth=mebibytes(growth), told=error.message[:150])
    assert server.process.poll() is None, server.log()[-2000:]
    assert not client.failures
    assert error.reason == "BAD_MODEL"
    assert told in error.message + problems_of(server, EVIL)
    assert growth < MOST_GROWTH
    assert len(problems_of(server, EVIL)) < 300_000
    write_anew(repository, lambda folder: None)
    with voxserve.Client(server.address, admin_address=server.admin_address) as client:
        assert client.load_model(EVIL, timeout=LOAD_SECONDS) == (1,)


def test_a_version_that_appears_leaves_the_one_in_service(tmp_path, serve, figure):
    """A poll finds each folder as version 2 of the model that serves, or as its new config."""
    repository = make_repository(tmp_path)
    shutil.rmtree(repository / EVIL)
    server = serve(f"--model_repository={repository}", "--model_poll_seconds=1")
    told_of = {}
    with OrdinaryClient(server.address, timeout=60, num_points=2000, per_minute=120) as client:
        for name in ("nodes_within_nodes", "empty_nodes", "40000_tensors", "a_pipe_as_graph", "a_deep_config"):
            write, told = FOLDERS[name]
            staged = tmp_path / "staged"
            shutil.rmtree(staged, ignore_errors=True)
            shutil.copytree(MODELS / MODEL, staged)
            write(staged)
            if name == "a_deep_config":
                (staged / CONFIG).rename(repository / MODEL / CONFIG)
                version = 1
            else:
                shutil.rmtree(repository / MODEL / "2", ignore_errors=True)
                (staged / "1").rename(repository / MODEL / "2")
                version = 2
            is_told = await_true(lambda told=told, version=version: told in text_of(server, version), 60, 0.2)
            assert server.process.poll() is None, (name, server.log()[-2000:])
            assert is_told, (name, text_of(server, version))
            told_of[name] = text_of(server, version)[:80]
    figure(**told_of)
    assert not client.failures
    with voxserve.Client(server.address) as client:
        assert client.model(MODEL).version == 1  # the newest that is ready
    seconds, status = server.terminate(60)
    assert seconds < 20
    assert status == 0


def text_of(server: Server, version: int) -> str:
    """Returns the problems of a version of MODEL, or "" if the version is not listed."""
    try:
        return problems_of(server, MODEL, version)
    except voxserve.InferenceError:
        return ""


def test_a_start_survives_all_folders(tmp_path, serve, figure):
    """A repository has each folder at the start, and at the start after that: each is listed with its reason, and the
    good model serves.
    """
    repository = make_repository(tmp_path)
    shutil.rmtree(repository / EVIL)
    for name, (write, _) in FOLDERS.items():
        shutil.copytree(MODELS / MODEL, repository / name)
        write(repository / name)
    ends = []
    for _ in range(2):
        server = serve(f"--model_repository={repository}")
        for name, (_, told) in FOLDERS.items():
            assert told in problems_of(server, name), name
        peak = server.peak_rss()
        ends.append(server.terminate(60))
    figure(ends=[f"{seconds:.1f} s, exit {status}" for seconds, status in ends], peak=mebibytes(peak))
    assert [status for _, status in ends] == [0, 0]


@pytest.mark.parametrize("content", ["buckets { " * DEEP, "a { " * DEEP, "a: " + "[" * DEEP, None])
def test_a_plan_is_passed_over(serving, content):
    """A plan beside the model is deep, or is a file with a hole (None)."""
    server, repository = serving
    write_anew(repository, lambda folder: None)
    plan = repository / EVIL / "1" / "plans" / f"{device_file_name()}-float32.textproto"
    plan.parent.mkdir()
    plan.write_text(content or "")
    if content is None:
        os.truncate(plan, TEBIBYTE)
    told = f"it has {TEBIBYTE} bytes; at most 4194304 are read" if content is None else TOO_DEEP
    told_before = server.log().count("tuned plan passed over")
    (repository / EVIL / CONFIG).write_text("max_points: 1000000")  # else the load finds nothing new
    with voxserve.Client(server.address, admin_address=server.admin_address) as client:
        client.unload_model(EVIL)
        assert client.load_model(EVIL, timeout=LOAD_SECONDS) == (1,)
    assert await_true(lambda: server.log().count("tuned plan passed over") > told_before, 10)
    line = [one for one in server.log().splitlines() if "tuned plan passed over" in one][-1]
    assert told in line


def device_file_name() -> str:
    """Returns the beginning of the file name of this CPU's plans (engine/tuner/plan_store.h)."""
    found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return re.sub(r"[^a-z0-9]+", "-", (found[1] if found else "CPU")[:100].lower()).strip("-")


def test_sigterm_during_loads(tmp_path, serve, figure):
    """Loads run and wait when the server is asked to end. They are told that it drains, and it ends with 0."""
    repository = make_repository(tmp_path)
    server = serve(f"--model_repository={repository}")
    header(tensors(200_000))(repository / EVIL)
    errors: list[str] = []

    def load() -> None:
        with voxserve.Client(server.address, admin_address=server.admin_address, max_attempts=1) as client:
            try:
                client.load_model(EVIL, timeout=LOAD_SECONDS)
            except voxserve.InferenceError as error:
                errors.append(error.reason)

    loads = [threading.Thread(target=load) for _ in range(20)]
    for one in loads:
        one.start()
    time.sleep(0.2)
    seconds, status = server.terminate(60)
    for one in loads:
        one.join()
    figure(end=f"{seconds:.1f} s, exit {status}", loads={reason: errors.count(reason) for reason in set(errors)})
    assert seconds < 20
    assert status == 0
    assert set(errors) <= {"BAD_MODEL", "DRAINING", "NO_SERVER", "CONNECTION_LOST"}


@pytest.mark.parametrize("name", ["empty_nodes", "a_header_of_brackets", "unknown_classes"])
def test_a_load_without_memory(tmp_path, serve, figure, name):
    """The address space has no room for what the load asks for. The load alone fails, and succeeds with room."""
    write, _ = FOLDERS[name]
    repository = make_repository(tmp_path)
    server = serve(f"--model_repository={repository}")
    write(repository / EVIL)
    server.limit_address_space(server.address_space() + 40 * MEBIBYTE)
    error = refusal(server)
    server.limit_address_space(resource.RLIM_INFINITY)
    figure(told=f"{error.reason}: {error.message[:100]}")
    assert server.process.poll() is None, server.log()[-2000:]
    assert error.reason in ("OUT_OF_MEMORY", "BAD_MODEL")
    write_anew(repository, lambda folder: None)
    with voxserve.Client(server.address, admin_address=server.admin_address) as client:
        assert client.load_model(EVIL, timeout=LOAD_SECONDS) == (1,)
    assert not OrdinaryClient(server.address, timeout=30).ask(3).failures


def test_a_load_beyond_the_memory_limit(tmp_path, serve, figure):
    """A text and a header that their own limits allow do not fit --memory_limit together."""
    repository = make_repository(tmp_path)
    server = serve(f"--model_repository={repository}", "--memory_limit=512MiB")
    text(GRAPH, "nodes {}" * 1_000_000)(repository / EVIL)
    header(b"[" * 16_000_000)(repository / EVIL)
    before = server.rss()
    server.reset_peak()
    error = refusal(server)
    growth = server.peak_rss() - before
    figure(told=error.message[:200], growth=mebibytes(growth))
    assert error.reason == "OUT_OF_MEMORY"
    assert "bytes of models do not fit the server's memory" in error.message
    assert growth < 200 * MEBIBYTE
    assert not OrdinaryClient(server.address, timeout=30).ask(3).failures
