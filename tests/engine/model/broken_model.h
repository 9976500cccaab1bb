#pragma once

// Defines models that are broken in one place, and checks that the loader refuses them with the expected messages.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "engine/base/error_reason.h"
#include "engine/model/model_loader.h"
#include "engine/model/problems.h"
#include "tests/support/model_folder.h"

namespace voxserve {

// Writes the model to a temporary folder and loads it from there.
inline absl::StatusOr<Graph> Load(const support::TestModel& model) {
  const support::TemporaryFolder folder;
  model.WriteTo(folder.path());
  return LoadGraph(folder.path() / "1");
}

// Says how a test changes SmallModel(), and which error messages the loader must return for the changed model.
struct BrokenModel {
  std::string name;
  std::function<void(support::TestModel&)> change;
  std::vector<std::string> problems;
};

inline void PrintTo(const BrokenModel& broken, std::ostream* out) { *out << broken.name; }

// Expects that the loader refuses the model with exactly these messages (INVALID_ARGUMENT, reason BAD_MODEL).
inline void ExpectToldExactly(const BrokenModel& broken) {
  support::TestModel model = support::SmallModel();
  broken.change(model);
  const absl::StatusOr<Graph> graph = Load(model);
  EXPECT_EQ(graph.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReasonOf(graph.status()), error_reason::kBadModel);
  EXPECT_THAT(ProblemsOf(graph.status()), ::testing::ElementsAreArray(broken.problems));
}

// Returns a change that replaces text of the graph.
inline std::function<void(support::TestModel&)> Text(const std::string& from, const std::string& to) {
  return [=](support::TestModel& model) { model.Replace(from, to); };
}

// Returns a change that appends text to the graph.
inline std::function<void(support::TestModel&)> Append(const std::string& text) {
  return [=](support::TestModel& model) { model.graph += text; };
}

inline std::string CaseName(const ::testing::TestParamInfo<BrokenModel>& info) { return info.param.name; }

}  // namespace voxserve
