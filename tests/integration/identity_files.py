"""Makes certificates and tokens for tests with the command openssl, and starts a server that uses them."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import subprocess
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
START_SECONDS = 120


def run(*arguments: str) -> None:
    subprocess.run(arguments, check=True, capture_output=True, timeout=60)


class Authority:
    """A certificate authority that issues the tests' certificates. All files lie in one folder."""

    def __init__(self, folder: Path, name: str, issuer: Authority | None = None) -> None:
        """issuer: the authority that vouches for this one. None: this one is a root."""
        self._folder = folder
        if issuer is not None:
            self.certificate, self._key = issuer.issue(name, "clientAuth", is_authority=True)
            return
        self.certificate = folder / f"{name}.pem"
        self._key = folder / f"{name}.key"
        run(
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-subj", f"/CN={name}", "-keyout", str(self._key), "-out", str(self.certificate), "-days", "30"),
        )

    def issue(
        self, name: str, usage: str, days: float = 30, key_type: str = "ec", is_authority: bool = False
    ) -> tuple[Path, Path]:
        """Returns the files of a new certificate for this machine and of its key. usage: "serverAuth" or
        "clientAuth"; key_type: "ec" or "rsa". days: from now to its end, rounded to seconds.
        """
        certificate, key, request = (self._folder / f"{name}.{end}" for end in ("crt", "key", "csr"))
        extensions = self._folder / f"{name}.ext"
        names = "DNS:localhost,IP:127.0.0.1" if usage == "serverAuth" else f"DNS:{name}"
        constraints = "basicConstraints=critical,CA:TRUE\n" if is_authority else ""
        extensions.write_text(f"subjectAltName={names}\nextendedKeyUsage={usage}\n{constraints}")
        kind = "ec_paramgen_curve:P-256" if key_type == "ec" else "rsa_keygen_bits:2048"
        run(
            *("openssl", "req", "-newkey", key_type, "-pkeyopt", kind, "-nodes"),
            *("-subj", f"/CN={name}", "-keyout", str(key), "-out", str(request)),
        )
        configuration, database = self._folder / "ca.conf", self._folder / "ca.txt"
        database.write_text("")
        configuration.write_text(
            f"[ca]\ndefault_ca=d\n[d]\ndatabase={database}\nnew_certs_dir={self._folder}\nrand_serial=yes\n"
            "default_md=sha256\npolicy=p\n[p]\ncommonName=supplied\n"
        )
        now = datetime.now(timezone.utc)
        begin, end = (f"{time:%Y%m%d%H%M%SZ}" for time in (now - timedelta(hours=1), now + timedelta(days=days)))
        run(
            *("openssl", "ca", "-batch", "-notext", "-config", str(configuration), "-in", str(request)),
            *("-cert", str(self.certificate), "-keyfile", str(self._key), "-out", str(certificate)),
            *("-startdate", begin, "-enddate", end, "-extfile", str(extensions)),
        )
        return certificate, key


def token_line(name: str, token: str, rights: str) -> str:
    return f"{name} {hashlib.sha256(token.encode()).hexdigest()} {rights}\n"


class Server:
    """The server's binary on free ports. It runs until close()."""

    def __init__(self, binary: str, log: Path, *flags: str) -> None:
        self._log = log
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                [binary, f"--model_repository={REPOSITORY / 'deploy' / 'models'}", "--devices=cpu", "--port=0",
                 "--http_port=0", "--memory_limit=2GiB", *flags],
                stdout=out,
                stderr=subprocess.STDOUT,
            )  # fmt: skip
        self.port = self.http_port = self.admin_port = 0

    def await_ready(self) -> None:
        """Waits until the log, text or JSON, says that the models are loaded, and takes the ports from it."""
        self.await_line(r'models loaded"?[ ,]"?ready"?[=:]"?[\w/,]*minkunet')
        found = self.await_line(r'grpc_port"?[=:](\d+).*http_port"?[=:](\d+).*admin_port"?[=:](\d+)')
        self.port, self.http_port, self.admin_port = int(found[1]), int(found[2]), int(found[3])

    def await_line(self, pattern: str, seconds: float = START_SECONDS) -> re.Match[str]:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if found := re.search(pattern, self.log()):
                return found
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        raise AssertionError(f"no line {pattern!r} in the log:\n{self.log()[-4000:]}")

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def address(self) -> str:
        # The name localhost may have two addresses. gRPC would then report the error of only one of them, perhaps not
        # of the one at which this server listens.
        return f"127.0.0.1:{self.port}"

    @property
    def admin_address(self) -> str:
        return f"127.0.0.1:{self.admin_port}"

    def close(self) -> None:
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()
