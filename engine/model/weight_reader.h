#pragma once

// Hands a node its tensors, "<node>.<part>", checked and converted; knows in the end which were never asked for.

#include <set>
#include <string>
#include <vector>

#include "engine/model/graph.h"
#include "engine/model/problems.h"
#include "engine/model/safetensors.h"

namespace voxserve {

// A size that a problem elsewhere has left unknown.
inline constexpr int64_t kUnknownSize = -1;
inline int64_t SizeOrUnknown(int size) { return size == 0 ? kUnknownSize : size; }  // 0: not known

class WeightReader {
 public:
  // Both outlive the reader.
  WeightReader(const StoredTensors& tensors, Problems* problems) : tensors_(tensors), problems_(problems) {}

  // Null, and a problem, where the tensor is missing, no float tensor, of another shape (kUnknownSize matches any) or
  // holds a value that is not finite. Null alone where the file could not be read, or where reading reported it.
  HostTensorPtr Read(const std::string& node, const std::string& part, const std::vector<int64_t>& shape);

  // A problem for each tensor that no Read named.
  void ReportUnused() const;

 private:
  const StoredTensors& tensors_;
  Problems* const problems_;
  std::set<std::string> read_;
};

}  // namespace voxserve
