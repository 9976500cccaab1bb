#pragma once

// Implements inference.GRPCInferenceService, the open inference protocol (proto/open_inference.proto). So programs that
// use this protocol, such as Triton's clients, can use this server without a change. server/OPEN_INFERENCE.md has a
// table of the methods.
//
// A ModelInfer call uses a UnaryRequest (server/calls/unary_request.h), as an Infer call does, so the same limits hold
// for both. Everybody who connects may call ServerLive and ServerReady, as grpc.health.v1; the server answers them
// during a drain (shutdown) too.

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "server/calls/call.h"
#include "server/calls/call_environment.h"
#include "server/calls/rpc_router.h"

namespace voxserve {

inline constexpr char kOpenInferenceServiceName[] = "inference.GRPCInferenceService";

// Adds the methods of the clients' port: all except RepositoryModelLoad and RepositoryModelUnload. `environment` must
// outlive the router.
void AddOpenInferenceService(const CallEnvironment* environment, RpcRouter* router);

// Adds the methods of the operators' port. `environment` must outlive the router. The methods are:
// - RepositoryModelLoad and RepositoryModelUnload. Only this port has them, since the operator decides who may reach
//   it.
// - All methods of AddOpenInferenceLookups, since a client program that loads models sends all its calls to one
//   address.
void AddOpenInferenceAdmin(const CallEnvironment* environment, RpcRouter* router);

// ---- open_inference_lookups.cc

// Add the methods that are answered at once, as LookupCalls. service: the first part of their paths,
// "/inference.GRPCInferenceService/". `environment` must outlive the router.
//
// AddOpenInferenceLookups adds health, metadata, configuration, statistics and the index of the repository.
// AddSharedMemoryLookups adds the methods that register, unregister and list shared memory. Only the clients' port,
// which runs models, has them.
void AddOpenInferenceLookups(const std::string& service, const CallEnvironment* environment, RpcRouter* router);
void AddSharedMemoryLookups(const std::string& service, const CallEnvironment* environment, RpcRouter* router);

// ---- open_inference_stream.cc: ModelStreamInfer

// Makes the call for one stream, a StreamCall (server/calls/stream_call.h). Its requests run side by side, each with an
// UnaryRequest, and each is answered when it is ready, in any order. `environment` must outlive the call.
//
// - Back-pressure: the call reads no further request while 16 of its requests are unanswered or have answers that wait
//   to be sent. gRPC's flow control then stops the client. ByteLimits bounds the bytes of requests and answers.
// - Errors: an error of one request is sent as its answer (error_message), and the stream goes on.
// - End: the call ends with OK after the client has half-closed. It ends with an error if the client has been silent
//   for too long (DEADLINE_EXCEEDED, reason STREAM_IDLE) or the server drains (UNAVAILABLE, reason DRAINING). In each
//   case it first answers every request that it has read. If the client is gone, its requests are cancelled.
std::shared_ptr<Call> MakeOpenInferenceStream(const CallEnvironment* environment, grpc::CallbackServerContext* context);

}  // namespace voxserve
