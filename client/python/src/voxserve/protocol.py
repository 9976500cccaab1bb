"""Makes the requests of the clients and names the functions that read the answers. The synchronous and the asyncio
client share this module.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

import grpc

from voxserve import answers, errors, feature_warning, input_file, wire
from voxserve.answers import Asked
from voxserve.compacting import compact_or_warn
from voxserve.encoding import CloudRequest, request_in_parts
from voxserve.farthest_points import FarthestPoints
from voxserve.inputs import PointsLike
from voxserve.known_classes import ClassLookup, Key, KnownClasses, Teller
from voxserve.point_cloud import Fields, as_cloud
from voxserve.results import ClassInfo, ModelVersion, TunedPlan, TuneProgress
from voxserve.service_config import MAX_ATTEMPTS, names_servers, service_config
from voxserve.source import Source
from voxserve.tensors import UNNAMED, Wanted

Result = TypeVar("Result")
Channel = TypeVar("Channel")
_ADMIN_SERVICE = "/voxserve.v1.AdminService/"
_ADMIN_CHANNEL = -1  # the key of AdminService's channel in ClientBase._channels
_MIN_KEEPALIVE = 2.0  # seconds; a server closes connections that are tested more than once a second
_MAX_KEEPALIVE = 86_400.0
_THIS_MACHINE = re.compile(r"unix:|(localhost|127\.\d{1,3}\.\d{1,3}\.\d{1,3}|\[::1\]):\d+\Z", re.ASCII)


@dataclass(frozen=True)
class Options:
    """The options of a client, which voxserve.Client documents. ValueError for values that are not valid."""

    address: str = "localhost:8500"  # host:port, unix:path, or several servers: dns:///name:port, ipv4:a:port,b:port
    timeout: float | None = 30.0  # the default timeout of a call, seconds; None: no limit
    max_message_bytes: int = 64 << 20  # the largest request and the largest answer; the server has the same default
    channels: int = 1  # connections, which calls use in turn. One carries about 1.3 GB/s
    credentials: grpc.ChannelCredentials | None = None  # None: no TLS, unless tls_ca is set
    tls_ca: str = ""  # a PEM file with the root certificates that the server's certificate must be signed by
    tls_certificate: str = ""  # a PEM file with the client's certificate, for a server that requires one
    tls_key: str = ""  # a PEM file with the private key of tls_certificate
    token: str = field(default="", repr=False)  # a bearer token that is sent with every call; no traceback shows it
    admin_address: str = ""  # the address of AdminService; "": the address with the next higher port
    traceparent: Callable[[], str] | None = None  # called for every call; returns its W3C traceparent, "" for none
    max_attempts: int = 3  # attempts of a call that changes nothing, if a server is UNAVAILABLE (service_config.py)
    keepalive: float | None = 10.0  # seconds without a byte after which a connection is tested; None: never

    def __post_init__(self) -> None:
        if not self.address:
            raise ValueError("address is empty; write host:port, e.g. localhost:8500")
        if not 1 <= self.channels <= 256:
            raise ValueError(f"channels is {self.channels}, must be 1 to 256")
        if not 1 << 16 <= self.max_message_bytes <= (1 << 31) - 1:
            raise ValueError(f"max_message_bytes is {self.max_message_bytes}, must be 65536 to {(1 << 31) - 1}")
        if self.timeout is not None and not self.timeout > 0:
            raise ValueError(f"timeout is {self.timeout}, must be positive, or None for no limit")
        if not 1 <= self.max_attempts <= MAX_ATTEMPTS:
            raise ValueError(f"max_attempts is {self.max_attempts}, must be 1 to {MAX_ATTEMPTS}")
        if self.keepalive is not None and not _MIN_KEEPALIVE <= self.keepalive <= _MAX_KEEPALIVE:
            limits = f"{_MIN_KEEPALIVE:g} to {_MAX_KEEPALIVE:g}"
            raise ValueError(f"keepalive is {self.keepalive}, must be {limits} seconds, or None for never")
        if self.credentials is not None and self.tls_ca:
            raise ValueError("give either credentials or tls_ca")
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise ValueError("tls_certificate and tls_key need each other")
        if self.tls_certificate and not self.tls_ca:
            raise ValueError("tls_certificate needs tls_ca: without it there is no TLS")
        if not _is_header_value(self.token):
            raise ValueError("token has a character that no header can carry; it must be one line of ASCII")
        addresses = [self.address, self.admin_address or self.address]
        if self.token and not self.has_tls and not all(map(_is_this_machine, addresses)):
            raise ValueError(f"token needs tls_ca: on the way to {self.address} everybody could read it without TLS")

    @property
    def has_tls(self) -> bool:
        """Returns whether the connections are encrypted."""
        return self.credentials is not None or bool(self.tls_ca)

    def channel_credentials(self) -> grpc.ChannelCredentials | None:
        """Returns `credentials`, or credentials that it makes from the PEM files. Returns None without TLS. Raises
        OSError or ValueError for a file that cannot be used.
        """
        if not self.tls_ca:
            return self.credentials
        return grpc.ssl_channel_credentials(
            _read_pem("tls_ca", self.tls_ca, b"-----BEGIN CERTIFICATE-----"),
            _read_pem("tls_key", self.tls_key, b"PRIVATE KEY-----") if self.tls_key else None,
            _read_pem("tls_certificate", self.tls_certificate, b"-----BEGIN CERTIFICATE-----")
            if self.tls_certificate
            else None,
        )

    def metadata(self, has_trace: bool = True) -> tuple[tuple[str, str], ...] | None:
        """Returns the gRPC metadata (headers) of a call: the token, and what traceparent() returns; None if there is
        neither. Leaves out a traceparent that no header can carry. has_trace: False for a call of the client's own.
        """
        pairs = [("authorization", f"Bearer {self.token}")] if self.token else []
        traceparent = self.traceparent() if self.traceparent is not None and has_trace else ""
        if traceparent and _is_header_value(traceparent):
            pairs.append(("traceparent", traceparent))
        return tuple(pairs) or None

    def address_of(self, method: str) -> str:
        """Returns the address that serves a method. Raises ValueError for a method of AdminService if admin_address is
        not set and the address has no port to derive it from.
        """
        if not method.startswith(_ADMIN_SERVICE):
            return self.address
        if self.admin_address:
            return self.admin_address
        host, colon, port = self.address.rpartition(":")
        is_port = colon and port.isascii() and port.isdigit() and 0 < int(port) < 65535
        if not is_port or host == "unix" or names_servers(self.address):
            raise ValueError(f"admin_address is needed: none follows from the address {self.address}")
        return f"{host}:{int(port) + 1}"

    def channel_arguments(self, address: str, index: int) -> list[tuple[str, int | str]]:
        """Returns gRPC's options of a channel. They set the message limits, give each channel a connection of its own,
        make it reconnect quickly, and set retries and keepalive. index: the channel's key in ClientBase._channels.
        """
        arguments: list[tuple[str, int | str]] = [
            ("grpc.max_send_message_length", self.max_message_bytes),
            ("grpc.max_receive_message_length", self.max_message_bytes),
            ("grpc.use_local_subchannel_pool", 1),
            ("voxserve.channel", index),
            # gRPC waits by default up to 2 minutes between attempts to connect, and 30 s between two DNS look-ups, of
            # which each attempt needs one.
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 1000),
            ("grpc.dns_min_time_between_resolutions_ms", 500),
            ("grpc.service_config", service_config(address, self.max_attempts)),
            # gRPC does not retry a request that is larger than this. Its default of 256 KiB is less than most scans.
            ("grpc.per_rpc_retry_buffer_size", self.max_message_bytes),
        ]
        if self.keepalive is not None:
            milliseconds = round(self.keepalive * 1000)
            arguments += [
                ("grpc.keepalive_time_ms", milliseconds),
                ("grpc.keepalive_timeout_ms", milliseconds),
                # While a ping of another kind is unanswered, gRPC delays keepalive's ping for this time. Default: 60 s.
                ("grpc.http2.ping_timeout_ms", milliseconds),
                ("grpc.http2.max_pings_without_data", 0),  # no limit, since a call may wait long for its answer
            ]
        if _is_this_machine(address):  # a proxy cannot reach this machine's own address
            arguments.append(("grpc.enable_http_proxy", 0))
        return arguments

    def timeout_of(self, timeout: float | None) -> float | None:
        """Returns the timeout of a call in seconds; None for no limit. timeout: the call's own; None: the client's.
        ValueError if it is not positive.
        """
        if timeout is None:
            timeout = self.timeout
        elif not timeout > 0:
            raise ValueError(f"timeout is {timeout}, must be positive; math.inf for no limit")
        return None if timeout == math.inf else timeout


@dataclass(frozen=True)
class Call(Generic[Result]):
    """A call that can be sent: its method, the request's bytes, and the function that converts the answer."""

    method: str  # "/package.Service/Method"
    request: bytes | CloudRequest
    response: Any  # the answer's message class
    convert: Callable[[Any], Result]  # converts a message of that class
    is_streamed: bool = False  # whether the answer is a stream of such messages
    has_trace: bool = True  # whether it belongs to the caller's trace

    def read(self, data: bytes) -> Result:
        """Converts an answer. Raises the error MALFORMED_RESPONSE if the bytes are none."""
        return self.convert(answers.parse(self.response, data))


class ClientBase(Generic[Channel]):
    """The base class of voxserve.Client, which documents the options, and voxserve.aio.Client. It makes the gRPC
    channels, chooses one for each call, and begins the call.
    """

    _grpc: ClassVar[Any]  # the module that makes the channels: grpc or grpc.aio

    def __init__(
        self,
        address: str = "localhost:8500",
        *,
        timeout: float | None = 30.0,
        max_message_bytes: int = 64 << 20,
        channels: int = 1,
        credentials: grpc.ChannelCredentials | None = None,
        tls_ca: str | os.PathLike[str] = "",
        tls_certificate: str | os.PathLike[str] = "",
        tls_key: str | os.PathLike[str] = "",
        token: str = "",
        admin_address: str = "",
        traceparent: Callable[[], str] | None = None,
        max_attempts: int = 3,
        keepalive: float | None = 10.0,
    ) -> None:
        self._options = Options(
            address,
            timeout,
            max_message_bytes,
            channels,
            credentials,
            os.fspath(tls_ca),
            os.fspath(tls_certificate),
            os.fspath(tls_key),
            token,
            admin_address,
            traceparent,
            max_attempts,
            keepalive,
        )
        self._begin()

    def _begin(self) -> None:
        self._credentials = self._options.channel_credentials()
        self._channels: dict[int, Channel] = {}
        self._turns = itertools.count()
        self._lock = threading.Lock()
        self._classes = KnownClasses()

    def __repr__(self) -> str:
        return f"<{type(self).__module__}.Client of {self._options.address}>"

    def __getstate__(self) -> Options:
        """Returns what a pickled client consists of: its options, the token among them, and no connection. It cannot
        be pickled if it has `credentials` or a `traceparent`.
        """
        if self._options.credentials is not None or self._options.traceparent is not None:
            raise TypeError("a client with credentials or traceparent cannot be pickled; name TLS files instead")
        return self._options

    def __setstate__(self, options: Options) -> None:
        """Makes the client anew; reads the TLS files where it is unpickled."""
        self._options = options
        self._begin()

    @contextmanager
    def _begun(self, call: Call[Any], timeout: float | None) -> Iterator[Any]:
        """Sends the request, and yields what gRPC returns for it: the response's bytes, or an object that gives them.
        In the block, gRPC's errors become InferenceErrors.
        """
        limit = self._options.timeout_of(timeout)
        channel: Any = self._channel_of(call.method)
        begin = channel.unary_stream if call.is_streamed else channel.unary_unary
        method = begin(call.method, request_serializer=None, response_deserializer=None)
        try:
            yield method(bytes(call.request), timeout=limit, metadata=self._options.metadata(call.has_trace))
        except grpc.RpcError as error:
            raise errors.from_rpc(error, self._options.address_of(call.method), limit, self._options.has_tls) from None

    def _classes_of(self, model: str, version: int) -> ClassLookup:
        """Returns what an answer of the model's version knows of its classes, as a known_classes.Teller."""
        return self._classes.lookup(self._tell_classes, model, version)

    def _tell_classes(self, key: Key, may_ask: bool) -> tuple[ClassInfo, ...] | None:
        """Returns the classes that are known; may_ask: or those that the server tells. A closed client does not ask."""
        return self._classes.of(key, self._ask_classes if may_ask and self._channels else None)

    def _ask_classes(self, model: str, version: int) -> tuple[ClassInfo, ...]:
        """Asks the server. Raises InferenceError if it does not tell them within KnownClasses.TIMEOUT."""
        raise NotImplementedError

    def _connect(self, address: str, index: int) -> Channel:
        """Returns a new channel, which gets the key `index`."""
        arguments = self._options.channel_arguments(address, index)
        if self._credentials is None:
            channel: Channel = self._grpc.insecure_channel(address, options=arguments)
        else:
            channel = self._grpc.secure_channel(address, self._credentials, options=arguments)
        return channel

    def _channel_of(self, method: str) -> Channel:
        """Returns the channel for a method: AdminService has its own; other methods get the channels in turn."""
        address = self._options.address_of(method)
        if not method.startswith(_ADMIN_SERVICE):
            return self._next_channel()
        with self._lock:
            if _ADMIN_CHANNEL not in self._channels:
                self._channels[_ADMIN_CHANNEL] = self._connect(address, _ADMIN_CHANNEL)
            return self._channels[_ADMIN_CHANNEL]

    def _next_channel(self) -> Channel:
        """Returns the channels in turn. It makes a channel when it first returns it, since a channel of grpc.aio
        belongs to the event loop that runs then.
        """
        with self._lock:
            index = next(self._turns) % self._options.channels
            if index not in self._channels:
                self._channels[index] = self._connect(self._options.address, index)
            return self._channels[index]


def _is_header_value(text: str) -> bool:
    """Returns whether a header can carry the text: ASCII without spaces."""
    return all("!" <= character <= "~" for character in text)


def _is_this_machine(address: str) -> bool:
    """Returns whether the address certainly belongs to this machine. A name such as 127.example.com may belong to any
    machine.
    """
    return _THIS_MACHINE.match(address) is not None


def _read_pem(option: str, path: str, part: bytes) -> bytes:
    """Returns a PEM file's bytes. Raises ValueError if they do not contain `part`, since gRPC would only report that
    there is no server. option: the option that names the file, for the error.
    """
    text = input_file.read_small(path)
    if part not in text:
        raise ValueError(f'{option}: {path} is no PEM file: it has no "{part.decode()}"')
    return text


def check_model(model: str) -> None:
    """Raises ValueError if the model's name is empty."""
    if not model:
        raise ValueError("model is empty; name a model of the server's repository")


def priority_of(priority: int) -> int:
    """Returns the priority. Raises ValueError if the request's field, a uint32, cannot hold it."""
    if not 0 <= priority < 1 << 32:
        raise ValueError(f"priority is {priority}, must be 0 (the most urgent) or more")
    return priority


def infer(
    options: Options,
    tell: Teller,
    read: Callable[[wire.InferResponse, Asked], Result],
    model: str,
    points: PointsLike,
    *,
    fields: Fields,
    scales: Mapping[str, float] | None,
    compact: bool,
    version: int,
    priority: int,
    sample: FarthestPoints | None,
    scores: bool = False,
    tensors: Wanted = UNNAMED,
    request_id: str = "",
) -> Call[Result]:
    """Makes the Infer call for one cloud; Client.infer documents the arguments. tell: tells the classes of the answer's
    model. read: answers.read_labels, read_segmentation, read_detections or read_tensors. Raises ValueError for
    arguments that are not valid, ResourceExhaustedError (MESSAGE_TOO_LARGE) if the points do not fit a message.
    """
    start = time.perf_counter()
    check_model(model)
    cloud = as_cloud(points, fields)
    source = Source(points, cloud, fields, scales)
    if scales:
        cloud = cloud.scaled(scales)
    feature_warning.tell_of_bits(model, cloud, fields, scales)
    if compact:
        cloud = compact_or_warn(cloud)
    head = wire.InferRequest(
        model=model,
        version=version,
        return_scores=scores,
        request_id=request_id,
        priority=priority_of(priority),
        sample=None if sample is None else sample.message(),
        outputs=tensors.names,
        tensor_type=tensors.number,
    )
    request = request_in_parts(head, cloud, options.max_message_bytes)
    asked = Asked(cloud.num_points, start, scores, sample, tensors, source, tell)
    return Call(
        "/voxserve.v1.InferenceService/Infer", request, wire.InferResponse, lambda response: read(response, asked)
    )


def list_models() -> Call[list[ModelVersion]]:
    """Makes the ListModels call, which returns every version of every model."""
    return Call(
        "/voxserve.v1.InferenceService/ListModels",
        wire.ListModelsRequest().SerializeToString(),
        wire.ListModelsResponse,
        lambda response: [answers.read_model(model) for model in response.models],
    )


def get_model(name: str, version: int) -> Call[ModelVersion]:
    """Makes the GetModel call, which returns one version of a model."""
    return Call(
        "/voxserve.v1.InferenceService/GetModel",
        wire.GetModelRequest(model=name, version=version).SerializeToString(),
        wire.GetModelResponse,
        lambda response: answers.read_model(response.model),
    )


def get_classes(name: str, version: int) -> Call[tuple[ClassInfo, ...]]:
    """Makes the GetModel call with which the client itself asks for the classes of an answer's model."""
    call = get_model(name, version)
    return Call(
        call.method, call.request, call.response, lambda response: call.convert(response).classes, has_trace=False
    )


def check_health() -> Call[bool]:
    """Makes the health check. It returns whether the server serves."""
    return Call(
        "/grpc.health.v1.Health/Check",
        wire.HealthCheckRequest().SerializeToString(),
        wire.HealthCheckResponse,
        lambda response: bool(response.status == wire.HealthCheckResponse.SERVING),
    )


def load_model(model: str, version: int) -> Call[tuple[int, ...]]:
    """Makes the call that loads versions of a model. It returns the versions in service afterwards."""
    check_model(model)
    return Call(
        "/voxserve.v1.AdminService/LoadModel",
        wire.LoadModelRequest(model=model, version=version).SerializeToString(),
        wire.LoadModelResponse,
        lambda response: tuple(response.versions),
    )


def unload_model(model: str, version: int) -> Call[tuple[int, ...]]:
    """Makes the call that takes versions out of service. It returns their numbers."""
    check_model(model)
    return Call(
        "/voxserve.v1.AdminService/UnloadModel",
        wire.UnloadModelRequest(model=model, version=version).SerializeToString(),
        wire.UnloadModelResponse,
        lambda response: tuple(response.versions),
    )


def tune_plan(
    model: str, version: int, num_scans: int, max_wait: float, on_progress: Callable[[TuneProgress], object] | None
) -> Call[TunedPlan | None]:
    """Makes the call that streams the search's progress, and then the plan. Call.read passes progress to on_progress,
    and returns the plan if the update has it.
    """
    check_model(model)
    if not 1 <= num_scans <= 100:
        raise ValueError(f"num_scans is {num_scans}, must be 1 to 100")

    def read(update: wire.TunePlanUpdate) -> TunedPlan | None:
        kind = update.WhichOneof("update")  # None for an unknown kind, from a newer server
        if kind == "progress" and on_progress is not None:
            on_progress(answers.read_progress(update.progress))
        return answers.read_tuned_plan(update.result) if kind == "result" else None

    request = wire.TunePlanRequest(model=model, version=version, num_scans=num_scans, max_wait_seconds=max_wait)
    method = "/voxserve.v1.AdminService/TunePlan"
    return Call(method, request.SerializeToString(), wire.TunePlanUpdate, read, is_streamed=True)


def found(plan: TunedPlan | None) -> TunedPlan:
    """Returns the plan with which a search has ended. MALFORMED_RESPONSE if there is none."""
    if plan is None:
        raise answers.malformed("no plan")
    return plan
