#pragma once

// WriteTensors writes tensors to .npy files. PREFIX.NAME.npy has the values of the tensor NAME. A tensor of sites
// (occupied voxels) also gets PREFIX.NAME.coordinates.npy (int32 [rows, axes]) and PREFIX.NAME.unit.npy (float64
// [axes]); see client/cpp/api/tensor.h.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cpp/api/tensor.h"

namespace voxserve::client {

// Returns true if WriteTensors accepts the path: it must end in .npy.
bool IsTensorFile(const std::string& path);

// Returns the paths of one tensor's files, first the one with its values. path: PREFIX.npy.
std::vector<std::string> TensorFiles(const std::string& path, const std::string& name, v1::TensorRows kind);

// Writes the tensors and returns the paths of the files. path: PREFIX.npy. Returns INVALID_ARGUMENT, and writes
// nothing, if a tensor's name cannot be part of a file's name or two tensors would write the same file. Also returns
// the errors of WriteFile (file.h).
absl::StatusOr<std::vector<std::string>> WriteTensors(const std::string& path, const std::vector<Tensor>& tensors);

}  // namespace voxserve::client
