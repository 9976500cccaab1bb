#include "engine/tensor/infer_result.h"

#include <algorithm>

namespace voxserve {

const NamedOutput* InferResult::Find(std::string_view name) const {
  const auto found =
      std::find_if(outputs.begin(), outputs.end(), [&](const NamedOutput& output) { return output.name == name; });
  return found == outputs.end() ? nullptr : &*found;
}

absl::Span<const uint8_t> InferResult::labels() const {
  const NamedOutput* const output = Find(NamedOutput::kLabels);
  if (output == nullptr) return {};
  return output->values<uint8_t>();
}

absl::Span<const float> InferResult::scores() const {
  const NamedOutput* const output = Find(NamedOutput::kScores);
  if (output == nullptr) return {};
  return output->values<float>();
}

std::vector<Box> InferResult::boxes() const {
  std::vector<Box> boxes;
  if (const NamedOutput* const output = Find(NamedOutput::kBoxes)) {
    for (int64_t i = 0; i < output->num_rows(); ++i) {
      boxes.push_back(BoxOf(output->values<float>().data() + i * output->columns));
    }
  }
  return boxes;
}

}  // namespace voxserve
