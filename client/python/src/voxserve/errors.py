"""Errors for people (the message) and for programs (code, reason, retry_after).

The server's reasons arrive as google.rpc.ErrorInfo and are listed in its documentation (QUEUE_FULL, MODEL_NOT_FOUND,
...). The client's own are NO_SERVER, TLS_FAILED, CONNECTION_LOST, CLIENT_TIMEOUT, MESSAGE_TOO_LARGE and
MALFORMED_RESPONSE.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import grpc

from voxserve import wire
from voxserve.printable import printable

_DETAILS_KEY = "grpc-status-details-bin"


class InferenceError(Exception):
    """A call failed. To tell errors apart, catch a subclass or compare `reason`, whose values never change. `message`
    is for people: as the server wrote it, while str() has escapes in place of control characters.
    """

    def __init__(
        self,
        message: str,
        code: grpc.StatusCode = grpc.StatusCode.UNKNOWN,
        reason: str = "",
        retry_after: float | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.reason = reason  # in UPPER_SNAKE_CASE; "" if there is none
        self.retry_after = retry_after  # seconds after which a retry makes sense; None: the server did not say
        self.metadata = dict(metadata or {})  # google.rpc.ErrorInfo.metadata

    def __str__(self) -> str:
        return printable(f"{self.message} [{self.reason or self.code.name}]")


class InvalidArgumentError(InferenceError):
    """The request cannot be served. For example, a field is missing, the bytes do not match their description, or
    there are too many points.
    """


class NotFoundError(InferenceError):
    """There is no such model or version. The message lists the existing ones."""


class UnavailableError(InferenceError):
    """No server answers, the connection broke, the model is not ready, or the server is shutting down. A retry may
    succeed.
    """


class ResourceExhaustedError(InferenceError):
    """The server's queue or memory is full, or a message is larger than allowed."""


class DeadlineExceededError(InferenceError):
    """There was no answer within the timeout, or the server saw that there would be none."""


class CancelledError(InferenceError):
    """The call was cancelled."""


class UnauthenticatedError(InferenceError):
    """The server requires a token, and the client sent none or an unknown one."""


class PermissionDeniedError(InferenceError):
    """The token does not allow this call."""


class FailedPreconditionError(InferenceError):
    """The server's state does not allow the call. For example, the files of a model are broken, or a search for the
    model's plan already runs.
    """


class AbortedError(InferenceError):
    """The server or the client dropped the request in favour of another one."""


class SupersededError(AbortedError):
    """A newer frame of the stream replaced this frame before it was run (reason SUPERSEDED)."""


_CLASSES: dict[grpc.StatusCode, type[InferenceError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidArgumentError,
    grpc.StatusCode.NOT_FOUND: NotFoundError,
    grpc.StatusCode.UNAVAILABLE: UnavailableError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ResourceExhaustedError,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceededError,
    grpc.StatusCode.CANCELLED: CancelledError,
    grpc.StatusCode.UNAUTHENTICATED: UnauthenticatedError,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDeniedError,
    grpc.StatusCode.FAILED_PRECONDITION: FailedPreconditionError,
    grpc.StatusCode.ABORTED: AbortedError,
}
# gRPC's messages contain these texts if the certificates or the TLS versions do not match. A handshake that only broke
# off has other messages, since it may succeed next time.
_TLS_REFUSALS = ("ssl_error_ssl", "tsi_protocol_failure", "peer certificate")
_CODES: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}


def make(code: grpc.StatusCode, message: str, reason: str) -> InferenceError:
    """Returns an error that the client, not the server, reports."""
    return _make(code, message, reason, None, {})


def of_reopening(failure: BaseException, *, is_closed: bool) -> InferenceError:
    """Returns the error of a stream whose next RPC could not begin because of `failure`. is_closed: the client was
    closed.
    """
    if is_closed:
        return make(grpc.StatusCode.CANCELLED, "the stream was cancelled", "")
    error = make(grpc.StatusCode.INTERNAL, f"the stream cannot go on: {failure!r}", "")
    error.__cause__ = failure
    return error


def not_taken_on(error: InferenceError, timeout: float | None) -> InferenceError:
    """Returns the error of a stream that no other server took on within its timeout. error: that of its last call."""
    message = f"no server took the stream on within its timeout of {timeout} s: {error.message}"
    return make(grpc.StatusCode.DEADLINE_EXCEEDED, message, "CLIENT_TIMEOUT")


def from_status(status: wire.Status) -> InferenceError | None:
    """Returns the error of a google.rpc.Status in an answer; None for OK."""
    if status.code == 0:
        return None
    code = _CODES.get(status.code, grpc.StatusCode.UNKNOWN)
    reason, retry_after, metadata = _read_details(status.details)
    return _make(code, status.message or code.name, reason, retry_after, metadata)


def from_rpc(error: Any, address: str, timeout: float | None, has_tls: bool = False) -> InferenceError:
    """Returns the error for a grpc.RpcError (or grpc.aio.AioRpcError) of a call to `address`. timeout: the call's
    timeout in seconds, for the message; None: it had none. has_tls: whether the client uses TLS, for the message.
    """
    code = error.code() or grpc.StatusCode.UNKNOWN
    message = error.details() or code.name
    reason, retry_after, metadata = _read_details(_details(error))
    if not reason:
        reason, message = _explain(code, message, address, timeout, has_tls)
    return _make(code, message, reason, retry_after, metadata)


def _make(
    code: grpc.StatusCode, message: str, reason: str, retry_after: float | None, metadata: Mapping[str, str]
) -> InferenceError:
    kind = _CLASSES.get(code, InferenceError)
    if kind is AbortedError and reason == "SUPERSEDED":
        kind = SupersededError
    return kind(message, code, reason, retry_after, metadata)


def _read_details(details: Any) -> tuple[str, float | None, dict[str, str]]:
    """Returns reason, retry_after and metadata."""
    reason, retry_after, metadata = "", None, {}
    for detail in details:
        info, retry = wire.ErrorInfo(), wire.RetryInfo()
        try:
            if detail.Unpack(info):
                reason, metadata = info.reason, dict(info.metadata)
            elif detail.Unpack(retry):
                retry_after = retry.retry_delay.seconds + retry.retry_delay.nanos / 1e9
        except Exception:  # protobuf's DecodeError, whose class depends on the version; the details are left out
            continue
    return reason, retry_after, metadata


def _details(error: Any) -> Any:
    for key, value in error.trailing_metadata() or ():
        if key == _DETAILS_KEY:
            status = wire.Status()
            try:
                status.ParseFromString(value)
            except Exception:  # protobuf's DecodeError
                return ()
            return status.details
    return ()


def _wrong_port(message: str, has_tls: bool) -> str:
    """Returns a hint, after ": ", for a client that has reached a port of another protocol: gRPC's message, in lower
    case, then tells what answered. Returns "" if nothing does.
    """
    if "http1.x server" in message:
        return ": it answers HTTP/1 and no gRPC, as voxserve's --http_port does"
    if "wrong_version_number" in message or "wrong version number" in message:
        return ": it answers without TLS; leave out tls_ca, or name the port that has TLS"
    if "selected alpn" in message:
        return ": it has TLS and no gRPC, as voxserve's --http_port does"
    if not any(text in message for text in ("reset by peer", "socket closed", "endpoint clos")):
        return ""
    if has_tls:
        return ": it closes the connection; if the server has no TLS, leave out tls_ca"
    return ": it closes the connection; if the server has TLS, name its root certificates with tls_ca"


def _explain(
    code: grpc.StatusCode, message: str, address: str, timeout: float | None, has_tls: bool
) -> tuple[str, str]:
    """Returns reason and message for an error that carries no reason, since gRPC and not the server made it."""
    lower = message.lower()
    if code == grpc.StatusCode.UNAVAILABLE:
        if any(text in lower for text in _TLS_REFUSALS):
            return "TLS_FAILED", f"no TLS connection to {address}{_wrong_port(lower, has_tls)}: {message}"
        if any(
            text in lower for text in ("failed to connect", "handshake", "name resolution", "dns", "connection refused")
        ):
            if hint := _wrong_port(lower, has_tls):
                return "NO_SERVER", f"no gRPC connection to {address}{hint} ({message})"
            return "NO_SERVER", f"no server answers at {address}; is voxserve running there? ({message})"
        return "CONNECTION_LOST", f"the connection to {address} broke: {message}"
    if code == grpc.StatusCode.DEADLINE_EXCEEDED:
        return "CLIENT_TIMEOUT", f"no answer from {address}" + (f" within {timeout:g} s" if timeout else "")
    if code == grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in lower:
        return (
            "MESSAGE_TOO_LARGE",
            f"{message}; see max_message_bytes of the client and --max_message_bytes of the server",
        )
    if code == grpc.StatusCode.UNIMPLEMENTED:
        return "", f"the server at {address} is not a voxserve server of this version ({message})"
    return "", message
