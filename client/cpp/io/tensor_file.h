#pragma once

// Tensors in files, .npy alone: PREFIX.NAME.npy with a tensor's values, and of sites PREFIX.NAME.coordinates.npy (int32
// [rows, axes]) and PREFIX.NAME.unit.npy (float64 [axes]).

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cpp/api/tensor.h"

namespace voxserve::client {

// Whether a path is one of which WriteTensors makes a prefix: it ends in .npy.
bool IsTensorFile(const std::string& path);

// Returns the files of one tensor, its values first. path: PREFIX.npy.
std::vector<std::string> TensorFiles(const std::string& path, const std::string& name, v1::TensorRows kind);

// path: PREFIX.npy. Returns the files. INVALID_ARGUMENT, and nothing is written, for a name that is none of a tensor's
// and for two tensors that have a file in common.
absl::StatusOr<std::vector<std::string>> WriteTensors(const std::string& path, const std::vector<Tensor>& tensors);

}  // namespace voxserve::client
