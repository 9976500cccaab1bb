#pragma once

// Reads the files that PyTorch's torch.save writes (zip with a pickle of protocol 2 and one entry a storage): nested
// dict, list, tuple, str, int, float, bool, None and CPU tensors of float16/32/64, int8/16/32/64, uint8 and bool,
// contiguous or strided. Nothing else of pickle is executed: every other global and opcode is refused by name. Used for
// outputs that other projects published.
//
//   TorchFile file = TorchFile::Open(path).value();
//   for (const TorchValue* one : file.root().at("cases").items()) {
//     const NpyArray& points = one->at("points").tensor();
//
// Damaged files give an error. The accessors are for tests: asking a value for what it is not ends the process with a
// line that says what was asked of what.

#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tests/support/npz.h"

namespace voxserve::support {

// One value of the tree; owned by its TorchFile.
class TorchValue {
 public:
  enum class Kind { kNone, kBool, kInt, kFloat, kString, kList, kTuple, kDict, kTensor };

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }

  bool AsBool() const;
  int64_t AsInt() const;
  double AsFloat() const;  // an int too
  const std::string& AsString() const;
  const NpyArray& tensor() const;  // C order, strides resolved

  // Lists, tuples.
  const std::vector<const TorchValue*>& items() const;
  std::vector<int64_t> AsInts() const;

  // Dicts with keys of type str, in the file's order. Find gives nullptr where the key is missing.
  const std::vector<std::pair<std::string, const TorchValue*>>& entries() const;
  const TorchValue* Find(absl::string_view key) const;
  const TorchValue& at(absl::string_view key) const;

 private:
  friend class Unpickler;
  const TorchValue& Expect(Kind kind) const;

  Kind kind_ = Kind::kNone;
  int64_t int_ = 0;
  double float_ = 0;
  std::string string_;
  NpyArray tensor_;
  std::vector<const TorchValue*> items_;
  std::vector<std::pair<std::string, const TorchValue*>> entries_;
};

class TorchFile {
 public:
  static absl::StatusOr<TorchFile> Open(const std::string& path);
  const TorchValue& root() const { return *root_; }

 private:
  TorchFile() = default;
  std::deque<TorchValue> values_;  // addresses stay when the file moves
  const TorchValue* root_ = nullptr;
};

}  // namespace voxserve::support
