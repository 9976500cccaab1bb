#pragma once

// Small model folders, written for a test: a graph, weights and a config that are right, for tests to break.
//
// The safetensors writer is independent of the reader that it tests.

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace voxserve::testing {

// A new folder under the test's temporary folder; gone with the object.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// Creates the folders above it.
void WriteFile(const std::filesystem::path& path, const std::string& content);

struct TestTensor {
  std::string dtype;  // "F32", ...
  std::vector<int64_t> shape;
  std::string bytes;
};

// F32 little endian.
TestTensor FloatTensor(std::vector<int64_t> shape, const std::vector<float>& values);
// Values that differ from each other and stay within 0.1 to 1.
TestTensor FilledTensor(std::vector<int64_t> shape);

// header, preceded by its size, then data.
std::string SafetensorsFile(const std::string& header, const std::string& data);
// In the order of the names, without a gap.
std::string Safetensors(const std::map<std::string, TestTensor>& tensors);

struct TestModel {
  std::string graph;  // model.textproto
  std::map<std::string, TestTensor> weights;
  std::string config;  // config.textproto; "" writes none

  // Replaces the one occurrence of `from`; stops the test's program where there is none, or another.
  TestModel& Replace(const std::string& from, const std::string& to);
  void WriteTo(const std::filesystem::path& model_folder, int64_t version = 1) const;
};

// A valid network with a U-Net's operators, none too many: nodes voxels, conv, norm, relu, down, up, sum, both, head,
// best, labels, scores. Two features (x, intensity with default 0), a range of 32 x 32 x 8 voxels, three classes.
TestModel SmallModel();

}  // namespace voxserve::testing
