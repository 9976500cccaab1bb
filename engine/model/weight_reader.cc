#include "engine/model/weight_reader.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/quoted.h"

namespace voxserve {
namespace {

ProblemsAt AtTensor(const std::string& name, Problems* problems) {
  return {absl::StrCat("tensor ", Quoted(name)), problems};
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[",
                      absl::StrJoin(shape, ", ",
                                    [](std::string* out, int64_t size) {
                                      absl::StrAppend(out, size == kUnknownSize ? "?" : absl::StrCat(size));
                                    }),
                      "]");
}

bool Matches(const std::vector<int64_t>& shape, const std::vector<int64_t>& expected) {
  return std::equal(shape.begin(), shape.end(), expected.begin(), expected.end(),
                    [](int64_t size, int64_t wanted) { return wanted == kUnknownSize || size == wanted; });
}

}  // namespace

HostTensorPtr WeightReader::Read(const std::string& owner, const std::string& node, const std::string& part,
                                 const std::vector<int64_t>& shape) {
  const std::string name = absl::StrCat(owner, ".", part);
  read_.insert(name);
  const ProblemsAt at = AtTensor(name, problems_);
  if (!tensors_.is_listed || tensors_.broken.count(name) > 0) return nullptr;
  const auto found = tensors_.by_name.find(name);
  if (found == tensors_.by_name.end()) {
    if (converted_.try_emplace(name).second) {
      at.Add("is missing; node ", Quoted(node), " needs it with shape ", ShapeText(shape));
    }
    return nullptr;
  }
  const StoredTensor& stored = found->second;
  if (IsFloatTensor(stored) && !Matches(stored.shape, shape)) {
    at.Add("has shape ", ShapeText(stored.shape), "; node ", Quoted(node), " needs ", ShapeText(shape));
    return nullptr;
  }
  const auto [converted, is_new] = converted_.try_emplace(name);
  if (is_new) converted->second = Convert(stored, at);
  return converted->second;
}

float WeightReader::ReadScale(const std::string& node) {
  const std::string name = absl::StrCat(node, ".scale");
  if (tensors_.by_name.count(name) == 0) return 0;
  const HostTensorPtr tensor = Read(node, node, "scale", {1});
  if (tensor == nullptr || tensor->values.empty()) return 0;
  const float scale = tensor->values.front();
  if (!std::isnormal(scale) || scale < 0) {  // the inverse of a subnormal scale may be infinite
    AtTensor(name, problems_).Add("is ", scale, "; a scale is at least ", std::numeric_limits<float>::min());
  }
  return scale;
}

HostTensorPtr WeightReader::Convert(const StoredTensor& stored, const ProblemsAt& at) const {
  if (!IsFloatTensor(stored)) {
    at.Add("is stored as ", stored.dtype, "; weights are F32, F16 or BF16");
    return nullptr;
  }
  if (!tensors_.has_data) return std::make_shared<const HostTensor>(HostTensor{stored.shape, {}});
  HostTensor tensor = ToHostTensor(stored);
  const auto is_bad = [](float value) { return !std::isfinite(value); };
  const auto num_bad = std::count_if(tensor.values.begin(), tensor.values.end(), is_bad);
  if (num_bad > 0) {
    const auto first = std::find_if(tensor.values.begin(), tensor.values.end(), is_bad) - tensor.values.begin();
    at.Add("has ", num_bad, " of ", tensor.values.size(), " values that are NaN or infinite, the first at index ",
           first);
    return nullptr;
  }
  return std::make_shared<const HostTensor>(std::move(tensor));
}

void WeightReader::ReportUnused() const {
  for (const auto& [name, tensor] : tensors_.by_name) {
    if (read_.count(name) == 0) AtTensor(name, problems_).Add("is used by no node");
  }
}

}  // namespace voxserve
