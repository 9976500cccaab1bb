#pragma once

// Converts between the wire's messages and the engine's types. Pure functions, any thread; nothing here waits.

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

// Decodes a cloud. data: the points, which the parser put beside the message. Moves the fields' names out of the
// message. INVALID_ARGUMENT with the reasons of PointCloud::Create.
absl::StatusOr<PointCloud> DecodeCloud(v1::PointCloud* message, HostBuffer data);

// Returns the time at which the sensor took the cloud; InfinitePast if the message does not tell (no stamp, or time
// zero, which ROS sends for "unknown"). INVALID_ARGUMENT (BAD_STAMP) for a stamp that is not a valid
// google.protobuf.Timestamp, which would spoil ages and the order of sweeps.
absl::StatusOr<absl::Time> StampOf(const v1::PointCloud& message);

// Returns the priority as InferTask holds it. A level above any model's limit stays above it.
int PriorityOf(uint32_t priority);

// Decodes a sample. INVALID_ARGUMENT (BAD_SAMPLE) for an unknown use. The engine checks whether the cloud can have it.
absl::StatusOr<FarthestPoints> DecodeSample(const v1::FarthestPointSample& message);

// Decodes all that the request asks for. cloud: the result of DecodeCloud. The caller sets the deadline and `done`.
// INVALID_ARGUMENT (BAD_SAMPLE) as above; (UNSUPPORTED_OUTPUT) for an unknown type of tensors, and for more names of
// tensors than a model can have.
absl::StatusOr<InferTask> DecodeRequest(const v1::InferRequest& message, PointCloud cloud);

// Decodes a stream's config. INVALID_ARGUMENT, reason BAD_STREAM (BAD_SAMPLE and UNSUPPORTED_OUTPUT as above), naming
// the field, its value and the allowed values. The engine checks the model.
absl::StatusOr<StreamSession::Config> DecodeStreamConfig(const v1::StreamConfig& message);

// Decodes a pose without checking it.
Pose DecodePose(const v1::Pose& message);

// Fills all of the response but request_id and the server's own stages, which the caller adds. A kind of result
// (labels, boxes) is present if the model has it, even if it is empty. Moves the bytes of labels and scores out of the
// result, so that they are not copied; boxes are messages, which are made from their rows.
void EncodeResult(InferResult& result, v1::InferResponse* response);

void AppendStage(const StageTime& time, v1::InferResponse* response);

void EncodeModel(const ModelVersionInfo& info, v1::ModelVersion* message);

}  // namespace voxserve
