"""Tests that the real server writes each line of its log as one JSON object if a flag asks for it."""

from __future__ import annotations

import datetime
import json
import re
import subprocess
from typing import Any

import grpc
import pytest
from identity_calls import INFER, LIST, StartServer, code_of, few_points, get, tool
from identity_files import Server

import voxserve


def lines_of(server: Server) -> list[dict[str, Any]]:
    """Returns every line of a server's log. Each must be an object that begins with time, level and message."""
    lines = []
    for text in server.log().splitlines():
        line = json.loads(text)
        assert list(line)[:3] == ["time", "level", "message"], text
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"]), text
        assert datetime.datetime.fromisoformat(line["time"].replace("Z", "+00:00")).year >= 2026
        assert line["level"] in ("DEBUG", "INFO", "WARNING", "ERROR"), text
        lines.append(line)
    return lines


def line_with(lines: list[dict[str, Any]], **fields: object) -> dict[str, Any]:
    found = [line for line in lines if fields.items() <= line.items()]
    assert found, f"no line with {fields}"
    return found[0]


def test_json_logs(start: StartServer) -> None:
    server = start("--log_format=json", "--log_level=debug")
    points = few_points()
    strange = 'new\nline, "quotes", \\, \x01\x7f, stra\u00dfe \U0001f697'
    with voxserve.Client(server.address, admin_address=server.admin_address, timeout=60) as client:
        client.infer("minkunet", points, request_id="fine")
        with pytest.raises(voxserve.NotFoundError):
            client.infer(strange, points, request_id="not there")
        with client.stream("minkunet") as stream:
            stream.send(1, points)
            stream.close_sends()
            assert [result.error for result in stream] == [None]
        assert client.load_model("minkunet") == (1,)
        with pytest.raises(voxserve.NotFoundError):
            client.load_model(strange)
    assert code_of(server.address, INFER, b"\xff\xff")[0] is grpc.StatusCode.INVALID_ARGUMENT
    assert get(server, "/healthz", None) == 200
    server.process.terminate()
    assert server.process.wait(timeout=60) == 0

    lines = lines_of(server)
    starts = line_with(lines, message="voxserve starts", level="INFO")
    assert starts["pid"] == server.process.pid
    assert starts["grpc"].count(".") == 2
    assert isinstance(starts["memory_limit_bytes"], int)
    serving = line_with(lines, message="serving")
    assert (serving["grpc_port"], serving["devices"]) == (server.port, "cpu")
    answered = line_with(lines, message="answered", request_id="fine", level="DEBUG")
    assert (answered["model"], answered["version"], answered["points"]) == ("minkunet", 1, len(points))
    assert isinstance(answered["ms"], float) and answered["ms"] > 0
    missing = line_with(lines, message="not answered", request_id="not there", code="NOT_FOUND")
    assert (missing["model"], missing["reason"]) == (strange, "MODEL_NOT_FOUND")
    assert missing["error"].startswith("no model"), missing
    ended = line_with(lines, message="stream ended", code="OK")
    assert (ended["frames"], ended["answered"]) == (1, 1)
    line_with(lines, message="not answered", code="INVALID_ARGUMENT", reason="MALFORMED_MESSAGE")
    load = line_with(lines, message="audit", action="LoadModel", model="minkunet", code="OK", error="")
    assert isinstance(load["seconds"], float) and load["who"] == "127.0.0.1"
    assert line_with(lines, message="audit", model=strange)["code"] == "NOT_FOUND"
    line_with(lines, message="stopped")


def test_text_is_the_default(start: StartServer) -> None:
    server = start()
    assert code_of(server.address, LIST, b"")[0] is grpc.StatusCode.OK
    done = tool("load", "minkunet", "--address", server.address, "--admin_address", server.admin_address)
    assert done.returncode == 0, done.stderr
    found = server.await_line(r"(\S+) INFO audit action=LoadModel .* code=OK reason=\"\" error=\"\" seconds=\S+\n", 10)
    assert datetime.datetime.fromisoformat(found[1].replace("Z", "+00:00"))


def test_another_format_is_refused(binary: str) -> None:
    done = subprocess.run(
        [binary, "--model_repository=x", "--log_format=xml"], capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 2
    assert done.stderr == "voxserve: --log_format is 'xml', must be text or json; see voxserve --help\n"
