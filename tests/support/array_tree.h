#pragma once

// ArrayTree is a view of one node of an NPZ file whose array names are paths: "cases/0/expect/voxels" holds the
// expected voxels of case 0. tests/oracles/torch_to_npz.py writes such files from the published outputs of other
// projects.
//
//   const ArrayTree file = ArrayTree::Read(path).value();
//   for (const ArrayTree& one : file.at("cases").items()) {
//     const NpyArray& points = one.at("points").tensor();
//
// Copies are cheap and share the arrays, so a reference to an array is valid as long as any view of its file exists.
// The accessors are for tests: a wrong access ends the process with a line that names the node.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tests/support/npz.h"

namespace voxserve::support {

class ArrayTree {
 public:
  // Returns the root of the file, or the error of ReadNpz.
  static absl::StatusOr<ArrayTree> Read(const std::string& path);

  bool Has(absl::string_view key) const;
  ArrayTree at(absl::string_view key) const;
  std::vector<ArrayTree> items() const;  // the nodes named 0, 1, 2, ...

  const NpyArray& tensor() const;
  bool AsBool() const;
  int64_t AsInt() const;
  std::vector<int64_t> AsInts() const;
  std::vector<double> AsFloats() const;  // also converts integers
  std::string AsString() const;          // reads UTF-8 bytes

 private:
  using Arrays = std::map<std::string, NpyArray>;

  ArrayTree(std::shared_ptr<const Arrays> arrays, std::string path)
      : arrays_(std::move(arrays)), path_(std::move(path)) {}
  std::string PathOf(absl::string_view key) const;

  std::shared_ptr<const Arrays> arrays_;
  std::string path_;  // "" for the whole file
};

}  // namespace voxserve::support
