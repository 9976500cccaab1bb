#include "tests/engine/measured_scales.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "engine/base/status_macros.h"
#include "engine/compiler/int8_values.h"
#include "tests/engine/device_runner.h"

namespace voxserve {

namespace {

// Sets the scales of at most kMaxTensors values, which a run of the network in float32 answers as tensors.
absl::Status SetScales(absl::Span<const Int8Value> values, const PointCloud& cloud, DeviceRunner& runner,
                       Graph& graph) {
  Graph observed = graph;
  observed.tensors.clear();
  InferTask task{.cloud = cloud, .tensor_set = 0};
  for (size_t i = 0; i < values.size(); ++i) {
    observed.tensors.push_back({absl::StrCat("v", i), values[i].node});
    *task.tensor_set |= TensorBit(static_cast<int>(i));
  }
  ASSIGN_OR_RETURN(const Program program, runner.Compile(observed, {}));
  const BatchReport output = runner.Run(program, {task});
  RETURN_IF_ERROR(output.status);
  const std::vector<OutputTensor>& tensors = output.samples[0].tensors;
  if (tensors.size() != values.size()) return absl::InternalError(absl::StrCat(tensors.size(), " tensors"));
  for (size_t i = 0; i < values.size(); ++i) {
    const std::string& bytes = tensors[i].bytes;
    float largest = 0;
    for (size_t at = 0; at < bytes.size(); at += sizeof(float)) {
      float value;
      std::memcpy(&value, bytes.data() + at, sizeof(value));
      largest = std::max(largest, std::fabs(value));
    }
    graph.nodes[static_cast<size_t>(values[i].node)].scale = largest / (values[i].is_non_negative ? 255 : 127);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status SetMeasuredScales(const PointCloud& cloud, Graph& graph) {
  const std::vector<Int8Value> values = FindInt8Candidates(graph).values;
  ASSIGN_OR_RETURN(const std::unique_ptr<DeviceRunner> runner, DeviceRunner::Create({}));
  for (size_t begin = 0; begin < values.size(); begin += kMaxTensors) {
    RETURN_IF_ERROR(SetScales(absl::MakeConstSpan(values).subspan(begin, kMaxTensors), cloud, *runner, graph));
  }
  return absl::OkStatus();
}

std::vector<std::string> FirstAndLastLayers(const Graph& graph) {
  const Int8Candidates candidates = FindInt8Candidates(graph);
  std::vector<std::string> names;
  for (const Int8Layer& layer : candidates.layers) {
    const bool is_last = std::none_of(graph.nodes.begin(), graph.nodes.end(), [&](const GraphNode& reader) {
      return std::find(reader.inputs.begin(), reader.inputs.end(), layer.result_node) != reader.inputs.end() &&
             !IsHeadOp(reader.op) && !std::holds_alternative<VoxelToPointOp>(reader.op);
    });
    if (!is_last && layer.first_node != candidates.layers.front().first_node) continue;
    names.push_back(graph.nodes[static_cast<size_t>(layer.first_node)].name);
  }
  return names;
}

}  // namespace voxserve
