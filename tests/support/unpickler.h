#pragma once

// The pickle machine behind torch_file.h: the 34 opcodes of protocol 2 that torch.save uses, every operand and stack
// access checked. No code runs: REDUCE knows torch._utils._rebuild_tensor_v2 and collections.OrderedDict alone.
// Reference: CPython's Lib/pickletools.py.

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tests/support/torch_file.h"

namespace voxserve::support {

class Unpickler {
 public:
  // The bytes of the storage with this key.
  using ReadStorage = std::function<absl::StatusOr<std::string>(const std::string& key)>;

  // Values are appended to *values and refer to each other; both arguments outlive the Unpickler.
  Unpickler(absl::string_view pickle, ReadStorage read_storage, std::deque<TorchValue>* values)
      : pickle_(pickle), read_storage_(std::move(read_storage)), values_(values) {}

  // The value that the pickle leaves. Call once.
  absl::StatusOr<const TorchValue*> Run();

 private:
  using Kind = TorchValue::Kind;

  // What lies on the stack: a value of the tree, or something that only the machine sees.
  struct Item {
    enum class What { kValue, kGlobal, kStorage } what = What::kValue;
    TorchValue* value = nullptr;
    std::string name = "";   // a global's "module name", a storage's key
    std::string dtype = "";  // of a storage
    int64_t num_elements = 0;
  };

  absl::Status Step(uint8_t opcode);
  absl::Status Push(Item item);
  TorchValue* New(Kind kind);
  absl::Status PushNew(Kind kind, int64_t value = 0);
  absl::StatusOr<absl::string_view> Take(uint64_t bytes);
  template <typename T>
  absl::StatusOr<T> Operand();  // little-endian
  absl::StatusOr<absl::string_view> Line();
  absl::StatusOr<Item> Pop();
  absl::StatusOr<std::vector<Item>> PopToMark();
  absl::StatusOr<std::vector<Item>> PopCount(size_t count);

  absl::Status Get(uint64_t slot);
  absl::Status Put(uint64_t slot);
  absl::Status Tuple(absl::StatusOr<std::vector<Item>> items);
  absl::Status Append(absl::StatusOr<std::vector<Item>> items);
  absl::Status SetItems(absl::StatusOr<std::vector<Item>> items);
  absl::Status PersistentId();
  absl::Status Reduce();
  absl::Status RebuildTensor(const TorchValue& arguments, const Item& storage);
  absl::StatusOr<const std::string*> Storage(const Item& item);

  absl::string_view pickle_;
  ReadStorage read_storage_;
  std::deque<TorchValue>* values_;
  uint64_t at_ = 0;
  bool stopped_ = false;
  std::vector<Item> stack_;
  std::vector<size_t> marks_;
  std::map<uint64_t, Item> memo_;
  // A tuple's members that are no values: the arguments of _rebuild_tensor_v2 and a persistent id hold some.
  std::map<const TorchValue*, std::vector<Item>> raw_members_;
  std::map<std::string, std::string> storages_;
};

}  // namespace voxserve::support
