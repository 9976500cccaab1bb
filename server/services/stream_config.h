#pragma once

// Checks, before a stream's first frame, whether a model can serve what the stream's config asks for.

#include <string>

#include "absl/status/status.h"
#include "engine/serving/engine.h"
#include "engine/serving/streams/stream_session.h"

namespace voxserve {

// Returns INVALID_ARGUMENT (BAD_STREAM) with this message.
absl::Status BadStreamError(const std::string& message);

// Returns OK, or the error that every frame of the stream would get:
// - UNAVAILABLE (MODEL_LOADING, MODEL_FAILED): the model's version is not ready.
// - INVALID_ARGUMENT (BAD_PRIORITY): the model does not have the config's priority.
// - INVALID_ARGUMENT (UNSUPPORTED_OUTPUT): the model does not have an output that the config asks for.
// - INVALID_ARGUMENT (BAD_STREAM): the config asks for sweeps (each frame runs together with earlier ones), and the
//   model cannot run them: its axes are not x, y and z, or the config's age_feature is an axis or no feature of it.
absl::Status CheckStreamConfig(const ModelVersionInfo& model, const StreamSession::Config& config);

}  // namespace voxserve
