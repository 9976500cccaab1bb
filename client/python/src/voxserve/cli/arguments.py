"""Arguments that several command lines have."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import Any

from voxserve import field_spec
from voxserve.cli.connection import add_identity_flags
from voxserve.numbers import real

_SECONDS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def add_connection(parser: argparse.ArgumentParser, timeout: float) -> None:
    """Adds --address, --timeout (seconds by default), --max_message_bytes and the flags of TLS and tokens."""
    add = parser.add_argument
    add(
        "--address",
        default="localhost:8500",
        metavar="HOST:PORT",
        help="the address of the server's gRPC port (default %(default)s)",
    )
    add(
        "--timeout",
        type=duration,
        default=timeout,
        metavar="TIME",
        help=f"a request may take this long, e.g. 500ms or 2m; the server gives up then too (default {timeout:g}s)",
    )
    add(
        "--max_message_bytes",
        type=count(1 << 16, (1 << 31) - 1),
        default=64 << 20,
        metavar="N",
        help="the largest request or answer (default %(default)s, like the server's limit)",
    )
    add_identity_flags(parser)


def duration(text: str) -> float:
    """Returns the seconds of a time such as 10s or 500ms."""
    match = re.fullmatch(r"([0-9]+\.?[0-9]*|\.[0-9]+)(ms|s|m|h)", text)
    seconds = float(match[1]) * _SECONDS[match[2]] if match else 0
    if seconds <= 0:
        raise argparse.ArgumentTypeError(f"is '{text}', must be a time such as 10s or 500ms")
    return seconds


def count(low: int, high: int = (1 << 63) - 1) -> Callable[[str], int]:
    """Returns a parser of numbers from low to high."""

    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) < 20 and low <= int(text) <= high):
            raise argparse.ArgumentTypeError(f"is '{text}', must be a number from {low} to {high}")
        return int(text)

    return parse


def positive(text: str, what: str) -> float:
    """Returns the positive number that the text is. what: what it must be, for the error."""
    try:
        value = real(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"is '{text}', must be {what}")
    return value


class _JoinedSpecs(argparse.Action):
    """Joins the field specs of a flag that is given several times."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        before = getattr(namespace, self.dest)
        text = f"{before},{values}" if before else values
        try:
            field_spec.parse(text)
        except ValueError as error:
            raise argparse.ArgumentError(self, str(error)) from None
        setattr(namespace, self.dest, text)


def add_fields(parser: argparse.ArgumentParser, what: str) -> None:
    """Adds --fields, a field spec, which is "" by default. what: what the command reads, and how the spec describes it,
    for the help.
    """
    parser.add_argument(
        "--fields",
        action=_JoinedSpecs,
        default="",
        metavar="SPEC",
        help=f"{what}; NEW=OLD[*SCALE][+SHIFT] gives a field another name, e.g. intensity=reflectivity",
    )
