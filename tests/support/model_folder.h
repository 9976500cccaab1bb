#pragma once

// Small valid model folders (graph, weights, config), which tests change to make errors.
//
// The safetensors writer is independent of the reader under test.

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace voxserve::testing {

// A new folder in the test's temporary folder, deleted with the object.
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

// Writes a file and creates the folders above it.
void WriteFile(const std::filesystem::path& path, const std::string& content);

struct TestTensor {
  std::string dtype;  // "F32", ...
  std::vector<int64_t> shape;
  std::string bytes;
};

// Returns a tensor of float32, little endian.
TestTensor FloatTensor(std::vector<int64_t> shape, const std::vector<float>& values);
// Returns a tensor whose values differ and are within 0.1 to 1.
TestTensor FilledTensor(std::vector<int64_t> shape);

// Returns a file: the header's size, the header, the data.
std::string SafetensorsFile(const std::string& header, const std::string& data);
// Writes the tensors in the order of their names, without gaps.
std::string Safetensors(const std::map<std::string, TestTensor>& tensors);

struct TestModel {
  std::string graph;  // model.textproto
  std::map<std::string, TestTensor> weights;
  std::string config;  // config.textproto; "" writes none

  // Replaces the only occurrence of `from`; ends the test's program if there is none or more than one.
  TestModel& Replace(const std::string& from, const std::string& to);
  void WriteTo(const std::filesystem::path& model_folder, int64_t version = 1) const;
};

// A minimal valid network with a U-Net's operators: nodes voxels, conv, norm, relu, down, up, sum, both, head, best,
// labels, scores. It has two features (x, and intensity with default 0), a range of 32 x 32 x 8 voxels, and three
// classes.
TestModel SmallModel();

}  // namespace voxserve::testing
