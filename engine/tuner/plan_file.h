#pragma once

// These functions read and write tuned plans as files, in the text format of proto/voxserve/model/v1/plan.proto.
//
// All functions are stateless and thread-safe.

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/compiler/program.h"
#include "engine/model/problems.h"
#include "engine/ops/conv_plan.h"
#include "engine/tuner/tuned_plan.h"

namespace voxserve {

// A larger file is refused. A bucket of a network with 100 convolutions takes some 15 KB.
inline constexpr size_t kMaxPlanFileBytes = size_t{4} << 20;

// Returns the plan of a convolution that a tuned plan with this key does not mention: the default of the key's device
// and dtype (engine/compiler/plan.h).
ConvPlan DefaultConvPlan(const PlanKey& key);

// Reads a plan. Fields that a convolution's entry leaves out are those of DefaultConvPlan. Returns NOT_FOUND if there
// is no such file. Returns INVALID_ARGUMENT (BAD_MODEL) with all problems of the file (ProblemsOf) if it is not valid.
absl::StatusOr<TunedPlan> ReadPlan(const std::filesystem::path& path);

// Reads a plan from a text. Problems begin with file_name. The errors are those of ReadPlan, without NOT_FOUND.
absl::StatusOr<TunedPlan> ParsePlan(std::string_view text, const std::string& file_name);

// Returns the plan as text with one line per convolution, in the order of their names. Equal plans give equal texts,
// and reading the text gives an equal plan. Times up to 24 hours are exact to absl::Duration's quarter of a nanosecond.
std::string PlanText(const TunedPlan& plan);

// Returns the parts of the plan that the program cannot use: nodes that are not its convolutions, and choices that its
// device does not support. Empty if the plan fits.
Problems PlanProblems(const TunedPlan& plan, const Program& program);

}  // namespace voxserve
