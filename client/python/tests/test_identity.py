"""Tests the client's part of certificates, tokens and the operators' address; tests/integration tests with servers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
from conftest import FakeServer
from test_client import Call, call_aio, call_sync

import voxserve
from voxserve import protocol
from voxserve.cli.main import main

PEM = "-----BEGIN CERTIFICATE-----\n"


@pytest.fixture(params=[call_sync, call_aio], ids=["sync", "aio"])
def call(request: pytest.FixtureRequest) -> Call:
    return request.param


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"tls_certificate": "c", "tls_ca": "a"}, "tls_certificate and tls_key need each other"),
        ({"tls_key": "k", "tls_ca": "a"}, "tls_certificate and tls_key need each other"),
        ({"tls_certificate": "c", "tls_key": "k"}, "tls_certificate needs tls_ca"),
        ({"tls_ca": "a", "credentials": grpc.ssl_channel_credentials()}, "either credentials or tls_ca"),
        ({"token": "two words"}, "no header can carry"),
        ({"token": "line\n"}, "no header can carry"),
        ({"token": "t", "address": "truck-7:8500"}, "token needs tls_ca"),
        ({"token": "t", "address": "127.example.com:8500"}, "token needs tls_ca"),
        ({"token": "t", "admin_address": "truck-7:8501"}, "token needs tls_ca"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        voxserve.Client(**options)
    with pytest.raises(ValueError, match=text):
        voxserve.aio.Client(**options)


def test_no_traceback_shows_the_token() -> None:
    assert "secret" not in repr(protocol.Options(token="secret"))


@pytest.mark.parametrize("option", ["tls_ca", "tls_certificate", "tls_key"])
def test_bad_files_are_refused(option: str, tmp_path: Path) -> None:
    good = tmp_path / "good.pem"
    good.write_text(PEM + "-----BEGIN PRIVATE KEY-----\n")
    bad = tmp_path / "bad.pem"
    bad.write_text("nothing")
    files = {"tls_ca": good, "tls_certificate": good, "tls_key": good}
    with pytest.raises(ValueError, match=f"{option}: .*bad.pem is no PEM file"):
        voxserve.Client(**{**files, option: bad})
    with pytest.raises(OSError, match=r"missing\.pem"):
        voxserve.Client(**{**files, option: tmp_path / "missing.pem"})


@pytest.mark.parametrize(
    ("options", "admin"),
    [
        ({}, "localhost:8501"),
        ({"address": "[::1]:9000"}, "[::1]:9001"),
        ({"address": "truck-7:80", "admin_address": "other:5"}, "other:5"),
    ],
)
def test_the_operators_address_is_the_port_above(options: dict[str, str], admin: str) -> None:
    assert protocol.Options(**options).address_of("/voxserve.v1.AdminService/LoadModel") == admin
    infer = protocol.Options(**options).address_of("/voxserve.v1.InferenceService/Infer")
    assert infer == options.get("address", "localhost:8500")


@pytest.mark.parametrize("address", ["unix:/tmp/x", "host", "host:65535", "dns:///name"])
def test_an_address_without_a_port_above_needs_another(address: str, call: Call) -> None:
    with pytest.raises(ValueError, match="admin_address is needed"):
        call(address, "load_model", "m", options={"admin_address": ""})


def test_the_token_goes_with_every_call(call: Call, server: FakeServer, points: Any) -> None:
    options = {"token": "abc.DEF~1="}
    call(server.address, "segment", "minkunet", points, options=options)
    call(server.address, "models", options=options)
    call(server.address, "load_model", "minkunet", options=options)
    call(server.address, "tune_plan", "m", options=options)
    assert server.authorizations == ["Bearer abc.DEF~1="] * 4
    call(server.address, "models")
    assert server.authorizations[-1] is None


def test_the_token_goes_with_a_stream(server: FakeServer, points: Any) -> None:
    with voxserve.Client(server.address, token="secret") as client, client.stream("minkunet") as stream:
        stream.send(1, points)
        stream.close_sends()
        assert [result.error for result in stream] == [None]

    async def run() -> None:
        async with voxserve.aio.Client(server.address, token="secret") as client, client.stream("minkunet") as stream:
            await stream.send(1, points)
            stream.close_sends()
            assert [result.error async for result in stream] == [None]

    asyncio.run(run())
    assert server.authorizations == ["Bearer secret"] * 2


def test_the_command_line_takes_the_token_from_a_file_or_the_environment(
    server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "token"
    file.write_text("from-file\n")
    monkeypatch.setenv("VOXSERVE_TOKEN", "from-environment")
    assert main(["models", "--address", server.address]) == 0
    assert main(["models", "--address", server.address, "--token_file", str(file)]) == 0
    assert server.authorizations == ["Bearer from-environment", "Bearer from-file"]
    file.write_text("\n")
    capsys.readouterr()
    assert main(["models", "--address", server.address, "--token_file", str(file)]) == 1
    assert "has no token" in capsys.readouterr().err
    assert main(["models", "--address", "truck-7:8500"]) == 1
    assert "token needs tls_ca" in capsys.readouterr().err
    assert main(["models", "--address", server.address, "--tls_ca", str(tmp_path / "missing")]) == 1
    assert "missing" in capsys.readouterr().err
