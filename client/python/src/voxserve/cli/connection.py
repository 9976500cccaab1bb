"""The flags with which every command finds its server, and the client that they make."""

from __future__ import annotations

import argparse
import os
from typing import Any

from voxserve import input_file
from voxserve.client import Client
from voxserve.printable import with_printable_texts
from voxserve.protocol import Call, Result
from voxserve.results import ModelState, ModelVersion

TOKEN_VARIABLE = "VOXSERVE_TOKEN"


def add_identity_flags(parser: argparse.ArgumentParser) -> None:
    """Adds --tls_ca, --tls_certificate, --tls_key and --token_file."""
    add = parser.add_argument
    add(
        "--tls_ca",
        default="",
        metavar="FILE",
        help="a PEM file of the root certificates that must have issued the server's certificate (default: no TLS)",
    )
    add(
        "--tls_certificate",
        default="",
        metavar="FILE",
        help="a PEM file of the client's own certificate, for a server that asks for one",
    )
    add("--tls_key", default="", metavar="FILE", help="a PEM file of the client certificate's private key")
    add(
        "--token_file",
        default="",
        metavar="FILE",
        help=f"a file whose one line is the bearer token to send (default: the variable {TOKEN_VARIABLE}); a "
        "token needs TLS, unless the server is on this machine",
    )


def connect(options: argparse.Namespace, **others: Any) -> Client:
    """Returns the client that the flags describe. The texts of its answers are printable. others: further arguments of
    Client. Raises OSError or ValueError for a file that cannot be used.
    """
    return _CommandClient(
        options.address,
        timeout=options.timeout,
        max_message_bytes=options.max_message_bytes,
        tls_ca=options.tls_ca,
        tls_certificate=options.tls_certificate,
        tls_key=options.tls_key,
        token=_token(options.token_file),
        admin_address=getattr(options, "admin_address", ""),
        **others,
    )


def ready(client: Client, name: str, version: int) -> ModelVersion:
    """Returns a version of a model; version 0 is the newest that is ready. Raises ValueError if it is not ready, or has
    neither labels nor boxes.
    """
    model = client.model(name, version)
    if model.state is not ModelState.READY:
        raise ValueError(f"{name} version {model.version} is {model.state.name.lower()}: {'; '.join(model.problems)}")
    if not model.has_labels and not model.has_boxes:
        raise ValueError(f"{name} answers with tensors alone, neither labels nor boxes")
    return model


class _CommandClient(Client):
    """A Client for commands, which print what they get."""

    def _run(self, call: Call[Result], timeout: float | None) -> Result:
        return with_printable_texts(super()._run(call, timeout))


def _token(path: str) -> str:
    if not path:
        return os.environ.get(TOKEN_VARIABLE, "")
    token = input_file.read_small(path).decode().strip()
    if not token:
        raise ValueError(f"--token_file {path} has no token")
    return token
