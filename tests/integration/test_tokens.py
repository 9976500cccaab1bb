"""Tests tokens, the operators' port, and the files and flags of identity that keep the real server from starting."""

from __future__ import annotations

import json
import subprocess
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
from identity_calls import (
    HEALTH,
    INFER,
    LIST,
    LOAD,
    OPERATOR,
    OTHER,
    REFLECTION,
    SCAN,
    SCRAPER,
    TOKENS,
    TRUCK,
    StartServer,
    code_of,
    few_points,
    get,
    health_request,
    tool,
)
from identity_files import REPOSITORY, Authority, Server, token_line

import voxserve


def test_what_is_open_without_a_token(token_server: Server, authority: Authority) -> None:
    ca, missing = authority.certificate, grpc.StatusCode.UNAUTHENTICATED
    assert code_of(token_server.address, HEALTH, b"", ca=ca)[0] is grpc.StatusCode.OK
    assert code_of(token_server.admin_address, HEALTH, b"", ca=ca)[0] is grpc.StatusCode.OK
    for method in (LIST, INFER, REFLECTION):
        code, text = code_of(token_server.address, method, b"", ca=ca)
        assert (code, text) == (missing, "this server asks for a token: send authorization: Bearer TOKEN"), method
    assert code_of(token_server.admin_address, LOAD, b"", ca=ca)[0] is missing
    for path, status in (("/healthz", 200), ("/readyz", 200), ("/metrics", 401), ("/", 401), ("/none", 401)):
        assert get(token_server, path, ca) == status, path


def test_health_names_models_to_those_who_may_see_them(token_server: Server, authority: Authority) -> None:
    ca = authority.certificate

    def health(service: str, token: str) -> tuple[grpc.StatusCode, str]:
        return code_of(token_server.address, HEALTH, health_request(service), token=token, ca=ca)

    def watched(service: str, token: str) -> int:
        credentials = grpc.ssl_channel_credentials(ca.read_bytes())
        metadata = (("authorization", f"Bearer {token}"),) if token else None
        with grpc.secure_channel(token_server.address, credentials) as channel:
            watch = channel.unary_stream("/grpc.health.v1.Health/Watch")
            return bytes(next(watch(health_request(service), timeout=20, metadata=metadata)))[1]  # the status

    unknown, serving, service_unknown = grpc.StatusCode.NOT_FOUND, 1, 3
    for service in ("", "voxserve.v1.InferenceService"):
        for token in ("", "nonsense", TRUCK):
            assert health(service, token)[0] is grpc.StatusCode.OK, (service, token)
    for model, token, told in (
        ("minkunet", "", False),
        ("minkunet", "nonsense", False),
        ("minkunet", SCRAPER, False),
        ("minkunet", OTHER, False),
        ("minkunet", TRUCK, True),
        ("minkunet", OPERATOR, True),
        ("nothing", "", False),
        ("nothing", TRUCK, False),
        ("nothing", OPERATOR, False),
    ):
        service = f"voxserve.model.{model}"
        expected = (grpc.StatusCode.OK, "") if told else (unknown, f'no service "{service}"')
        assert health(service, token) == expected, (model, token)
        assert watched(service, token) == (serving if told else service_unknown), (model, token)


def test_unknown_tokens_are_refused(token_server: Server, authority: Authority) -> None:
    ca = authority.certificate
    assert code_of(token_server.address, LIST, b"", token=TRUCK + "x", ca=ca) == (
        grpc.StatusCode.UNAUTHENTICATED,
        "the token is unknown to this server",
    )
    assert get(token_server, "/metrics", ca, token="nonsense") == 401
    with voxserve.Client(token_server.address, tls_ca=ca, token="nonsense") as client:
        with pytest.raises(voxserve.UnauthenticatedError) as caught:
            client.models()
        assert caught.value.reason == "UNKNOWN_TOKEN"
        with client.stream("minkunet") as stream, pytest.raises(voxserve.UnauthenticatedError):
            next(iter(stream))
    # Several headers with tokens are refused, since a proxy may have looked at another one than the server.
    several = (("authorization", f"Bearer {TRUCK}"), ("authorization", f"Bearer {TRUCK}"))
    with grpc.secure_channel(token_server.address, grpc.ssl_channel_credentials(ca.read_bytes())) as channel:
        with pytest.raises(grpc.RpcError) as refused:
            channel.unary_unary(LIST)(b"", timeout=20, metadata=several)
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert get(token_server, "/metrics", ca, token=SCRAPER, count=2) == 401
    done = tool("models", "--address", token_server.address, "--tls_ca", str(ca), token="nonsense")
    assert done.returncode == 1
    assert "the token is unknown to this server; give the token with --token_file" in done.stderr


def test_a_token_does_what_its_scopes_say(token_server: Server, authority: Authority, folder: Path) -> None:
    ca = authority.certificate
    points = few_points()

    def client(token: str) -> voxserve.Client:
        return voxserve.Client(
            token_server.address, tls_ca=ca, token=token, admin_address=token_server.admin_address, timeout=60
        )

    with client(TRUCK) as truck:
        assert len(truck.segment("minkunet", points)) == len(points)
        assert [model.name for model in truck.models()] == ["minkunet"]
        with truck.stream("minkunet") as stream:
            stream.send(1, points)
            stream.close_sends()
            assert [result.error for result in stream] == [None]
        for model in ("centerpoint", "nothing"):  # The refusal must not tell whether the model exists.
            with pytest.raises(voxserve.PermissionDeniedError, match="has no scope infer: that fits") as caught:
                truck.segment(model, points)
            assert caught.value.reason == "SCOPE_TOO_SMALL"
            with pytest.raises(voxserve.PermissionDeniedError):
                truck.model(model)
            with truck.stream(model) as stream, pytest.raises(voxserve.PermissionDeniedError):
                stream.send(1, points)
                next(iter(stream))
        with pytest.raises(voxserve.NotFoundError, match="there is no such model"):
            truck.segment("minks", points)
        with pytest.raises(voxserve.PermissionDeniedError, match='"truck" lacks the scope admin'):
            truck.load_model("minkunet")
    with client(OTHER) as other:
        assert [model.name for model in other.models()] == ["centerpoint"]
        with pytest.raises(voxserve.PermissionDeniedError):
            other.segment("minkunet", points)
        with pytest.raises(voxserve.NotFoundError) as unknown:
            other.segment("centerpoint2", points)
        assert "minkunet" not in str(unknown.value)
    with client(OPERATOR) as operator:
        assert operator.load_model("minkunet") == (1,)
        assert [model.name for model in operator.models()] == ["centerpoint", "minkunet"]
        with pytest.raises(voxserve.PermissionDeniedError, match="no scope infer:MODEL"):
            operator.segment("minkunet", points)
    assert get(token_server, "/metrics", ca, token=SCRAPER) == 200
    assert get(token_server, "/", ca, token=SCRAPER) == 200
    assert get(token_server, "/metrics", ca, token=TRUCK) == 403
    assert code_of(token_server.address, LIST, b"", token=SCRAPER, ca=ca)[0] is grpc.StatusCode.PERMISSION_DENIED
    token_server.await_line(r"audit action=LoadModel who=token:operator peer=\S+ model=minkunet .* code=OK", 5)
    token_server.await_line(r"audit action=LoadModel who=nobody .* code=PERMISSION_DENIED reason=SCOPE_TOO_SMALL", 5)
    assert not any(token in token_server.log() for token in (TRUCK, OPERATOR, SCRAPER, OTHER))


def test_the_command_line_takes_tokens(token_server: Server, authority: Authority, folder: Path) -> None:
    at = ["--address", token_server.address, "--tls_ca", str(authority.certificate)]
    done = tool("models", *at, token=TRUCK)
    assert (done.returncode, "minkunet" in done.stdout) == (0, True), done.stderr
    file = folder / "operator-token"
    file.write_text(OPERATOR + "\n")
    admin = ["--admin_address", token_server.admin_address, "--token_file", str(file)]
    done = tool("load", "minkunet", *at, *admin)
    assert (done.returncode, done.stdout) == (0, "minkunet: version 1 in service\n"), done.stderr
    done = tool("load", "minkunet", *at, *admin[:2], token=TRUCK)
    assert done.returncode == 1
    assert "lacks the scope admin; the server's operator says" in done.stderr
    done = tool("infer", "--model", "minkunet", str(SCAN), *at, "--timeout", "60s", token=TRUCK)
    assert done.returncode == 0, done.stderr
    done = tool("bench", "--model", "minkunet", str(SCAN), *at, "--warm_up", "0s", "--requests", "2",
                "--concurrency", "1", "--json", str(folder / "bench.json"), token=TRUCK)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads((folder / "bench.json").read_text())
    done = tool("tune", "--model", "minkunet", "--max_wait", "1s", *at, *admin)
    token_server.await_line(r"audit action=TunePlan who=token:operator", 5)


def test_tokens_change_with_their_file(
    start: StartServer, tls_flags: list[str], authority: Authority, folder: Path
) -> None:
    file = folder / "changing"
    file.write_text(token_line("first", TRUCK, "infer:*"))
    server = start(*tls_flags, f"--auth_tokens={file}")
    ca = authority.certificate
    assert code_of(server.address, LIST, b"", token=TRUCK, ca=ca)[0] is grpc.StatusCode.OK
    file.write_text(token_line("second", OPERATOR, "infer:*"))
    server.await_line(r"tokens loaded anew tokens=1", 10)
    assert code_of(server.address, LIST, b"", token=TRUCK, ca=ca)[0] is grpc.StatusCode.UNAUTHENTICATED
    assert code_of(server.address, LIST, b"", token=OPERATOR, ca=ca)[0] is grpc.StatusCode.OK
    file.write_text("second abc admin\n")
    server.await_line(r"the tokens before stay .*line 1: the second column", 10)
    assert code_of(server.address, LIST, b"", token=OPERATOR, ca=ca)[0] is grpc.StatusCode.OK


def test_tokens_without_tls_where_asked_for(start: StartServer, folder: Path) -> None:
    (folder / "tokens").write_text(TOKENS)
    server = start(f"--auth_tokens={folder / 'tokens'}", "--insecure_tokens")
    assert code_of(server.address, LIST, b"")[0] is grpc.StatusCode.UNAUTHENTICATED
    with voxserve.Client(server.address, token=TRUCK) as client:
        assert [model.name for model in client.models()] == ["minkunet"]


# ---- priorities and shares of a line in the token file


@pytest.fixture(scope="module")
def bounded_server(start: StartServer, folder: Path) -> Server:
    """A server whose model has three priorities. A client of share 1 may have two streams at once."""
    model, source = folder / "models" / "minkunet", REPOSITORY / "deploy" / "models" / "minkunet"
    model.mkdir(parents=True)
    (model / "1").symlink_to(source / "1")
    text = (source / "config.textproto").read_text()
    (model / "config.textproto").write_text(text + "batching { priority_levels: 3 }\n")
    (folder / "bounds").write_text(
        token_line("truck", TRUCK, "infer:mink* priority=1 share=2")
        + token_line("other", OTHER, "infer:mink* share=0.5")
        + token_line("operator", OPERATOR, "infer:mink*")
    )
    return start(
        f"--model_repository={model.parent}", f"--auth_tokens={folder / 'bounds'}", "--insecure_tokens",
        "--max_client_streams=2",
    )  # fmt: skip


def test_a_priority_that_is_too_high_is_refused(bounded_server: Server) -> None:
    points = few_points()
    told = 'priority is 0; the token "truck" may ask for 1 or less urgent ones'
    with voxserve.Client(bounded_server.address, token=TRUCK, timeout=60) as truck:
        for priority in (1, 2):
            assert len(truck.segment("minkunet", points, priority=priority)) == len(points)
        with pytest.raises(voxserve.PermissionDeniedError, match=told) as caught:
            truck.segment("minkunet", points)
        assert caught.value.reason == "PRIORITY_TOO_HIGH"
        with truck.stream("minkunet", priority=1) as stream:
            stream.send(1, points)
            stream.close_sends()
            assert [result.error for result in stream] == [None]
        with truck.stream("minkunet", priority=0) as stream, pytest.raises(voxserve.PermissionDeniedError) as caught:
            stream.send(1, points)
            next(iter(stream))
        assert caught.value.reason == "PRIORITY_TOO_HIGH"
        with pytest.raises(voxserve.InvalidArgumentError) as beyond:
            truck.segment("minkunet", points, priority=3)
        assert beyond.value.reason == "BAD_PRIORITY"
        with pytest.raises(voxserve.NotFoundError, match="there is no such model"):
            truck.segment("minkunet-2", points, priority=0)
    with voxserve.Client(bounded_server.address, token=OPERATOR, timeout=60) as unbounded:
        assert len(unbounded.segment("minkunet", points, priority=0)) == len(points)


@pytest.mark.parametrize(("token", "streams"), [(TRUCK, 4), (OPERATOR, 2), (OTHER, 1)])
def test_a_share_multiplies_the_streams_of_a_client(bounded_server: Server, token: str, streams: int) -> None:
    points = few_points()
    with voxserve.Client(bounded_server.address, token=token, timeout=60) as client, ExitStack() as stack:

        def answered(frame: int) -> voxserve.Stream:
            stream = stack.enter_context(client.stream("minkunet", priority=1))
            stream.send(frame, points)
            assert next(iter(stream)).error is None
            return stream

        opened = [answered(frame) for frame in range(streams)]
        with pytest.raises(voxserve.ResourceExhaustedError) as caught:
            answered(streams)
        assert caught.value.reason == "CLIENT_LIMIT"
        # Streams that were admitted go on.
        for stream in opened:
            stream.send(100, points)
            assert next(iter(stream)).error is None


# ---- what keeps a server from starting


@pytest.mark.parametrize(
    ("flags", "status", "text"),
    [
        (["--tls_certificate={server}.crt"], 2, "--tls_certificate needs --tls_key as well"),
        (["--tls_key={server}.key"], 2, "--tls_key needs --tls_certificate as well"),
        (["--tls_client_ca={root}.pem"], 2, "--tls_client_ca needs --tls_certificate and --tls_key"),
        (["--auth_tokens={tokens}"], 2, "--auth_tokens needs --tls_certificate and --tls_key"),
        (["--insecure_tokens"], 2, "--insecure_tokens needs --auth_tokens"),
        (["--port=65535"], 2, "--admin_port is required: no port is above --port=65535"),
        (["--port=8079", "--http_port=8080"], 2, "--admin_port and --http_port are both 8080"),
        (["--admin_host="], 2, "--admin_host is empty"),
        (["--admin_host=192.0.2.1"], 1, "--admin_port chooses another port, --admin_host another address"),
        (["--tls_certificate={none}", "--tls_key={server}.key"], 1, "cannot be read: No such file"),
        (["--tls_certificate={server}.crt", "--tls_key={root}.key"], 1, "does not belong to the first certificate"),
        (["--tls_certificate={server}.key", "--tls_key={server}.key"], 1, "has no certificate in PEM form"),
        (["--tls_certificate={expired}.crt", "--tls_key={expired}.key"], 1, "expired on 2"),
        (["--tls_certificate={server}.crt", "--tls_key={server}.key", "--tls_client_ca={tokens}"], 1,
         "tokens has no certificate"),
        (["--auth_tokens={none}", "--insecure_tokens"], 1, "cannot be read: No such file"),
        (["--auth_tokens={badtokens}", "--insecure_tokens"], 1, "line 2: unknown scope"),
        (["--hash_token", "--port=1"], 2, "--hash_token stands alone"),
    ],
)  # fmt: skip
def test_bad_files_and_flags_are_told(
    binary: str, folder: Path, authority: Authority, flags: list[str], status: int, text: str
) -> None:
    authority.issue("server", "serverAuth")
    authority.issue("expired", "serverAuth", days=-1)
    (folder / "tokens").write_text(TOKENS)
    (folder / "badtokens").write_text("# tokens\n" + token_line("x", TRUCK, "admn"))
    names = {name: str(folder / name) for name in ("server", "root", "expired", "tokens", "badtokens", "none")}
    ports = [] if any(flag.startswith("--port") for flag in flags) else ["--port=0", "--http_port=0"]
    own = [flag.format(**names) for flag in flags]
    if "--hash_token" not in flags:
        own += [f"--model_repository={REPOSITORY / 'deploy' / 'models'}", "--devices=cpu", *ports]
    done = subprocess.run([binary, *own], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    assert done.returncode == status, done.stderr
    assert text in done.stderr


def test_hash_token_makes_what_a_line_has(binary: str) -> None:
    def hashed(text: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([binary, "--hash_token"], input=text, capture_output=True, text=True, timeout=30)

    assert hashed(TRUCK + "\n").stdout == token_line("", TRUCK, "").split()[0] + "\n"
    assert hashed(TRUCK).stdout == hashed(TRUCK + "\n").stdout
    for text, problem in (("short\n", "5 characters"), ("", "0 characters"), (f"{TRUCK}\n{OPERATOR}\n", "one line")):
        done = hashed(text)
        assert (done.returncode, done.stdout) == (2, "")
        assert problem in done.stderr
