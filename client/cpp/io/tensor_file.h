#pragma once

// Writes tensors to .npy files: PREFIX.NAME.npy has a tensor's values. A tensor of sites also gets
// PREFIX.NAME.coordinates.npy (int32 [rows, axes]) and PREFIX.NAME.unit.npy (float64 [axes]).

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cpp/api/tensor.h"

namespace voxserve::client {

// Returns true if WriteTensors accepts the path: it must end in .npy.
bool IsTensorFile(const std::string& path);

// Returns the files of one tensor, its values first. path: PREFIX.npy.
std::vector<std::string> TensorFiles(const std::string& path, const std::string& name, v1::TensorRows kind);

// Writes the tensors and returns the files. path: PREFIX.npy. INVALID_ARGUMENT, without writing, for a name that cannot
// be part of a file's name, and for two tensors that have a file in common.
absl::StatusOr<std::vector<std::string>> WriteTensors(const std::string& path, const std::vector<Tensor>& tensors);

}  // namespace voxserve::client
