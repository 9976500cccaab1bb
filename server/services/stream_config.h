#pragma once

// Checks, before a stream's first frame, whether a model can serve what the stream's config asks for.

#include "absl/status/status.h"
#include "engine/serving/engine.h"
#include "engine/serving/streams/stream_session.h"

namespace voxserve {

// Returns the error that every frame would get: UNAVAILABLE, and INVALID_ARGUMENT (BAD_PRIORITY, UNSUPPORTED_OUTPUT) as
// in Engine::Submit. INVALID_ARGUMENT, reason BAD_STREAM, for sweeps that the model cannot run together: its axes are
// not x, y and z, or the age feature is not one of its features, or is an axis.
absl::Status CheckStreamConfig(const ModelVersionInfo& model, const StreamSession::Config& config);

}  // namespace voxserve
