"""A server with TLS and tokens, whose certificate and tokens change while clients use it."""

from __future__ import annotations

import http.client
import shutil
import ssl
from pathlib import Path
from typing import Any

from http2 import await_true
from identity_files import Authority, token_line
from server import Server

import voxserve
from clients import Load

_SCRAPER = "scraper-token-0123456789"
_RELOAD_SECONDS = 15  # seconds in which the server must have read a changed file


class GuardedServer(Server):
    """A Server of tests/hostile that needs TLS and tokens."""

    def __init__(self, binary: str, log: Path, folder: Path, *flags: str) -> None:
        folder.mkdir()
        self._authority = Authority(folder, "root")
        self.authority = self._authority.certificate
        self._pairs = [self._authority.issue(f"turn{turn}", "serverAuth") for turn in range(2)]
        self._live = [folder / "live.crt", folder / "live.key"]
        self._tokens = folder / "tokens"
        self._turn = 0
        self.token, self._previous = self._token(0), ""
        self._write_tokens(self.token)
        self._copy_certificate()
        super().__init__(
            binary,
            log,
            f"--tls_certificate={self._live[0]}",
            f"--tls_key={self._live[1]}",
            f"--auth_tokens={self._tokens}",
            *flags,
        )

    def connect(self, token: str = "") -> voxserve.Client:
        return voxserve.Client(self.address, **self.identity(token), timeout=60)

    def identity(self, token: str = "") -> dict[str, Any]:
        """Returns the arguments of voxserve.Client by which it trusts the server, and the server a client."""
        return {"tls_ca": self._authority.certificate, "token": token or self.token}

    def _http_connection(self, timeout: float) -> http.client.HTTPConnection:
        context = ssl.create_default_context(cafile=str(self._authority.certificate))
        return http.client.HTTPSConnection("127.0.0.1", self.http_port, timeout=timeout, context=context)

    def _http_headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {_SCRAPER}"}

    def change_certificate(self) -> bool:
        """Writes another certificate. Returns whether the server showed it to new connections in time."""
        self._turn += 1
        self._copy_certificate()
        expected = ssl.PEM_cert_to_DER_cert(self._live[0].read_text())
        return await_true(lambda: self._shown() == expected, _RELOAD_SECONDS, 0.2)

    def change_token(self) -> bool:
        """Gives clients that connect from now on a new token. The present token stays valid until the next change.
        Returns whether, in time, the server accepted the new token and refused the one before the present one.
        """
        old, self._previous = self._previous, self.token
        new = self._token(self._turn + 1)
        self._write_tokens(self._previous, new)
        if not await_true(lambda: self._takes(new), _RELOAD_SECONDS, 0.2):
            return False
        self.token = new
        return not old or await_true(lambda: not self._takes(old), _RELOAD_SECONDS, 0.2)

    def add_tokens(self, number: int) -> list[str]:
        """Lets so many clients in, beside those with the present token, and returns their tokens."""
        tokens = [f"other-token-{i:010}" for i in range(number)]
        self._write_tokens(self.token, *tokens)
        assert await_true(lambda: self._takes(tokens[-1]), _RELOAD_SECONDS, 0.2)
        return tokens

    def _token(self, turn: int) -> str:
        return f"truck-token-{turn:010}"

    def _write_tokens(self, *tokens: str) -> None:
        lines = [token_line(f"truck{i}", token, "infer:*") for i, token in enumerate(tokens)]
        written = self._tokens.with_suffix(".new")
        written.write_text("".join(lines) + token_line("scraper", _SCRAPER, "metrics"))
        written.replace(self._tokens)

    def _copy_certificate(self) -> None:
        for source, target in zip(self._pairs[self._turn % 2], self._live, strict=True):
            shutil.copy(source, target)

    def _shown(self) -> bytes:
        try:
            return ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate(("127.0.0.1", self.grpc_port), timeout=10))
        except OSError:
            return b""  # for example, an attack has taken the last connection

    def _takes(self, token: str) -> bool:
        with self.connect(token) as client:
            try:
                client.models(timeout=10)
            except voxserve.UnauthenticatedError:
                return False
            return True


def identity_changes(load: Load, server: GuardedServer, period: float) -> None:
    """Changes the certificate and the token in turn."""
    while not load.stopped.wait(period):
        for what, change in (("certificates", server.change_certificate), ("tokens", server.change_token)):
            if change():
                load.tally.did(f"changes of {what}")
            else:
                load.tally.problem(f"a change of {what} did not count within {_RELOAD_SECONDS} s")


