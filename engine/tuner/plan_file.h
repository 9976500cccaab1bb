#pragma once

// Reads and writes tuned plans as files, in the text format of proto/voxserve/model/v1/plan.proto.
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

// A bucket of a network with 100 convolutions takes some 15 KB.
inline constexpr size_t kMaxPlanFileBytes = size_t{4} << 20;

// Returns the plan of convolutions that a tuned plan with this key does not mention (engine/compiler/plan.h).
ConvPlan DefaultConvPlan(const PlanKey& key);

// Reads a plan. Fields that a convolution's entry leaves out are those of DefaultConvPlan. NOT_FOUND if there is no
// such file. INVALID_ARGUMENT lists all problems of the file (ProblemsOf), each with its place:
absl::StatusOr<TunedPlan> ReadPlan(const std::filesystem::path& path);

// Reads a plan from a text. Problems begin with file_name.
absl::StatusOr<TunedPlan> ParsePlan(std::string_view text, const std::string& file_name);

// Returns the plan as text with one line per convolution, in the order of their names. Equal plans give equal texts,
// and reading the text gives an equal plan. Times of hours are exact to a quarter of a nanosecond.
std::string PlanText(const TunedPlan& plan);

// Returns the parts of the plan that the program cannot use: nodes that are not its convolutions, and choices that its
// device does not support. Empty if the plan fits.
Problems PlanProblems(const TunedPlan& plan, const Program& program);

}  // namespace voxserve
