#pragma once

// Makes engines that serve the demo's models (deploy/models) or a repository that a test writes.

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/serving/engine.h"
#include "tests/support/paths.h"

namespace voxserve {

inline std::string Models() { return support::SourceDir() + "/deploy/models"; }

inline std::unique_ptr<Engine> MakeEngine(Engine::Options options) {
  auto engine = Engine::Create(std::move(options));
  EXPECT_TRUE(engine.ok()) << engine.status();
  (*engine)->WaitUntilLoaded();
  return *std::move(engine);
}

// Submits the task and blocks until it has its answer.
inline absl::StatusOr<InferResult> Infer(Engine& engine, InferTask task) {
  std::promise<absl::StatusOr<InferResult>> answer;
  task.done = [&](absl::StatusOr<InferResult> result) { answer.set_value(std::move(result)); };
  engine.Submit(std::move(task));
  return answer.get_future().get();
}

inline PointCloud Cloud(const std::vector<float>& xyzi) {
  return *PointCloud::FromFloats({"x", "y", "z", "intensity"}, xyzi.data(), xyzi.size() / 4);
}

// A model repository in a temporary folder of this process. The destructor deletes the folder. A process may have one
// at a time.
class Repository {
 public:
  Repository() : path_(std::filesystem::temp_directory_path() / absl::StrCat("voxserve_engine_test_", getpid())) {
    std::filesystem::create_directories(path_);
  }
  ~Repository() { std::filesystem::remove_all(path_); }
  void CopyMinkUNet(const std::string& name, int version) {
    std::filesystem::create_directories(path_ / name);
    std::filesystem::copy(std::filesystem::path(Models()) / "minkunet" / "1", path_ / name / std::to_string(version),
                          std::filesystem::copy_options::recursive);
  }
  void Write(const std::string& file, const std::string& text) {
    std::filesystem::create_directories((path_ / file).parent_path());
    std::ofstream(path_ / file) << text;
  }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

}  // namespace voxserve
