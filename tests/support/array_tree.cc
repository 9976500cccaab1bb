#include "tests/support/array_tree.h"

#include <cstdlib>
#include <iostream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace voxserve::support {
namespace {

[[noreturn]] void Die(const std::string& message) {
  std::cerr << "ArrayTree: " << message << std::endl;
  std::abort();
}

}  // namespace

absl::StatusOr<ArrayTree> ArrayTree::Read(const std::string& path) {
  absl::StatusOr<Arrays> arrays = ReadNpz(path);
  if (!arrays.ok()) return arrays.status();
  return ArrayTree(std::make_shared<const Arrays>(*std::move(arrays)), "");
}

std::string ArrayTree::PathOf(absl::string_view key) const {
  return path_.empty() ? std::string(key) : absl::StrCat(path_, "/", key);
}

bool ArrayTree::Has(absl::string_view key) const {
  const std::string path = PathOf(key), folder = absl::StrCat(path, "/");
  const auto below = arrays_->lower_bound(folder);
  return arrays_->contains(path) || (below != arrays_->end() && absl::StartsWith(below->first, folder));
}

ArrayTree ArrayTree::at(absl::string_view key) const {
  if (!Has(key)) Die(absl::StrCat("there is no '", PathOf(key), "'"));
  return ArrayTree(arrays_, PathOf(key));
}

std::vector<ArrayTree> ArrayTree::items() const {
  std::vector<ArrayTree> items;
  while (Has(absl::StrCat(items.size()))) items.push_back(at(absl::StrCat(items.size())));
  return items;
}

const NpyArray& ArrayTree::tensor() const {
  const auto found = arrays_->find(path_);
  if (found == arrays_->end()) Die(absl::StrCat("'", path_, "' is no array"));
  return found->second;
}

bool ArrayTree::AsBool() const { return *tensor().data<bool>(); }

int64_t ArrayTree::AsInt() const { return *tensor().data<int64_t>(); }

std::vector<int64_t> ArrayTree::AsInts() const { return tensor().values<int64_t>(); }

std::vector<double> ArrayTree::AsFloats() const {
  if (tensor().dtype != NpyDtype<int64_t>()) return tensor().values<double>();
  const std::vector<int64_t> values = AsInts();
  return {values.begin(), values.end()};
}

std::string ArrayTree::AsString() const {
  tensor().data<uint8_t>();  // ends the process if these are not bytes
  return tensor().bytes;
}

}  // namespace voxserve::support
