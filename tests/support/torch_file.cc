#include "tests/support/torch_file.h"

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/support/unpickler.h"
#include "tests/support/zip.h"

namespace voxserve::support {
namespace {

absl::string_view KindName(TorchValue::Kind kind) {
  constexpr absl::string_view kNames[] = {"None", "bool", "int", "float", "str", "list", "tuple", "dict", "tensor"};
  return kNames[static_cast<int>(kind)];
}

[[noreturn]] void Die(const std::string& message) {
  std::cerr << "TorchValue: " << message << std::endl;
  std::abort();
}

}  // namespace

const TorchValue& TorchValue::Expect(Kind kind) const {
  if (kind_ != kind) Die(absl::StrCat("asked for ", KindName(kind), ", is ", KindName(kind_)));
  return *this;
}

bool TorchValue::AsBool() const { return Expect(Kind::kBool).int_ != 0; }
int64_t TorchValue::AsInt() const { return Expect(Kind::kInt).int_; }
double TorchValue::AsFloat() const {
  return kind_ == Kind::kInt ? static_cast<double>(int_) : Expect(Kind::kFloat).float_;
}
const std::string& TorchValue::AsString() const { return Expect(Kind::kString).string_; }
const NpyArray& TorchValue::tensor() const { return Expect(Kind::kTensor).tensor_; }

const std::vector<const TorchValue*>& TorchValue::items() const {
  return kind_ == Kind::kTuple ? items_ : Expect(Kind::kList).items_;
}

std::vector<int64_t> TorchValue::AsInts() const {
  std::vector<int64_t> values;
  for (const TorchValue* item : items()) values.push_back(item->AsInt());
  return values;
}

const std::vector<std::pair<std::string, const TorchValue*>>& TorchValue::entries() const {
  return Expect(Kind::kDict).entries_;
}

const TorchValue* TorchValue::Find(absl::string_view key) const {
  const auto found = std::find_if(entries().begin(), entries().end(), [&](const auto& e) { return e.first == key; });
  return found == entries().end() ? nullptr : found->second;
}

const TorchValue& TorchValue::at(absl::string_view key) const {
  const TorchValue* value = Find(key);
  if (value == nullptr) {
    std::string keys;
    for (const auto& [name, entry] : entries()) absl::StrAppend(&keys, " ", name);
    Die(absl::StrCat("no key '", key, "'; there are:", keys));
  }
  return *value;
}

absl::StatusOr<TorchFile> TorchFile::Open(const std::string& path) {
  const absl::StatusOr<ZipArchive> archive = ZipArchive::Open(path);
  if (!archive.ok()) return archive.status();
  const auto in_file = [&](const absl::Status& status) {
    return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
  };

  // Every entry lies in one folder, named after the file as it was saved.
  constexpr absl::string_view kPickle = "/data.pkl";
  std::string folder;
  for (const std::string& name : archive->names()) {
    if (absl::EndsWith(name, kPickle)) folder = name.substr(0, name.size() - kPickle.size());
  }
  if (folder.empty()) return in_file(absl::DataLossError("no data.pkl: not written by torch.save"));
  if (const std::string name = folder + "/byteorder"; archive->Has(name)) {
    const absl::StatusOr<std::string> order = archive->Read(name);
    if (!order.ok()) return in_file(order.status());
    if (*order != "little") return in_file(absl::UnimplementedError(absl::StrCat("byte order '", *order, "'")));
  }
  const absl::StatusOr<std::string> pickle = archive->Read(absl::StrCat(folder, kPickle));
  if (!pickle.ok()) return in_file(pickle.status());

  TorchFile file;
  Unpickler unpickler(
      *pickle, [&](const std::string& key) { return archive->Read(absl::StrCat(folder, "/data/", key)); },
      &file.values_);
  const absl::StatusOr<const TorchValue*> root = unpickler.Run();
  if (!root.ok()) return in_file(root.status());
  file.root_ = *root;
  return file;
}

}  // namespace voxserve::support
