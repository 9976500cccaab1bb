#pragma once

// WeightReader gives a node its tensors, "<node>.<part>", checked and converted. In the end it reports the tensors that
// no node has read. Where the tensors have no data yet, it checks all but the values.

#include <map>
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

  // Returns the tensor "<owner>.<part>" for `node`, which is the owner or shares its tensors; all readers of a tensor
  // get the same memory. Null, and a problem, where the tensor is missing, no float tensor, of another shape
  // (kUnknownSize matches any) or holds a value that is not finite. Null alone where the file could not be read, or
  // where the problem has been reported. Without data the tensor has its shape and no values.
  HostTensorPtr Read(const std::string& owner, const std::string& node, const std::string& part,
                     const std::vector<int64_t>& shape);

  // Adds a problem for each tensor that no Read named.
  void ReportUnused() const;

 private:
  const StoredTensors& tensors_;
  Problems* const problems_;
  // Null, and a problem, where its values are no weights.
  HostTensorPtr Convert(const StoredTensor& stored, const ProblemsAt& at) const;

  std::set<std::string> read_;
  std::map<std::string, HostTensorPtr> converted_;  // by name; null: the problem has been reported
};

}  // namespace voxserve
