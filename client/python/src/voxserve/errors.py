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

_DETAILS_KEY = "grpc-status-details-bin"


class InferenceError(Exception):
    """A call failed. Catch it by its subclass, or compare `reason`, whose values never change."""

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
        self.reason = reason  # UPPER_SNAKE_CASE; "" if the server gave none
        self.retry_after = retry_after  # seconds after which the server asks for a retry; None: it does not ask
        self.metadata = dict(metadata or {})  # the ErrorInfo's

    def __str__(self) -> str:
        return f"{self.message} [{self.reason or self.code.name}]"


class InvalidArgumentError(InferenceError):
    """The request cannot be served: a field is missing, the bytes do not fit, there are too many points."""


class NotFoundError(InferenceError):
    """There is no such model or version; the message lists those that exist."""


class UnavailableError(InferenceError):
    """Nothing answers, or the model is loading, or the server is going away. A retry may succeed."""


class ResourceExhaustedError(InferenceError):
    """The queue or the memory is full, or a message is larger than allowed."""


class DeadlineExceededError(InferenceError):
    """There was no answer in time."""


class CancelledError(InferenceError):
    """The call was cancelled."""


class UnauthenticatedError(InferenceError):
    """The server asks for a token, and got none that it knows."""


class PermissionDeniedError(InferenceError):
    """The token may not do this."""


class FailedPreconditionError(InferenceError):
    """The server's state does not allow the call: a model folder is broken, a search of the model already runs."""


class AbortedError(InferenceError):
    """The request was given up in favour of another."""


class SupersededError(AbortedError):
    """A newer frame of the stream came before this one was run (reason SUPERSEDED)."""


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
# gRPC's words for certificates or versions of TLS that do not fit. A handshake that only broke off may succeed next time.
_TLS_REFUSALS = ("ssl_error_ssl", "tsi_protocol_failure", "peer certificate")
_CODES: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}


def make(code: grpc.StatusCode, message: str, reason: str) -> InferenceError:
    """Returns an error of the client itself."""
    return _make(code, message, reason, None, {})


def of_reopening(failure: BaseException, *, is_closed: bool) -> InferenceError:
    """Returns the error of a stream whose next call could not begin. is_closed: because its client was closed."""
    if is_closed:
        return make(grpc.StatusCode.CANCELLED, "the stream was cancelled", "")
    error = make(grpc.StatusCode.INTERNAL, f"the stream cannot go on: {failure!r}", "")
    error.__cause__ = failure
    return error


def no_connection(address: str, timeout: float | None) -> InferenceError:
    """Returns the error of a stream that has found no other server within its timeout."""
    return make(grpc.StatusCode.DEADLINE_EXCEEDED, _missing("connection to", address, timeout), "CLIENT_TIMEOUT")


def _missing(thing: str, address: str, timeout: float | None) -> str:
    return f"no {thing} {address}" + (f" within {timeout:g} s" if timeout else "")


def from_status(status: wire.Status) -> InferenceError | None:
    """Returns the error of a google.rpc.Status in an answer; None for OK."""
    if status.code == 0:
        return None
    code = _CODES.get(status.code, grpc.StatusCode.UNKNOWN)
    reason, retry_after, metadata = _read_details(status.details)
    return _make(code, status.message or code.name, reason, retry_after, metadata)


def from_rpc(error: Any, address: str, timeout: float | None) -> InferenceError:
    """Returns the error for a grpc.RpcError (or grpc.aio.AioRpcError) of a call to `address`."""
    code = error.code() or grpc.StatusCode.UNKNOWN
    message = error.details() or code.name
    reason, retry_after, metadata = _read_details(_details(error))
    if not reason:
        reason, message = _explain(code, message, address, timeout)
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
        except Exception:  # DecodeError of the installed protobuf; the error is reported without these details
            continue
    return reason, retry_after, metadata


def _details(error: Any) -> Any:
    for key, value in error.trailing_metadata() or ():
        if key == _DETAILS_KEY:
            status = wire.Status()
            try:
                status.ParseFromString(value)
            except Exception:  # DecodeError, as above
                return ()
            return status.details
    return ()


def _explain(code: grpc.StatusCode, message: str, address: str, timeout: float | None) -> tuple[str, str]:
    """Returns reason and message for an error that gRPC itself reports."""
    lower = message.lower()
    if code == grpc.StatusCode.UNAVAILABLE:
        if any(text in lower for text in _TLS_REFUSALS):
            return "TLS_FAILED", f"no TLS connection to {address}: {message}"
        if any(text in lower for text in ("failed to connect", "handshake", "name resolution", "dns", "connection refused")):
            return "NO_SERVER", f"no server answers at {address}; is voxserve running there? ({message})"
        return "CONNECTION_LOST", f"the connection to {address} broke: {message}"
    if code == grpc.StatusCode.DEADLINE_EXCEEDED:
        return "CLIENT_TIMEOUT", _missing("answer from", address, timeout)
    if code == grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in lower:
        return (
            "MESSAGE_TOO_LARGE",
            f"{message}; see max_message_bytes of the client and --max_message_bytes of the server",
        )
    if code == grpc.StatusCode.UNIMPLEMENTED:
        return "", f"the server at {address} is not a voxserve server of this version ({message})"
    return "", message
