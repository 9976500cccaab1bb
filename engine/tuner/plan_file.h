#pragma once

// Tuned plans as files, in the text format of proto/voxserve/model/v1/plan.proto.
//
// Functions without state, for any thread.

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

// Of a network of 100 convolutions a bucket takes some 15 KB.
inline constexpr size_t kMaxPlanFileBytes = size_t{4} << 20;

// How convolutions run where the key is true and no plan says otherwise (engine/compiler/plan.h).
ConvPlan DefaultConvPlan(const PlanKey& key);

// Fields that a convolution's entry leaves out are those of DefaultConvPlan. NOT_FOUND where there is no such file;
// INVALID_ARGUMENT with every problem of the file at once (ProblemsOf), each with its place:
// `nvidia-h200-float16.textproto: buckets[1], node "stem.0": epsilon is 2; it must be 0 to 1`.
absl::StatusOr<TunedPlan> ReadPlan(const std::filesystem::path& path);

// The same of a text. Problems begin with file_name.
absl::StatusOr<TunedPlan> ParsePlan(std::string_view text, const std::string& file_name);

// The same text for the same plan, a line for each convolution, in the order of their names. A plan that is read back
// is equal; times of hours are, to a quarter of a nanosecond.
std::string PlanText(const TunedPlan& plan);

// What in the plan the program cannot run by: nodes that are none of its convolutions, and what its device does not
// serve. Empty where it fits.
Problems PlanProblems(const TunedPlan& plan, const Program& program);

}  // namespace voxserve
