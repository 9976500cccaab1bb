#include "client/cpp/io/tensor_file.h"

#include <cstdint>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "client/cpp/io/file.h"
#include "client/cpp/io/npy_header.h"

namespace voxserve::client {
namespace {

constexpr absl::string_view kExtension = ".npy";

}  // namespace

bool IsTensorFile(const std::string& path) { return absl::EndsWithIgnoreCase(path, kExtension); }

absl::StatusOr<std::vector<std::string>> WriteTensors(const std::string& path, const std::vector<Tensor>& tensors) {
  if (!IsTensorFile(path)) return absl::InvalidArgumentError(absl::StrCat(path, ": tensors are written as .npy"));
  const std::string prefix = path.substr(0, path.size() - kExtension.size());
  std::vector<std::string> written;
  const auto write = [&](const std::string& name, absl::string_view dtype, const std::vector<uint64_t>& shape,
                         absl::string_view data) {
    written.push_back(absl::StrCat(prefix, ".", name, kExtension));
    return WriteFile(written.back(), absl::StrCat(MakeNpyHeader(dtype, shape), data));
  };
  for (const Tensor& tensor : tensors) {
    // The server names the files: none may lie elsewhere.
    if (tensor.name.find_first_of(std::string("/\\\0", 3)) != std::string::npos) {
      return absl::InvalidArgumentError(absl::StrCat("\"", tensor.name, "\" is no name of a file"));
    }
    const absl::string_view dtype = tensor.type == v1::ELEMENT_TYPE_FLOAT16 ? "'<f2'" : "'<f4'";
    if (absl::Status status = write(tensor.name, dtype, tensor.shape, tensor.data); !status.ok()) return status;
    if (tensor.kind != v1::TENSOR_ROWS_SITES) continue;
    const uint64_t axes = tensor.unit.size();
    absl::Status status =
        write(tensor.name + ".coordinates", "'<i4'", {tensor.shape[0], axes}, tensor.coordinate_bytes);
    if (!status.ok()) return status;
    const absl::string_view unit(reinterpret_cast<const char*>(tensor.unit.data()), axes * sizeof(double));
    if (status = write(tensor.name + ".unit", "'<f8'", {axes}, unit); !status.ok()) return status;
  }
  return written;
}

}  // namespace voxserve::client
