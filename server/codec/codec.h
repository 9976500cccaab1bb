#pragma once

// Between the wire's messages and the engine's types. Pure functions, any thread; nothing here waits.

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

// data: the points, as the parser put them beside the message. Takes the fields' names out of the message.
// INVALID_ARGUMENT with the reasons of PointCloud::Create.
absl::StatusOr<PointCloud> DecodeCloud(v1::PointCloud* message, HostBuffer data);

// When the sensor took the cloud; InfinitePast where the message does not say (no stamp, or time zero, which ROS sends
// for "unknown"). INVALID_ARGUMENT (BAD_STAMP) for a stamp that is no valid google.protobuf.Timestamp: it would reach
// sums of ages and the order of sweeps.
absl::StatusOr<absl::Time> StampOf(const v1::PointCloud& message);

// As InferTask wants it: levels beyond any model's stay beyond.
int PriorityOf(uint32_t priority);

// INVALID_ARGUMENT (BAD_SAMPLE) for a use that there is not. What the cloud can have is the engine's to know.
absl::StatusOr<FarthestPoints> DecodeSample(const v1::FarthestPointSample& message);

// All that the request asks of its cloud, as DecodeCloud has made it; the deadline and `done` are the caller's to set.
// INVALID_ARGUMENT (BAD_SAMPLE) as above, and (UNSUPPORTED_OUTPUT) for a type of tensors that there is not, and
// for more different names of tensors than a model can have.
absl::StatusOr<InferTask> DecodeRequest(const v1::InferRequest& message, PointCloud cloud);

// INVALID_ARGUMENT, reason BAD_STREAM (BAD_SAMPLE and UNSUPPORTED_OUTPUT as above), naming the field, its value and
// what is allowed. Models are the engine's to know.
absl::StatusOr<StreamSession::Config> DecodeStreamConfig(const v1::StreamConfig& message);

// Unchecked.
Pose DecodePose(const v1::Pose& message);

// Fills everything but request_id and the server's own stages, which the caller puts around. Labels and boxes that the
// model has are there even where they are none; what it has not is absent. Takes the bytes of labels and scores out of
// the result, so that they are not copied; boxes are messages, and made from their rows.
void EncodeResult(InferResult& result, v1::InferResponse* response);

void AppendStage(const StageTime& time, v1::InferResponse* response);

void EncodeModel(const ModelVersionInfo& info, v1::ModelVersion* message);

}  // namespace voxserve
