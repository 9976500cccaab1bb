"""Model folders that an exporter or an operator should never have written, each with what its refusal says."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from calls import MODEL
from server import MODELS

EVIL = "evil"
DEEP = 100_000
TEBIBYTE = 1 << 40
LOAD_SECONDS = 60  # A load of these folders takes a second; one that this machine is too busy for takes longer.

Write = Callable[[Path], None]


def text(file: str, content: str) -> Write:
    """Writes a file of the model's folder. What was in service has been read, so it may be replaced."""

    def write(folder: Path) -> None:
        new = folder / "new"
        new.write_text(content)
        new.rename(folder / file)

    return write


def after(file: str, content: str) -> Write:
    return lambda folder: text(file, (folder / file).read_text() + content)(folder)


def hole(file: str, size: int = TEBIBYTE) -> Write:
    def write(folder: Path) -> None:
        text(file, "")(folder)
        os.truncate(folder / file, size)

    return write


def header(content: bytes) -> Write:
    def write(folder: Path) -> None:
        new = folder / "new"
        new.write_bytes(len(content).to_bytes(8, "little") + content)
        new.rename(folder / WEIGHTS)

    return write


def tensors(number: int) -> bytes:
    entry = b'"t%d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
    return b"{" + b",".join(entry % i for i in range(number)) + b"}"


def instead(file: str, make: Callable[[Path], object]) -> Write:
    def write(folder: Path) -> None:
        (folder / file).unlink()
        make(folder / file)

    return write


GRAPH, WEIGHTS, CONFIG = "1/model.textproto", "1/weights.safetensors", "config.textproto"
TOO_DEEP = "recursion limit of 32"
NO_FILE = "cannot be read (no regular file)"

FOLDERS: dict[str, tuple[Write, str]] = {
    "nodes_within_nodes": (text(GRAPH, "nodes { " * DEEP), TOO_DEEP),
    "unknown_fields_within_each_other": (text(GRAPH, "a { " * DEEP + "} " * DEEP), TOO_DEEP),
    "unknown_lists_within_each_other": (text(GRAPH, "a: " + "[" * DEEP), TOO_DEEP),
    "lists_of_messages_within_each_other": (text(GRAPH, "a: [< " * DEEP), TOO_DEEP),
    "extensions_within_each_other": (text(GRAPH, "[a.b] { " * DEEP), TOO_DEEP),
    "a_deep_config": (after(CONFIG, "a { " * DEEP), TOO_DEEP),
    "a_graph_with_a_hole": (hole(GRAPH), f"it has {TEBIBYTE} bytes; at most 8388608 are read"),
    "a_config_with_a_hole": (hole(CONFIG), f"it has {TEBIBYTE} bytes; at most 8388608 are read"),
    "weights_with_a_hole": (hole(WEIGHTS), "its header is not valid JSON"),
    "a_text_that_is_too_large": (text(GRAPH, "nodes {}\n" * 1_000_000), "it has 9000000 bytes; at most 8388608"),
    "empty_nodes": (text(GRAPH, "nodes {}" * 1_000_000), "has 1000000 nodes; at most 10000 are possible"),
    "inputs": (text(GRAPH, "nodes {" + "inputs:''" * 900_000 + "}"), "has 900000 inputs of nodes; at most 100000"),
    "outputs": (after(GRAPH, "outputs {}\n" * 700_000), "outputs; at most 67 are possible"),
    "features": (text(GRAPH, "nodes{voxelize{" + "features{}" * 800_000 + "}}"), "has 800000 features; at most 36"),
    "unknown_fields": (after(GRAPH, "q:1 " * 2_000_000), "and 1999900 more"),
    "unknown_classes": (after(CONFIG, "classes{id:99}" * 500_000), " more"),
    "versions_that_are_not_there": (
        after(CONFIG, "version_policy{specific{versions:[" + ",".join(map(str, range(1, 500_000))) + "]}}"),
        "specific names 499999 versions; at most 1000 are possible",
    ),
    "40000_tensors": (header(tensors(40_000)), " more"),
    "200000_tensors": (header(tensors(200_000)), "has more than 65536 tensors"),
    "a_header_of_brackets": (header(b'{"a":' + b"[" * 16_000_000), "its header is not valid JSON"),
    "a_header_of_60_megabytes": (header(b"[" * 60_000_000), "has 60000000 bytes, of 60000000 after the size; at most"),
    "a_pipe_as_graph": (instead(GRAPH, os.mkfifo), NO_FILE),
    "a_pipe_as_weights": (instead(WEIGHTS, os.mkfifo), NO_FILE),
    "a_pipe_as_config": (instead(CONFIG, os.mkfifo), NO_FILE),
    "a_device_as_graph": (instead(GRAPH, lambda path: path.symlink_to("/dev/zero")), NO_FILE),
    "a_device_as_weights": (instead(WEIGHTS, lambda path: path.symlink_to("/dev/zero")), NO_FILE),
    "a_device_as_config": (instead(CONFIG, lambda path: path.symlink_to("/dev/zero")), NO_FILE),
    "a_link_to_itself": (instead(GRAPH, lambda path: path.symlink_to(path)), "cannot be read"),
}


def make_repository(folder: Path) -> Path:
    """Returns a repository with a good model and a copy of it for a test to spoil."""
    shutil.copytree(MODELS / MODEL, folder / "models" / MODEL)
    shutil.copytree(MODELS / MODEL, folder / "models" / EVIL)
    return folder / "models"


def write_anew(repository: Path, write: Write) -> None:
    shutil.rmtree(repository / EVIL)
    shutil.copytree(MODELS / MODEL, repository / EVIL)
    write(repository / EVIL)
