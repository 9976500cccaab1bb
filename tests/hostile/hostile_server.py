"""A gRPC server whose answers are what a test says, to attack clients. It runs in a process of its own.

    with HostileServer({"Infer": [b"no message"]}) as server: ...

Each method's name has the answers that a call gets, of any bytes, or ("code", "message") for its end. After them a
stream stays open until the client ends it, as a server that falls silent leaves it. A call of another method gets an
empty message, which is a valid answer of nothing.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent import futures
from multiprocessing.connection import Connection
from typing import Any

import grpc

SILENT_SECONDS = 60
Answers = dict[str, list["bytes | tuple[str, str]"]]


class _Handler(grpc.GenericRpcHandler):
    def __init__(self, answers: Answers) -> None:
        self._answers = answers

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        name = details.method.rpartition("/")[2]
        answers = self._answers.get(name, [b""])

        def stream(request: Iterator[bytes] | bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
            if not isinstance(request, bytes):
                next(request)
            for answer in answers:
                if answer == ("OK", ""):
                    return
                if isinstance(answer, tuple):
                    context.abort(grpc.StatusCode[answer[0]], answer[1])
                yield answer
            silent = futures.Future[None]()
            context.add_callback(lambda: silent.set_result(None))
            silent.result(SILENT_SECONDS)

        def one(request: bytes, context: grpc.ServicerContext) -> bytes:
            answer = answers[0]
            if isinstance(answer, tuple):
                context.abort(grpc.StatusCode[answer[0]], answer[1])
            return answer

        if name in ("InferStream", "ModelStreamInfer"):
            return grpc.stream_stream_rpc_method_handler(stream)
        if name in ("TunePlan", "Watch"):
            return grpc.unary_stream_rpc_method_handler(stream)
        return grpc.unary_unary_rpc_method_handler(one)


def _run(answers: Answers, pipe: Connection) -> None:
    server = grpc.server(
        futures.ThreadPoolExecutor(8), options=[("grpc.max_send_message_length", -1)], handlers=[_Handler(answers)]
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    pipe.send(port)
    pipe.recv()  # until close()
    server.stop(None)


class HostileServer:
    def __init__(self, answers: Answers) -> None:
        context = multiprocessing.get_context("spawn")  # gRPC does not survive a fork
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_run, args=(answers, theirs), daemon=True)
        self._process.start()
        if not self._pipe.poll(60):
            raise AssertionError("the hostile server did not start")
        self.address = f"127.0.0.1:{self._pipe.recv()}"

    def __enter__(self) -> HostileServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.send(None)
        self._process.join(20)
        self._process.kill()
