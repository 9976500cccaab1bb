#pragma once

// WeightReader gives each node its tensors, named "<node>.<part>": it checks them and converts them to float32. After
// all nodes have read, ReportUnused reports the tensors that no node has read. If the tensors have no data yet (only
// the header of the file was read), WeightReader checks everything but the values. Used by one thread.

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

  // Returns the tensor "<owner>.<part>" for `node`, which is the owner or shares its tensors (weights_of). All readers
  // of a tensor get the same memory. If the tensors have no data, the result has a shape but no values.
  // Returns null and adds a problem if the tensor is missing, is no float tensor, has another shape (kUnknownSize
  // matches any size) or holds a value that is not finite. Returns null without a problem if the file could not be
  // read, or if the tensor's problem has been reported before.
  HostTensorPtr Read(const std::string& owner, const std::string& node, const std::string& part,
                     const std::vector<int64_t>& shape);

  // Returns the value of the tensor "<node>.scale", of shape [1]; 0 if the file has no such tensor or no data. Adds a
  // problem if the tensor has another shape, or a value that is no normal number above 0.
  float ReadScale(const std::string& node);

  // Adds a problem for each tensor that no Read named.
  void ReportUnused() const;

 private:
  const StoredTensors& tensors_;
  Problems* const problems_;
  // Returns null and adds a problem if the tensor has another type or a value that is not finite.
  HostTensorPtr Convert(const StoredTensor& stored, const ProblemsAt& at) const;

  std::set<std::string> read_;
  std::map<std::string, HostTensorPtr> converted_;  // by name; null: the problem has been reported
};

}  // namespace voxserve
