#pragma once

// Writes small valid model folders (graph, weights, config). Tests of errors change one part of such a folder.
//
// The safetensors writer shares no code with the engine's reader, which is under test.

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace voxserve::support {

// Creates a folder among the system's temporary files and deletes it, with its content, in the destructor.
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

// Returns the bytes of a safetensors file: the size of the header, the header (JSON), the data.
std::string SafetensorsFile(const std::string& header, const std::string& data);
// Returns a safetensors file with the tensors in the order of their names, without gaps.
std::string Safetensors(const std::map<std::string, TestTensor>& tensors);

struct TestModel {
  std::string graph;  // model.textproto
  std::map<std::string, TestTensor> weights;
  std::string config;  // config.textproto; "" writes none

  // Replaces the only occurrence of `from` in `graph`. Ends the test program if there is none or more than one.
  TestModel& Replace(const std::string& from, const std::string& to);
  // Writes the graph and weights to the folder of this version, and config.textproto to model_folder.
  void WriteTo(const std::filesystem::path& model_folder, int64_t version = 1) const;
};

// Returns a minimal valid network with the operators of a U-Net. Its nodes are voxels, conv, norm, relu, down, up, sum,
// both, head, best, labels and scores. It reads two features (x, and intensity, which is 0 where it is missing), has a
// range of 32 x 32 x 8 voxels, and predicts three classes.
TestModel SmallModel();

}  // namespace voxserve::support
