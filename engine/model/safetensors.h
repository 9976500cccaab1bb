#pragma once

// ParseSafetensors reads the safetensors format (huggingface/safetensors, "Format"). A file has 8 bytes of header size,
// little endian; a JSON object of name -> {dtype, shape, data_offsets}; then the tensors' bytes, which must cover the
// rest of the file without a gap or an overlap. Nothing in the file is trusted: sizes are checked in 64 bits before
// they are used.
//
// Views point into the caller's bytes. Any thread may call these functions.

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "engine/model/graph.h"
#include "engine/model/problems.h"

namespace voxserve {

struct StoredTensor {
  std::string dtype;  // as the file names it: "F32", "F16", "BF16", "I64", ...
  std::vector<int64_t> shape;
  std::string_view bytes;  // little endian, row-major
};

struct StoredTensors {
  bool is_listed = false;  // the header could be read, so by_name and broken together name every tensor of the file
  std::map<std::string, StoredTensor> by_name;
  std::set<std::string> broken;  // tensors of the file with a problem, which was reported
};

// Adds what is wrong to `problems`.
StoredTensors ParseSafetensors(std::string_view file, Problems* problems);

int64_t NumValues(const StoredTensor& tensor);

// True for F32, F16 and BF16, which ToHostTensor reads.
bool IsFloatTensor(const StoredTensor& tensor);

// Converts exactly. The tensor must be a float tensor that ParseSafetensors returned.
HostTensor ToHostTensor(const StoredTensor& tensor);

}  // namespace voxserve
