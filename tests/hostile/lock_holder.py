"""A program that holds the lock of a file until its standard input ends: it writes to the file from memory whose page
another process has to bring (userfaultfd), and that process, this program, does not bring it. With "remove" it also
removes the file from another process, which then waits for that lock and holds the folder's lock.

    python lock_holder.py FILE [remove]

It prints "held" once it does so. It ends after 60 seconds at the latest, and with its parent, since nobody else can
make files in the folder meanwhile. It exits with 77 where the system gives it no userfaultfd.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import select
import signal
import struct
import sys
import threading
import time
from pathlib import Path

_USERFAULTFD = 323  # on x86-64
_UFFDIO_API, _UFFDIO_REGISTER, _UFFD_API, _MODE_MISSING = 0xC018AA3F, 0xC020AA00, 0xAA, 1
_PR_SET_PDEATHSIG = 1
_PAGE = 4096
_LONGEST_SECONDS = 60


def main(path: Path, removes: bool) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    faults = libc.syscall(_USERFAULTFD, os.O_CLOEXEC | os.O_NONBLOCK)
    if faults < 0:
        sys.exit(77)
    fcntl.ioctl(faults, _UFFDIO_API, bytearray(struct.pack("QQQ", _UFFD_API, 0, 0)))
    memory = mmap.mmap(-1, _PAGE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    fcntl.ioctl(faults, _UFFDIO_REGISTER, bytearray(struct.pack("QQQQ", address, _PAGE, _MODE_MISSING, 0)))
    file = os.open(path, os.O_RDWR)
    threading.Thread(target=libc.write, args=(file, ctypes.c_void_p(address), 1), daemon=True).start()
    assert select.select([faults], [], [], 30)[0], "the writer does not wait for its page"
    if removes and os.fork() == 0:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.unlink(path)  # noqa: PTH108  (waits)
        os._exit(0)
    time.sleep(0.5 if removes else 0)
    print("held", flush=True)
    select.select([sys.stdin], [], [], _LONGEST_SECONDS)
    os._exit(0)  # The thread still waits.


if __name__ == "__main__":
    main(Path(sys.argv[1]), removes=len(sys.argv) > 2)
