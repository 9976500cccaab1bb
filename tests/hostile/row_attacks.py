"""Attacks that each make many of one kind in turn, for a soak: floods of bytes of no use, model folders that nobody
should have written, and signals.
"""

from __future__ import annotations

import itertools
import os
import resource
import signal
import time
from pathlib import Path

from attack_target import Counts, Target, started
from frame_floods import FLOODS, useless_bytes

FLOOD_SECONDS = 4
# The time in which the log's file is at its size limit.
LIMITED_SECONDS = 1.0
IGNORED = [
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGVTALRM,
    signal.SIGPROF,
    signal.SIGIO,
    signal.SIGPIPE,
    signal.SIGXFSZ,
    signal.SIGSTKFLT,
    signal.SIGRTMIN,
    signal.SIGRTMIN + 7,
    signal.SIGRTMAX,
]


def all_floods(target: Target, first: int = 0) -> Counts:
    """Makes one flood after the other. first: the number of floods that were made before. Each comes from an address
    of its own, since the server keeps flooding clients away for a while.
    """
    kinds = list(FLOODS)
    counts: Counts = {"floods": 0}
    started()
    for number in itertools.count(first):
        if target.is_over():
            break
        kind = kinds[number % len(kinds)]
        source = f"127.0.{40 + number // 250 % 200}.{1 + number % 250}"
        ports = (target.grpc_port, target.http_port, target.pid)
        flood = Target(*ports, FLOOD_SECONDS, source, target.most_growth)
        counts["floods"] += 1
        for name, value in useless_bytes(flood, kind, **FLOODS[kind]).items():
            counts[name] = counts.get(name, 0) + value
    return counts


def bad_loads(target: Target, admin_port: int, repository: str, first: int = 0) -> Counts:
    """Writes each folder of broken_folders.py and asks the server to load it, one after the other. After every tenth it
    loads a good one. first: the number of folders that were written before.
    """
    import voxserve
    from broken_folders import EVIL, FOLDERS, LOAD_SECONDS, write_anew

    folders = [write for write, _ in FOLDERS.values()]
    counts: Counts = {"refused": 0, "loaded": 0, "other": 0}
    address = f"127.0.0.1:{target.grpc_port}"
    with voxserve.Client(address, admin_address=f"127.0.0.1:{admin_port}", max_attempts=1) as client:

        def load() -> str:
            try:
                client.load_model(EVIL, timeout=LOAD_SECONDS)
            except voxserve.InferenceError as error:
                return "refused" if error.reason == "BAD_MODEL" else "other"
            return "loaded"

        started()
        for number in itertools.count(first):
            if target.is_over():
                break
            write_anew(Path(repository), folders[number % len(folders)])
            outcome = load()
            counts[outcome if outcome == "refused" else "other"] += 1
            if number % 10 == 9:
                write_anew(Path(repository), lambda folder: None)
                outcome = load()
                counts[outcome if outcome == "loaded" else "other"] += 1
        write_anew(Path(repository), lambda folder: None)
    return counts


def signals(target: Target, log: str) -> Counts:
    """Sends every signal that the server ignores, and SIGHUP, while its log's file is at its size limit (`ulimit -f`)
    for a second at a time.
    """
    counts: Counts = {"signals": 0, "times_at_the_limit": 0}
    limits = resource.prlimit(target.pid, resource.RLIMIT_FSIZE)
    started()
    try:
        while not target.is_over():
            for number in IGNORED:
                os.kill(target.pid, number)
                counts["signals"] += 1
                time.sleep(0.1)
            resource.prlimit(target.pid, resource.RLIMIT_FSIZE, (Path(log).stat().st_size, limits[1]))
            os.kill(target.pid, signal.SIGHUP)  # it leaves a line in the log
            counts["times_at_the_limit"] += 1
            time.sleep(LIMITED_SECONDS)
            resource.prlimit(target.pid, resource.RLIMIT_FSIZE, limits)
    except ProcessLookupError:
        pass  # The server has ended.
    return counts
