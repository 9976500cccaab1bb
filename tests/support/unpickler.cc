#include "tests/support/unpickler.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace voxserve::support {
namespace {

// Opcodes, by pickletools' names.
enum Opcode : uint8_t {
  kMark = '(',
  kStop = '.',
  kBinInt = 'J',
  kBinInt1 = 'K',
  kBinInt2 = 'M',
  kNone = 'N',
  kBinPersId = 'Q',
  kReduce = 'R',
  kBinUnicode = 'X',
  kAppend = 'a',
  kGlobal = 'c',
  kAppends = 'e',
  kBinGet = 'h',
  kLongBinGet = 'j',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kSetItem = 's',
  kTuple = 't',
  kSetItems = 'u',
  kEmptyTuple = ')',
  kEmptyList = ']',
  kEmptyDict = '}',
  kBinFloat = 'G',
  kProto = 0x80,
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kLong1 = 0x8a,
};

constexpr absl::string_view kRebuildTensor = "torch._utils _rebuild_tensor_v2";
constexpr absl::string_view kOrderedDict = "collections OrderedDict";
// Strides of 0 let a few bytes claim a tensor of any size.
constexpr int64_t kMaxTensorBytes = int64_t{1} << 32;

absl::StatusOr<std::string> StorageDtype(absl::string_view global) {
  constexpr std::pair<absl::string_view, absl::string_view> kDtypes[] = {
      {"torch FloatStorage", "<f4"}, {"torch DoubleStorage", "<f8"}, {"torch HalfStorage", "<f2"},
      {"torch IntStorage", "<i4"},   {"torch LongStorage", "<i8"},   {"torch ShortStorage", "<i2"},
      {"torch CharStorage", "|i1"},  {"torch ByteStorage", "|u1"},   {"torch BoolStorage", "|b1"},
  };
  for (const auto& [name, dtype] : kDtypes) {
    if (name == global) return std::string(dtype);
  }
  return absl::UnimplementedError(absl::StrCat("storage of type '", global, "'"));
}

int64_t ElementBytes(const std::string& dtype) { return dtype[2] - '0'; }

}  // namespace

absl::StatusOr<const TorchValue*> Unpickler::Run() {
  while (!stopped_) {
    const uint64_t at = at_;
    ASSIGN_OR_RETURN(const uint8_t opcode, Operand<uint8_t>());
    if (const absl::Status status = Step(opcode); !status.ok()) {
      return absl::Status(status.code(), absl::StrCat("pickle byte ", at, ": ", status.message()));
    }
  }
  ASSIGN_OR_RETURN(const Item item, Pop());
  if (item.what != Item::What::kValue) return absl::DataLossError("the pickle leaves no value");
  return item.value;
}

absl::Status Unpickler::Step(uint8_t opcode) {
  switch (opcode) {
    case kProto: {
      ASSIGN_OR_RETURN(const uint8_t version, Operand<uint8_t>());
      return version == 2 ? absl::OkStatus() : absl::UnimplementedError(absl::StrCat("pickle protocol ", version));
    }
    case kStop:
      stopped_ = true;
      return absl::OkStatus();
    case kMark:
      marks_.push_back(stack_.size());
      return absl::OkStatus();
    case kNone:
      return PushNew(Kind::kNone);
    case kNewTrue:
      return PushNew(Kind::kBool, 1);
    case kNewFalse:
      return PushNew(Kind::kBool, 0);
    case kBinInt: {
      ASSIGN_OR_RETURN(const int32_t value, Operand<int32_t>());
      return PushNew(Kind::kInt, value);
    }
    case kBinInt1: {
      ASSIGN_OR_RETURN(const uint8_t value, Operand<uint8_t>());
      return PushNew(Kind::kInt, value);
    }
    case kBinInt2: {
      ASSIGN_OR_RETURN(const uint16_t value, Operand<uint16_t>());
      return PushNew(Kind::kInt, value);
    }
    case kLong1: {
      ASSIGN_OR_RETURN(const uint8_t bytes, Operand<uint8_t>());
      if (bytes > sizeof(int64_t)) return absl::UnimplementedError(absl::StrCat("int of ", bytes, " bytes"));
      ASSIGN_OR_RETURN(const absl::string_view text, Take(bytes));
      const bool negative = bytes > 0 && (text.back() & 0x80) != 0;
      int64_t value = negative ? -1 : 0;
      std::memcpy(&value, text.data(), bytes);
      return PushNew(Kind::kInt, value);
    }
    case kBinFloat: {  // the one big-endian operand
      ASSIGN_OR_RETURN(const absl::string_view text, Take(sizeof(double)));
      std::string little(text.rbegin(), text.rend());
      TorchValue* value = New(Kind::kFloat);
      std::memcpy(&value->float_, little.data(), sizeof(double));
      return Push({.value = value});
    }
    case kBinUnicode: {
      ASSIGN_OR_RETURN(const uint32_t bytes, Operand<uint32_t>());
      ASSIGN_OR_RETURN(const absl::string_view text, Take(bytes));
      TorchValue* value = New(Kind::kString);
      value->string_ = std::string(text);
      return Push({.value = value});
    }
    case kEmptyList:
      return PushNew(Kind::kList);
    case kEmptyDict:
      return PushNew(Kind::kDict);
    case kEmptyTuple:
      return Tuple(std::vector<Item>());
    case kTuple1:
      return Tuple(PopCount(1));
    case kTuple2:
      return Tuple(PopCount(2));
    case kTuple3:
      return Tuple(PopCount(3));
    case kTuple:
      return Tuple(PopToMark());
    case kAppend:
      return Append(PopCount(1));
    case kAppends:
      return Append(PopToMark());
    case kSetItem:
      return SetItems(PopCount(2));
    case kSetItems:
      return SetItems(PopToMark());
    case kBinGet: {
      ASSIGN_OR_RETURN(const uint8_t slot, Operand<uint8_t>());
      return Get(slot);
    }
    case kLongBinGet: {
      ASSIGN_OR_RETURN(const uint32_t slot, Operand<uint32_t>());
      return Get(slot);
    }
    case kBinPut: {
      ASSIGN_OR_RETURN(const uint8_t slot, Operand<uint8_t>());
      return Put(slot);
    }
    case kLongBinPut: {
      ASSIGN_OR_RETURN(const uint32_t slot, Operand<uint32_t>());
      return Put(slot);
    }
    case kGlobal: {
      ASSIGN_OR_RETURN(const absl::string_view module, Line());
      ASSIGN_OR_RETURN(const absl::string_view name, Line());
      return Push({.what = Item::What::kGlobal, .name = absl::StrCat(module, " ", name)});
    }
    case kBinPersId:
      return PersistentId();
    case kReduce:
      return Reduce();
    default:
      return absl::UnimplementedError(absl::StrCat("opcode 0x", absl::Hex(opcode)));
  }
}

absl::Status Unpickler::Push(Item item) {
  stack_.push_back(std::move(item));
  return absl::OkStatus();
}

TorchValue* Unpickler::New(Kind kind) {
  values_->emplace_back();
  values_->back().kind_ = kind;
  return &values_->back();
}

absl::Status Unpickler::PushNew(Kind kind, int64_t value) {
  TorchValue* made = New(kind);
  made->int_ = value;
  return Push({.value = made});
}

absl::StatusOr<absl::string_view> Unpickler::Take(uint64_t bytes) {
  if (bytes > pickle_.size() - at_) {
    return absl::DataLossError(absl::StrCat("needs ", bytes, " bytes, ", pickle_.size() - at_, " are left"));
  }
  const absl::string_view taken = pickle_.substr(at_, bytes);
  at_ += bytes;
  return taken;
}

template <typename T>
absl::StatusOr<T> Unpickler::Operand() {
  ASSIGN_OR_RETURN(const absl::string_view text, Take(sizeof(T)));
  T value;
  std::memcpy(&value, text.data(), sizeof(T));
  return value;
}

absl::StatusOr<absl::string_view> Unpickler::Line() {
  const size_t end = pickle_.find('\n', at_);
  if (end == absl::string_view::npos) return absl::DataLossError("a name without end");
  const absl::string_view line = pickle_.substr(at_, end - at_);
  at_ = end + 1;
  return line;
}

absl::StatusOr<Unpickler::Item> Unpickler::Pop() {
  if (stack_.empty() || (!marks_.empty() && marks_.back() == stack_.size())) {
    return absl::DataLossError("pops an empty stack");
  }
  Item item = std::move(stack_.back());
  stack_.pop_back();
  return item;
}

absl::StatusOr<std::vector<Unpickler::Item>> Unpickler::PopToMark() {
  if (marks_.empty()) return absl::DataLossError("no mark on the stack");
  const size_t count = stack_.size() - marks_.back();
  marks_.pop_back();
  return PopCount(count);
}

absl::StatusOr<std::vector<Unpickler::Item>> Unpickler::PopCount(size_t count) {
  std::vector<Item> items(count);
  for (size_t i = count; i-- > 0;) {
    ASSIGN_OR_RETURN(items[i], Pop());
  }
  return items;
}

absl::Status Unpickler::Get(uint64_t slot) {
  const auto found = memo_.find(slot);
  if (found == memo_.end()) return absl::DataLossError(absl::StrCat("memo slot ", slot, " is empty"));
  return Push(found->second);
}

absl::Status Unpickler::Put(uint64_t slot) {
  if (stack_.empty()) return absl::DataLossError("nothing to memoize");
  memo_[slot] = stack_.back();
  return absl::OkStatus();
}

absl::Status Unpickler::Tuple(absl::StatusOr<std::vector<Item>> items) {
  RETURN_IF_ERROR(items.status());
  TorchValue* tuple = New(Kind::kTuple);
  const bool all_values =
      std::all_of(items->begin(), items->end(), [](const Item& item) { return item.what == Item::What::kValue; });
  for (const Item& item : *items) {
    if (all_values) tuple->items_.push_back(item.value);
  }
  if (!all_values) raw_members_[tuple] = *std::move(items);
  return Push({.value = tuple});
}

absl::Status Unpickler::Append(absl::StatusOr<std::vector<Item>> items) {
  RETURN_IF_ERROR(items.status());
  if (stack_.empty() || stack_.back().value == nullptr || !stack_.back().value->is(Kind::kList)) {
    return absl::DataLossError("appends to what is no list");
  }
  for (const Item& item : *items) {
    if (item.what != Item::What::kValue) return absl::UnimplementedError(absl::StrCat("a list of '", item.name, "'"));
    stack_.back().value->items_.push_back(item.value);
  }
  return absl::OkStatus();
}

absl::Status Unpickler::SetItems(absl::StatusOr<std::vector<Item>> items) {
  RETURN_IF_ERROR(items.status());
  if (stack_.empty() || stack_.back().value == nullptr || !stack_.back().value->is(Kind::kDict)) {
    return absl::DataLossError("sets items of what is no dict");
  }
  if (items->size() % 2 != 0) return absl::DataLossError("a dict key without a value");
  auto& entries = stack_.back().value->entries_;
  for (size_t i = 0; i < items->size(); i += 2) {
    const Item& key = (*items)[i];
    const Item& value = (*items)[i + 1];
    if (key.value == nullptr || !key.value->is(Kind::kString))
      return absl::UnimplementedError("a dict key that is no str");
    if (value.what != Item::What::kValue) {
      return absl::UnimplementedError(absl::StrCat("a dict value '", value.name, "'"));
    }
    entries.emplace_back(key.value->string_, value.value);
  }
  return absl::OkStatus();
}

// ('storage', torch.FloatStorage, key, location, number of elements)
absl::Status Unpickler::PersistentId() {
  ASSIGN_OR_RETURN(const Item id, Pop());
  const auto found = raw_members_.find(id.value);
  if (found == raw_members_.end() || found->second.size() != 5) return absl::DataLossError("no persistent id");
  const std::vector<Item>& members = found->second;
  const auto is = [&](size_t i, Kind kind) { return members[i].value != nullptr && members[i].value->is(kind); };
  if (!is(0, Kind::kString) || members[0].value->string_ != "storage" || members[1].what != Item::What::kGlobal ||
      !is(2, Kind::kString) || !is(4, Kind::kInt) || members[4].value->int_ < 0) {
    return absl::DataLossError("the persistent id is no storage");
  }
  ASSIGN_OR_RETURN(std::string dtype, StorageDtype(members[1].name));
  return Push({.what = Item::What::kStorage,
               .name = members[2].value->string_,
               .dtype = std::move(dtype),
               .num_elements = members[4].value->int_});
}

absl::Status Unpickler::Reduce() {
  ASSIGN_OR_RETURN(const std::vector<Item> items, PopCount(2));
  const Item& function = items[0];
  const Item& arguments = items[1];
  if (function.what != Item::What::kGlobal || arguments.value == nullptr || !arguments.value->is(Kind::kTuple)) {
    return absl::DataLossError("no call of a global");
  }
  if (function.name == kOrderedDict && arguments.value->items_.empty()) return PushNew(Kind::kDict);
  if (function.name != kRebuildTensor) return absl::UnimplementedError(absl::StrCat("a call of '", function.name, "'"));
  const auto found = raw_members_.find(arguments.value);
  if (found == raw_members_.end() || found->second.size() < 4 || found->second[0].what != Item::What::kStorage) {
    return absl::DataLossError("a tensor without storage");
  }
  TorchValue rest;
  for (size_t i = 1; i < 4; ++i) {
    if (found->second[i].value == nullptr) return absl::DataLossError("a tensor without offset, size or stride");
    rest.items_.push_back(found->second[i].value);
  }
  return RebuildTensor(rest, found->second[0]);
}

// arguments: storage offset, sizes, strides, all in elements.
absl::Status Unpickler::RebuildTensor(const TorchValue& arguments, const Item& storage) {
  const TorchValue& first = *arguments.items_[0];
  const TorchValue& sizes = *arguments.items_[1];
  const TorchValue& strides = *arguments.items_[2];
  if (!first.is(Kind::kInt) || !sizes.is(Kind::kTuple) || !strides.is(Kind::kTuple) ||
      sizes.items_.size() != strides.items_.size()) {
    return absl::DataLossError("a tensor's offset, size and stride do not fit");
  }
  ASSIGN_OR_RETURN(const std::string* bytes, Storage(storage));
  const int64_t element_bytes = ElementBytes(storage.dtype);

  NpyArray array;
  array.dtype = storage.dtype;
  int64_t count = 1;
  int64_t last = first.int_;
  std::vector<int64_t> stride;
  for (size_t d = 0; d < sizes.items_.size(); ++d) {
    const TorchValue& size = *sizes.items_[d];
    const TorchValue& step = *strides.items_[d];
    constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
    if (!size.is(Kind::kInt) || !step.is(Kind::kInt) || size.int_ < 0 || size.int_ > kMax || step.int_ < 0 ||
        step.int_ > kMax || (size.int_ > 0 && count > kMaxTensorBytes / size.int_)) {
      return absl::DataLossError(absl::StrCat("a tensor's dimension ", d, " is out of range"));
    }
    array.shape.push_back(size.int_);
    stride.push_back(step.int_);
    count *= size.int_;
    last += std::max<int64_t>(size.int_ - 1, 0) * step.int_;
    if (last < 0 || last > kMaxTensorBytes) return absl::DataLossError("a tensor's stride is out of range");
  }
  if (count > kMaxTensorBytes / element_bytes) return absl::DataLossError("a tensor of more than 4 GiB");
  if (count > 0 && (first.int_ < 0 || last >= storage.num_elements)) {
    return absl::DataLossError(absl::StrCat("a tensor of elements ", first.int_, " to ", last, " in storage '",
                                            storage.name, "' of ", storage.num_elements));
  }

  array.bytes.reserve(static_cast<size_t>(count * element_bytes));
  std::vector<int64_t> index(stride.size(), 0);
  int64_t at = first.int_;
  for (int64_t i = 0; i < count; ++i) {
    array.bytes.append(*bytes, static_cast<size_t>(at * element_bytes), static_cast<size_t>(element_bytes));
    for (size_t d = index.size(); d-- > 0;) {
      at += stride[d];
      if (++index[d] < array.shape[d]) break;
      at -= stride[d] * array.shape[d];
      index[d] = 0;
    }
  }
  TorchValue* tensor = New(Kind::kTensor);
  tensor->tensor_ = std::move(array);
  return Push({.value = tensor});
}

absl::StatusOr<const std::string*> Unpickler::Storage(const Item& item) {
  const auto found = storages_.find(item.name);
  if (found != storages_.end() &&
      found->second.size() / ElementBytes(item.dtype) >= static_cast<uint64_t>(item.num_elements)) {
    return &found->second;
  }
  ASSIGN_OR_RETURN(std::string bytes, read_storage_(item.name));
  if (bytes.size() % ElementBytes(item.dtype) != 0 ||
      bytes.size() / ElementBytes(item.dtype) != static_cast<uint64_t>(item.num_elements)) {
    return absl::DataLossError(absl::StrCat("storage '", item.name, "' of ", item.num_elements, " x ", item.dtype,
                                            " has ", bytes.size(), " bytes"));
  }
  return &(storages_[item.name] = std::move(bytes));
}

}  // namespace voxserve::support
