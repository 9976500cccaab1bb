#pragma once

// Whether a model can serve what a stream's config asks for, before its first frame.

#include "absl/status/status.h"
#include "engine/serving/engine.h"
#include "engine/serving/streams/stream_session.h"

namespace voxserve {

// What every frame would be told: UNAVAILABLE, and INVALID_ARGUMENT (BAD_PRIORITY, UNSUPPORTED_OUTPUT) as
// Engine::Submit says; INVALID_ARGUMENT, reason BAD_STREAM, for sweeps that the model cannot run together: its axes are
// not x, y and z, or the age feature is none of its features, or is an axis.
absl::Status CheckStreamConfig(const ModelVersionInfo& model, const StreamSession::Config& config);

}  // namespace voxserve
