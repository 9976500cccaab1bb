"""Objects of shared memory that make whoever opens them wait for another process."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from calls import Answer, OrdinaryClient, answer_of, channel, start_call
from server import Server

PREFIX = "/voxserve-hostile-"
REGISTER = "/inference.GRPCInferenceService/SystemSharedMemoryRegister"
FOLDER = Path("/dev/shm")
NUM_OBJECTS = 12  # More than gRPC has threads here.
AT_ONCE_SECONDS = 5
OBJECT_BYTES = 4096


def register_request(name: str, key: str, num_bytes: int = OBJECT_BYTES) -> bytes:
    """Returns a SystemSharedMemoryRegisterRequest."""
    texts = b"".join(bytes([tag, len(text)]) + text.encode() for tag, text in ((0x0A, name), (0x12, key)))
    return texts + bytes([0x20, num_bytes & 0x7F | 0x80, num_bytes >> 7])


@contextlib.contextmanager
def made_object(name: str) -> Iterator[tuple[str, int]]:
    """Makes an object and yields its key and a descriptor."""
    path = FOLDER / (PREFIX[1:] + f"{os.getpid()}-{name}")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(descriptor, OBJECT_BYTES)
        yield f"/{path.name}", descriptor
    finally:
        os.close(descriptor)
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def leased_object(name: str) -> Iterator[str]:
    """Makes an object with a lease. The system lets whoever opens it wait, 45 seconds by default, for its holder."""
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)  # the system's request to give the lease up
    try:
        with made_object(name) as (key, descriptor):
            fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            yield key
    finally:
        signal.signal(signal.SIGIO, before)


@contextlib.contextmanager
def silent_object(name: str) -> Iterator[str]:
    """Mounts a file system on an object. Its process (FUSE) answers nothing, not even an open."""
    libc = ctypes.CDLL(None, use_errno=True)
    with made_object(name) as (key, _):
        path = str(FOLDER / key[1:]).encode()
        try:
            device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            pytest.skip(f"/dev/fuse cannot be opened: {error}")
        try:
            options = f"fd={device},rootmode=100000,user_id={os.getuid()},group_id={os.getgid()}".encode()
            if libc.mount(b"voxserve-test", path, b"fuse", 0, options) != 0:
                pytest.skip(f"no mount: {os.strerror(ctypes.get_errno())}")
            try:
                yield key
            finally:
                libc.umount2(path, 2)  # MNT_DETACH
        finally:
            os.close(device)  # Whoever waits for an answer gets an error.


def registered(server: Server, keys: list[str]) -> tuple[list[Answer], float]:
    """Registers all objects at once, over one connection. Returns the answers and the seconds that they took."""
    with channel(server.address) as to:
        start = time.monotonic()
        calls = [
            start_call(to, register_request(f"r{i}", key), AT_ONCE_SECONDS, REGISTER) for i, key in enumerate(keys)
        ]
        answers = [answer_of(one.result) for one in calls]
        return answers, time.monotonic() - start


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (leased_object, "another process has a lease on it (fcntl F_SETLEASE); release it first"),
        (silent_object, "another file system is mounted on it"),
    ],
    ids=["lease", "fuse"],
)
def test_objects_that_let_others_wait(serve, figure, kind, told):
    server = serve(f"--shared_memory_prefix={PREFIX}")
    with ExitStack() as stack:
        keys = [stack.enter_context(kind(f"o{i}")) for i in range(NUM_OBJECTS if kind is leased_object else 1)]
        answers, seconds = registered(server, keys * (1 if kind is leased_object else NUM_OBJECTS))
        others = OrdinaryClient(server.address, timeout=5).ask(3)
        end, status = server.terminate(20)
    figure(first=answers[0], seconds=f"{seconds:.1f}", others=others.figures(), end=f"{end:.1f} s, exit {status}")
    for answer in answers:
        assert answer.code.name == "INVALID_ARGUMENT"
        assert answer.reason == "BAD_PARAMETER"
        assert told in answer.message
    assert seconds < AT_ONCE_SECONDS
    assert not others.failures
    assert end < 10
    assert status == 0


def test_what_is_no_file_of_memory_is_refused(serve_shared, tmp_path: Path):
    pid = os.getpid()
    names = {kind: FOLDER / f"{PREFIX[1:]}{pid}-{kind}" for kind in ("pipe", "link", "folder")}
    try:
        os.mkfifo(names["pipe"])
        (tmp_path / "target").write_bytes(bytes(OBJECT_BYTES))
        names["link"].symlink_to(tmp_path / "target")
        names["folder"].mkdir()
        for kind, told in (
            ("pipe", "is no shared memory"),
            ("link", "cannot be opened"),
            ("folder", "cannot be opened"),
        ):
            [answer], _ = registered(serve_shared, [f"/{names[kind].name}"])
            assert (answer.code.name, answer.reason) == ("INVALID_ARGUMENT", "BAD_PARAMETER"), kind
            assert told in answer.message, kind
    finally:
        for kind in ("pipe", "link"):
            names[kind].unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            names["folder"].rmdir()


@pytest.fixture
def serve_shared(serve) -> Server:
    return serve(f"--shared_memory_prefix={PREFIX}")
