"""Objects of shared memory that make whoever opens them wait for another process."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from calls import MODEL, Answer, OrdinaryClient, answer_of, channel, scan, start_call
from server import Server

PREFIX = "/voxserve-hostile-"
REGISTER = "/inference.GRPCInferenceService/SystemSharedMemoryRegister"
FOLDER = Path("/dev/shm")
INFER = "/inference.GRPCInferenceService/ModelInfer"
NUM_OBJECTS = 12  # More than gRPC has threads here.
AT_ONCE_SECONDS = 5
OBJECT_BYTES = 4096


def field(number: int, value: bytes | int) -> bytes:
    """Returns a field of a protobuf message."""

    def varint(number: int) -> bytes:
        return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + varint(number >> 7)

    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def infer_request(region: str, num_bytes: int) -> bytes:
    """Returns a ModelInferRequest whose labels are to be written into the region."""

    def parameter(name: bytes, value: bytes) -> bytes:
        return field(2, field(1, name) + field(2, value))

    points = scan(1000)
    shape = field(3, len(points)) + field(3, points.shape[1])
    output = parameter(b"shared_memory_region", field(3, region.encode()))
    output += parameter(b"shared_memory_byte_size", field(2, num_bytes))
    return (
        field(1, MODEL.encode())
        + field(5, field(1, b"points") + field(2, b"FP32") + shape)
        + field(6, field(1, b"labels") + output)
        + field(7, points.tobytes())
    )


def register_request(name: str, key: str, num_bytes: int = OBJECT_BYTES) -> bytes:
    """Returns a SystemSharedMemoryRegisterRequest."""
    return field(1, name.encode()) + field(2, key.encode()) + field(4, num_bytes)


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


@contextlib.contextmanager
def held_lock(key: str, *more: str) -> Iterator[None]:
    """Holds the lock of an object (lock_holder.py)."""
    if platform.machine() != "x86_64":
        pytest.skip("lock_holder.py knows the number of userfaultfd on x86-64 alone")
    program = Path(__file__).with_name("lock_holder.py")
    arguments = [sys.executable, str(program), str(FOLDER / key[1:]), *more]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        try:
            if holder.stdout.readline() != b"held\n":
                pytest.skip("the system gives no userfaultfd; root has it")
            yield
        finally:
            holder.kill()


def test_a_lock_of_an_object_holds_nobody_up(serve, figure):
    """A client writes to an object, and its write does not end. So it holds the lock of the object's file, and by
    removing the object that of the folder.
    """
    server = serve(f"--shared_memory_prefix={PREFIX}", "--threads=1")
    with ExitStack() as stack:
        (locked, _), (free, _) = (stack.enter_context(made_object(name)) for name in ("locked", "free"))
        [answer], _ = registered(server, [locked])
        assert answer.is_ok, answer
        with held_lock(locked, "remove"), channel(server.address) as to:
            keys = [f"{PREFIX}none-{i}" for i in range(NUM_OBJECTS)]
            unknown, seconds = registered(server, keys)
            written = [answer_of(start_call(to, infer_request("r0", OBJECT_BYTES), 30, INFER).result) for _ in range(2)]
            # The region r0 is there, so this one gets another name.
            request = register_request("other", free)
            found = answer_of(start_call(to, request, AT_ONCE_SECONDS, REGISTER).result)
            others = OrdinaryClient(server.address, timeout=10).ask(3)
            end, status = server.terminate(20)
    figure(unknown=f"{unknown[0]} after {seconds:.1f} s", found=found, written=written[0], others=others.figures(),
           end=f"{end:.1f} s, exit {status}")  # fmt: skip
    for answer in unknown:
        assert (answer.code.name, answer.reason) == ("INVALID_ARGUMENT", "BAD_PARAMETER")
        assert "cannot be opened: No such file or directory" in answer.message
    assert all(answer.is_ok for answer in [found, *written]), [str(answer) for answer in written]
    assert not others.failures
    assert status == 0
    assert end < 10


@pytest.fixture
def serve_shared(serve) -> Server:
    return serve(f"--shared_memory_prefix={PREFIX}")
