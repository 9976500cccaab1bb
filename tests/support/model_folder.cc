#include "tests/support/model_folder.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace voxserve::support {
namespace {

[[noreturn]] void Stop(const std::string& why) {
  std::fprintf(stderr, "tests/support/model_folder: %s\n", why.c_str());
  std::abort();
}

constexpr char kGraph[] = R"(name: "small"
description: "for tests"
nodes {
  name: "voxels"
  voxelize {
    voxel_size: [0.5, 0.5, 1]
    rounding: ROUNDING_FLOOR
    origin: ORIGIN_RANGE
    range_min: [-8, -8, -4]
    range_max: [8, 8, 4]
    reduce: REDUCE_MEAN
    max_points_per_voxel: 5
    features { name: "x" unit: "m" }
    features { name: "intensity" unit: "1" scale: 2 default_value: 0 }
  }
}
nodes { name: "conv" inputs: ["voxels"] sparse_conv { kind: KIND_SUBMANIFOLD kernel_size: [3, 3, 3] out_channels: 4 bias: true } }
nodes { name: "norm" inputs: ["conv"] batch_norm { epsilon: 0.001 } }
nodes { name: "relu" inputs: ["norm"] activation { function: FUNCTION_RELU } }
nodes { name: "down" inputs: ["relu"] sparse_conv { kind: KIND_STRIDED rule: RULE_FLOOR kernel_size: [2, 2, 2] stride: [2, 2, 2] out_channels: 3 } }
nodes { name: "up" inputs: ["down"] sparse_conv { kind: KIND_INVERSE paired_with: "down" out_channels: 4 } }
nodes { name: "sum" inputs: ["up", "relu"] add {} }
nodes { name: "both" inputs: ["sum", "conv"] concat {} }
nodes { name: "head" inputs: ["both"] linear { out_channels: 3 bias: true } }
nodes { name: "best" inputs: ["head"] argmax {} }
nodes { name: "labels" inputs: ["best", "voxels"] voxel_to_point {} }
nodes { name: "scores" inputs: ["head", "voxels"] voxel_to_point {} }
outputs { kind: KIND_LABELS node: "labels" }
outputs { kind: KIND_SCORES node: "scores" }
)";

}  // namespace

TemporaryFolder::TemporaryFolder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "voxserve-test-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) Stop("no temporary folder");
  path_ = pattern;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void WriteFile(const std::filesystem::path& path, const std::string& content) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << content;
}

TestTensor FloatTensor(std::vector<int64_t> shape, const std::vector<float>& values) {
  TestTensor tensor = {"F32", std::move(shape), std::string(values.size() * sizeof(float), '\0')};
  if (!values.empty()) std::memcpy(tensor.bytes.data(), values.data(), tensor.bytes.size());
  return tensor;
}

TestTensor FilledTensor(std::vector<int64_t> shape) {
  size_t num_values = 1;
  for (const int64_t size : shape) num_values *= static_cast<size_t>(size);
  std::vector<float> values(num_values);
  for (size_t i = 0; i < num_values; ++i) {
    values[i] = 0.1F + 0.9F * static_cast<float>(i) / static_cast<float>(num_values);
  }
  return FloatTensor(std::move(shape), values);
}

std::string SafetensorsFile(const std::string& header, const std::string& data) {
  std::string file;
  for (int i = 0; i < 8; ++i) file.push_back(static_cast<char>(header.size() >> (8 * i)));
  return file + header + data;
}

std::string Safetensors(const std::map<std::string, TestTensor>& tensors) {
  std::vector<std::string> entries;
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    entries.push_back(absl::StrCat("\"", name, "\":{\"dtype\":\"", tensor.dtype, "\",\"shape\":[",
                                   absl::StrJoin(tensor.shape, ","), "],\"data_offsets\":[", data.size(), ",",
                                   data.size() + tensor.bytes.size(), "]}"));
    data += tensor.bytes;
  }
  return SafetensorsFile(absl::StrCat("{", absl::StrJoin(entries, ","), "}"), data);
}

TestModel& TestModel::Replace(const std::string& from, const std::string& to) {
  const size_t at = graph.find(from);
  if (at == std::string::npos) Stop("nothing to replace: " + from);
  if (graph.find(from, at + 1) != std::string::npos) Stop("more than one to replace: " + from);
  graph.replace(at, from.size(), to);
  return *this;
}

void TestModel::WriteTo(const std::filesystem::path& model_folder, int64_t version) const {
  const std::filesystem::path folder = model_folder / std::to_string(version);
  WriteFile(folder / "model.textproto", graph);
  WriteFile(folder / "weights.safetensors", Safetensors(weights));
  if (!config.empty()) WriteFile(model_folder / "config.textproto", config);
}

TestModel SmallModel() {
  TestModel model;
  model.graph = kGraph;
  model.weights = {
      {"conv.weight", FilledTensor({27, 2, 4})}, {"conv.bias", FilledTensor({4})},
      {"norm.weight", FilledTensor({4})},        {"norm.bias", FilledTensor({4})},
      {"norm.running_mean", FilledTensor({4})},  {"norm.running_var", FilledTensor({4})},
      {"down.weight", FilledTensor({8, 4, 3})},  {"up.weight", FilledTensor({8, 3, 4})},
      {"head.weight", FilledTensor({3, 8})},     {"head.bias", FilledTensor({3})},
  };
  return model;
}

}  // namespace voxserve::support
