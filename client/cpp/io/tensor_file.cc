#include "client/cpp/io/tensor_file.h"

#include <cstdint>
#include <set>
#include <utility>

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

std::vector<std::string> TensorFiles(const std::string& path, const std::string& name, v1::TensorRows kind) {
  const std::string prefix = absl::StrCat(path.substr(0, path.size() - kExtension.size()), ".", name);
  std::vector<std::string> files = {absl::StrCat(prefix, kExtension)};
  if (kind == v1::TENSOR_ROWS_SITES) {
    files.push_back(absl::StrCat(prefix, ".coordinates", kExtension));
    files.push_back(absl::StrCat(prefix, ".unit", kExtension));
  }
  return files;
}

absl::StatusOr<std::vector<std::string>> WriteTensors(const std::string& path, const std::vector<Tensor>& tensors) {
  if (!IsTensorFile(path)) return absl::InvalidArgumentError(absl::StrCat(path, ": tensors are written as .npy"));
  std::vector<std::string> written;
  std::set<std::string> places;
  for (const Tensor& tensor : tensors) {
    // The server chooses these names, so a name must not lead out of the folder.
    if (tensor.name.find_first_of(std::string("/\\\0", 3)) != std::string::npos) {
      return absl::InvalidArgumentError(absl::StrCat("\"", tensor.name, "\" is no name of a file"));
    }
    for (std::string& file : TensorFiles(path, tensor.name, tensor.kind)) {
      if (!places.insert(file).second) return absl::InvalidArgumentError(absl::StrCat(file, " would be written twice"));
      written.push_back(std::move(file));
    }
  }
  auto file = written.begin();
  const auto write = [&file](absl::string_view dtype, const std::vector<uint64_t>& shape, absl::string_view data) {
    return WriteFile(*file++, absl::StrCat(MakeNpyHeader(dtype, shape), data));
  };
  for (const Tensor& tensor : tensors) {
    const absl::string_view dtype = tensor.type == v1::ELEMENT_TYPE_FLOAT16 ? "'<f2'" : "'<f4'";
    if (absl::Status status = write(dtype, tensor.shape, tensor.data); !status.ok()) return status;
    if (tensor.kind != v1::TENSOR_ROWS_SITES) continue;
    const uint64_t axes = tensor.unit.size();
    absl::Status status = write("'<i4'", {tensor.shape[0], axes}, tensor.coordinate_bytes);
    if (!status.ok()) return status;
    const absl::string_view unit(reinterpret_cast<const char*>(tensor.unit.data()), axes * sizeof(double));
    if (status = write("'<f8'", {axes}, unit); !status.ok()) return status;
  }
  return written;
}

}  // namespace voxserve::client
