#pragma once

// Converts between the messages of the gRPC API and the engine's types: decodes clouds, requests and stream configs,
// and encodes results and descriptions of models. The functions keep no state, so any thread may call them. None of
// them waits.

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/runtime/host_buffer.h"
#include "engine/serving/engine.h"
#include "engine/serving/streams/stream_session.h"
#include "engine/tensor/infer_result.h"
#include "engine/tensor/infer_task.h"
#include "engine/tensor/point_cloud.h"
#include "engine/tensor/stage.h"
#include "engine/tensor/sweep.h"
#include "voxserve/v1/inference.pb.h"
#include "voxserve/v1/point_cloud.pb.h"

namespace voxserve {

// Makes a cloud from the layout in the message and the points' bytes in `data`, which message_parser.h has taken out of
// the message. Moves the names of the fields out of the message. Errors: those of PointCloud::Create.
absl::StatusOr<PointCloud> DecodeCloud(v1::PointCloud* message, HostBuffer data);

// Returns the time at which the sensor took the cloud, or InfinitePast if the message does not tell (no stamp, or time
// zero, which ROS sends for "unknown"). Errors: INVALID_ARGUMENT (BAD_STAMP) if the stamp is not a valid
// google.protobuf.Timestamp, since it would spoil the ages and the order of sweeps.
absl::StatusOr<absl::Time> StampOf(const v1::PointCloud& message);

// Converts a priority to the int that InferTask holds. A value above the largest int becomes the largest int, which is
// still more than any model allows.
int PriorityOf(uint32_t priority);

// Decodes a request for farthest points. Errors: INVALID_ARGUMENT (BAD_SAMPLE) if its `use` is unknown. The engine
// checks later whether the cloud allows such a sample.
absl::StatusOr<FarthestPoints> DecodeSample(const v1::FarthestPointSample& message);

// Makes a task from the request and its cloud, which DecodeCloud returned. The caller sets the deadline and `done`.
// Errors: those of DecodeSample; INVALID_ARGUMENT (UNSUPPORTED_OUTPUT) if tensor_type is unknown, or if `outputs` names
// more tensors than a model can have.
absl::StatusOr<InferTask> DecodeRequest(const v1::InferRequest& message, PointCloud cloud);

// Decodes a stream's config. Errors: those of DecodeRequest for the same fields, and INVALID_ARGUMENT (BAD_STREAM) for
// any other wrong field. The message names the field, its value and the allowed values. The caller checks the config
// against the model.
absl::StatusOr<StreamSession::Config> DecodeStreamConfig(const v1::StreamConfig& message);

// Decodes a pose. Does not check its values.
Pose DecodePose(const v1::Pose& message);

// Fills the response, except for request_id and the server's own stages, which the caller adds. If the model has labels
// (or boxes), the response has the message for labels (or boxes), even if it is empty. Moves the bytes of labels,
// scores and tensors out of the result, so that they are not copied. Each box becomes a message.
void EncodeResult(InferResult& result, v1::InferResponse* response);

void AppendStage(const StageTime& time, v1::InferResponse* response);

// Fills the description of a model's version, without the limit of messages.
void EncodeModel(const ModelVersionInfo& info, v1::ModelVersion* message);

}  // namespace voxserve
