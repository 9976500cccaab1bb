#pragma once

// These functions read the safetensors format (huggingface/safetensors, "Format"). A file has 8 bytes of header size,
// little endian; a JSON object of name -> {dtype, shape, data_offsets}; then the tensors' bytes, the data, which must
// cover the rest of the file without a gap or an overlap. Nothing in the file is trusted: sizes are checked in 64 bits
// before they are used. The header can be read and checked before the data is there (weights_file.h does so).
//
// A header is read as a stream of JSON tokens, so that its nesting takes no memory. A file whose header exceeds a limit
// is refused: the largest networks have a few thousand tensors, whose entries take some 100 bytes each.
//
// Views point into the caller's bytes. Any thread may call these functions.

#include <cstdint>
#include <map>
#include <optional>
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
  uint64_t begin = 0;      // where its bytes begin in the data
  uint64_t num_bytes = 0;  // the size that follows from dtype and shape
  std::string_view bytes;  // little endian, row-major; empty without the data
};

struct StoredTensors {
  bool has_data = false;   // the tensors' bytes are there; else the header alone was read
  bool is_listed = false;  // the header could be read, so by_name and broken together name every tensor of the file
  std::map<std::string, StoredTensor> by_name;
  std::set<std::string> broken;  // tensors of the file with a problem, which was reported
};

inline constexpr uint64_t kMaxSafetensorsHeaderBytes = uint64_t{16} << 20;  // the format itself allows 100 MB
inline constexpr size_t kMaxStoredTensors = 65'536;
// The most bytes of memory that a byte of a header becomes: an entry of 50 bytes takes some 400.
inline constexpr int64_t kBytesOfParsedHeader = 12;

inline constexpr uint64_t kSafetensorsSizeBytes = 8;  // size of a file's first part, which holds the header's size

// Returns the header's size in bytes. beginning: the file's first kSafetensorsSizeBytes bytes, or the whole file if it
// is shorter. file_bytes: the file's size. Returns nullopt and adds a problem if the header would end after the file,
// or is larger than kMaxSafetensorsHeaderBytes.
std::optional<uint64_t> HeaderBytesOf(std::string_view beginning, uint64_t file_bytes, Problems* problems);

// Reads a header. data_bytes: the number of bytes that follow the header in the file. Adds all errors to `problems`.
// More than kMaxStoredTensors tensors are a problem; the rest of the header is then not read.
StoredTensors ParseSafetensorsHeader(std::string_view header, uint64_t data_bytes, Problems* problems);

// Gives the tensors their bytes. data: the data_bytes bytes after the header. They must outlive the tensors.
void SetData(std::string_view data, StoredTensors* tensors);

// Reads the header of a whole file and gives the tensors their bytes. Adds all errors to `problems`.
StoredTensors ParseSafetensors(std::string_view file, Problems* problems);

int64_t NumValues(const StoredTensor& tensor);

// Returns true for F32, F16 and BF16, the types that ToHostTensor reads.
bool IsFloatTensor(const StoredTensor& tensor);

// Converts the values to float32, without rounding. The tensor must be a float tensor (IsFloatTensor) with its data.
HostTensor ToHostTensor(const StoredTensor& tensor);

}  // namespace voxserve
