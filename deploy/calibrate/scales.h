#pragma once

// Scales are the numbers by which a network's values are stored in 8 bits: value = scale * integer. They are found from
// histograms of scans, or read from a file that another tool wrote.

#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/calibration/value_histogram.h"
#include "engine/compiler/int8_values.h"
#include "engine/model/graph.h"
#include "kernels/core/rows.h"
#include "kernels/core/thread_pool.h"

namespace voxserve::calibrate {

using Scales = std::map<std::string, float>;  // by the name of the value's node

// Counts the candidates' values, scan by scan.
class ValueCounts {
 public:
  ValueCounts(const Graph& graph, const Int8Candidates& candidates);

  // Adds the rows of a node's value, which are float32; other values than the candidates' are skipped. The pool's
  // threads count. Returns INVALID_ARGUMENT if a value is NaN or infinite, with the node's name.
  absl::Status Add(int node, const kernels::ConstRows& rows, kernels::ThreadPool& pool);

  // Returns the scale of each candidate. Candidates without a scale, and the reason, are added to `warnings`: no scan
  // reached them, or they were 0 in all scans.
  Scales Choose(std::vector<std::string>* warnings) const;

  // Returns the largest magnitude of each node that has been seen, by name.
  std::map<std::string, float> Largest() const;

 private:
  const Graph& graph_;
  std::map<int, bool> is_non_negative_;   // by node
  std::map<int, ValueHistogram> counts_;  // by node
};

// Returns the largest integer of the value's type: u8 for values that cannot be negative, else s8.
inline int LargestInteger(bool is_non_negative) { return is_non_negative ? 255 : 127; }

// Reads scales from a JSON object of node names and numbers. `needed`: the nodes that must have a scale. Returns
// INVALID_ARGUMENT, which names the file, if it is something else, if a number is not positive and finite, if a name is
// no candidate's or appears twice, or if a needed node is missing; FAILED_PRECONDITION if it cannot be read.
absl::StatusOr<Scales> ReadScales(const std::string& file, const Graph& graph, const Int8Candidates& candidates,
                                  const std::set<std::string>& needed);

}  // namespace voxserve::calibrate
