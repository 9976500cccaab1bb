#pragma once

// WeightReader gives a node its tensors, "<node>.<part>", checked and converted. In the end it reports the tensors that
// no node has read.

#include <set>
#include <string>
#include <vector>

#include "engine/model/graph.h"
#include "engine/model/problems.h"
#include "engine/model/safetensors.h"

namespace voxserve {

// Stands for a size that is unknown because of another problem.
inline constexpr int64_t kUnknownSize = -1;
inline int64_t SizeOrUnknown(int size) { return size == 0 ? kUnknownSize : size; }  // 0: not known

class WeightReader {
 public:
  // Both outlive the reader.
  WeightReader(const StoredTensors& tensors, Problems* problems) : tensors_(tensors), problems_(problems) {}

  // Returns the tensor. Returns null and adds a problem where it is missing, has no float type, has another shape
  // (kUnknownSize matches any size) or holds a value that is not finite. Returns null without a problem where the file
  // could not be read, or where the parser has reported the tensor.
  HostTensorPtr Read(const std::string& node, const std::string& part, const std::vector<int64_t>& shape);

  // Adds a problem for each tensor that no Read named.
  void ReportUnused() const;

 private:
  const StoredTensors& tensors_;
  Problems* const problems_;
  std::set<std::string> read_;
};

}  // namespace voxserve
