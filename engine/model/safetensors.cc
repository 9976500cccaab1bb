#include "engine/model/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/quoted.h"
#include "engine/tensor/float16.h"
#include "nlohmann/json.hpp"

namespace voxserve {
namespace {

using Json = nlohmann::json;

constexpr char kSafetensorsFile[] = "weights.safetensors";

// Returns the bytes of one value; 0 for a type that the format does not have.
uint64_t BytesOf(const std::string& dtype) {
  static const std::map<std::string, uint64_t>* const kBytes = new std::map<std::string, uint64_t>{
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E5M2", 1}, {"F8_E4M3", 1}, {"I16", 2}, {"U16", 2}, {"F16", 2},
      {"BF16", 2}, {"I32", 4}, {"U32", 4}, {"F32", 4},     {"I64", 8},     {"U64", 8}, {"F64", 8}};
  const auto found = kBytes->find(dtype);
  return found == kBytes->end() ? 0 : found->second;
}

ProblemsAt AtFile(Problems* problems) { return {kSafetensorsFile, problems}; }

uint64_t LoadLittleEndian64(const char* bytes) {
  uint64_t value = 0;
  for (int i = 7; i >= 0; --i) value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

// HeaderReader gets the tokens of a header from the JSON library, and keeps only the entry that is being read as it
// stands in the file.
class HeaderReader final : public nlohmann::json_sax<Json> {
 public:
  HeaderReader(uint64_t data_bytes, Problems* problems) : data_bytes_(data_bytes), problems_(problems) {}

  StoredTensors Read(std::string_view text) {
    if (!Json::sax_parse(text.begin(), text.end(), this)) return {};
    CheckCoverage();
    tensors_.is_listed = true;
    return std::move(tensors_);
  }

  // The library calls these for each token. One that returns false ends the reading.
  bool null() override { return AddValue(); }
  bool boolean(bool /*value*/) override { return AddValue(); }
  bool number_integer(int64_t /*value*/) override { return AddValue(); }  // it is negative
  bool number_float(double /*value*/, const std::string& /*text*/) override { return AddValue(); }
  bool binary(Json::binary_t& /*value*/) override { return AddValue(); }
  bool number_unsigned(uint64_t value) override {
    if (list_ == nullptr || depth_ != kInList || list_->values.size() == kMostListed) return AddValue();
    list_->values.push_back(value);
    return true;
  }
  bool string(std::string& value) override {
    if (depth_ != kInEntry || field_ != "dtype") return AddValue();
    entry_.dtype = std::move(value);
    return true;
  }
  bool start_object(size_t /*size*/) override { return Begin(false); }
  bool start_array(size_t /*size*/) override { return Begin(true); }
  bool end_object() override { return End(); }
  bool end_array() override { return End(); }
  bool key(std::string& name) override {
    if (depth_ == kInHeader) {
      entry_ = {.name = std::move(name)};
      field_.clear();
    } else if (depth_ == kInEntry) {
      field_ = std::move(name);
    }
    return true;
  }
  bool parse_error(size_t /*position*/, const std::string& /*last_token*/,
                   const nlohmann::detail::exception& error) override {
    AtFile().Add("its header is not valid JSON (", absl::Utf8SafeCEscape(error.what()), ")");
    return false;
  }

 private:
  // Numbers of objects and arrays around a token.
  static constexpr size_t kInHeader = 1;
  static constexpr size_t kInEntry = 2;
  static constexpr size_t kInList = 3;
  static constexpr size_t kMostListed = 16;  // sizes of a shape; the tensors of networks have at most 6

  struct List {
    bool is_list = false;
    bool has_others = false;  // values that are no integers from 0 on, or more than kMostListed
    std::vector<uint64_t> values;
  };
  struct Entry {
    std::string name;
    std::optional<std::string> dtype;
    List shape;
    List offsets;
  };
  struct Extent {
    uint64_t begin;
    uint64_t end;
    std::string name;
  };

  ProblemsAt AtFile() const { return voxserve::AtFile(problems_); }
  ProblemsAt At(const std::string& name) const { return {absl::StrCat("tensor ", Quoted(name)), problems_}; }

  // Takes a value whose type does not belong to its place, or that is not read.
  bool AddValue() {
    if (depth_ == 0) return RefuseHeader();
    if (list_ != nullptr) list_->has_others = true;
    return depth_ == kInHeader ? EndEntry() : true;
  }

  bool Begin(bool is_array) {
    if (depth_ == 0 && is_array) return RefuseHeader();
    if (list_ != nullptr) list_->has_others = true;
    if (depth_ == kInEntry && is_array) {
      list_ = field_ == "shape" ? &entry_.shape : field_ == "data_offsets" ? &entry_.offsets : nullptr;
      if (list_ != nullptr) *list_ = {.is_list = true};
    }
    ++depth_;
    return true;
  }

  bool End() {
    --depth_;
    if (depth_ == kInEntry) list_ = nullptr;
    return depth_ == kInHeader ? EndEntry() : true;
  }

  bool RefuseHeader() {
    AtFile().Add("its header is not a JSON object");
    return false;
  }

  bool EndEntry() {
    if (entry_.name == "__metadata__") return true;
    if (tensors_.by_name.count(entry_.name) > 0 || tensors_.broken.count(entry_.name) > 0) {
      At(entry_.name).Add("appears twice in ", kSafetensorsFile);
      return true;
    }
    if (++num_entries_ > kMaxStoredTensors) {
      AtFile().Add("has more than ", kMaxStoredTensors, " tensors; at most so many are possible");
      return false;
    }
    if (!AddTensor()) tensors_.broken.insert(entry_.name);
    return true;
  }

  // Returns false if it has reported a problem of the tensor.
  bool AddTensor() {
    const std::string& name = entry_.name;
    if (!entry_.dtype || !entry_.shape.is_list || !entry_.offsets.is_list) {
      At(name).Add("its header entry needs dtype, shape and data_offsets");
      return false;
    }
    StoredTensor tensor{.dtype = *entry_.dtype};
    const uint64_t value_bytes = BytesOf(tensor.dtype);
    if (value_bytes == 0) {
      At(name).Add("has the unknown dtype ", Quoted(tensor.dtype));
      return false;
    }
    if (!ReadShape(entry_.shape, value_bytes, &tensor.shape, &tensor.num_bytes)) {
      At(name).Add("its shape is not a list of sizes, or too large");
      return false;
    }
    if (entry_.offsets.has_others || entry_.offsets.values.size() != 2) {
      At(name).Add("its data_offsets are not [begin, end]");
      return false;
    }
    tensor.begin = entry_.offsets.values[0];
    const uint64_t end = entry_.offsets.values[1];
    if (tensor.begin > end || end > data_bytes_) {
      At(name).Add("has data_offsets [", tensor.begin, ", ", end, "] outside of the file's ", data_bytes_,
                   " data bytes");
      return false;
    }
    extents_.push_back({tensor.begin, end, name});
    if (end - tensor.begin != tensor.num_bytes) {
      At(name).Add("has ", end - tensor.begin, " bytes, but ", tensor.dtype, " [", absl::StrJoin(tensor.shape, ", "),
                   "] takes ", tensor.num_bytes);
      return false;
    }
    tensors_.by_name.emplace(name, std::move(tensor));
    return true;
  }

  // Returns false if a size is not an integer from 0 to 2^63 - 1, if there are more than kMostListed, or if the product
  // of value_bytes and the sizes other than 0 overflows.
  static bool ReadShape(const List& sizes, uint64_t value_bytes, std::vector<int64_t>* shape, uint64_t* num_bytes) {
    if (sizes.has_others) return false;
    bool is_empty = false;
    *num_bytes = value_bytes;
    for (const uint64_t size : sizes.values) {
      if (size > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return false;
      if (__builtin_mul_overflow(*num_bytes, std::max<uint64_t>(size, 1), num_bytes)) return false;
      is_empty = is_empty || size == 0;
      shape->push_back(static_cast<int64_t>(size));
    }
    if (is_empty) *num_bytes = 0;
    return true;
  }

  // Tensors must lie one after the other and fill the file.
  void CheckCoverage() {
    std::sort(extents_.begin(), extents_.end(), [](const Extent& a, const Extent& b) {
      return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
    });
    uint64_t covered = 0;
    const std::string* before = nullptr;
    for (const Extent& extent : extents_) {
      if (extent.begin < covered) {
        At(extent.name)
            .Add("begins at data byte ", extent.begin, " and overlaps tensor ", Quoted(*before), ", which ends at ",
                 covered);
      } else if (extent.begin > covered) {
        ReportGap(covered, extent.begin);
      }
      if (extent.end >= covered) {
        covered = extent.end;
        before = &extent.name;
      }
    }
    if (covered < data_bytes_) ReportGap(covered, data_bytes_);
  }

  // Reports bytes that belong to no tensor. If the byte range of an entry could not be read, reports nothing: the bytes
  // may belong to that entry, and its problem has been reported.
  void ReportGap(uint64_t begin, uint64_t end) const {
    if (extents_.size() == num_entries_) AtFile().Add("data bytes ", begin, " to ", end, " belong to no tensor");
  }

  const uint64_t data_bytes_;
  Problems* const problems_;
  StoredTensors tensors_;
  std::vector<Extent> extents_;
  size_t num_entries_ = 0;

  size_t depth_ = 0;      // objects and arrays around the next token
  Entry entry_;           // the entry that is being read
  std::string field_;     // its last key
  List* list_ = nullptr;  // the list of entry_ that is being read; null: none
};

template <typename Bits, typename Convert>
void ConvertValues(std::string_view bytes, std::vector<float>* values, Convert convert) {
  for (size_t i = 0; i < values->size(); ++i) {
    Bits bits;
    std::memcpy(&bits, bytes.data() + i * sizeof(Bits), sizeof(Bits));
    (*values)[i] = convert(bits);
  }
}

}  // namespace

std::optional<uint64_t> HeaderBytesOf(std::string_view beginning, uint64_t file_bytes, Problems* problems) {
  if (beginning.size() < kSafetensorsSizeBytes) {
    AtFile(problems).Add("has ", file_bytes, " bytes; the header's size alone takes ", kSafetensorsSizeBytes);
    return std::nullopt;
  }
  const uint64_t header_bytes = LoadLittleEndian64(beginning.data());
  if (header_bytes > kMaxSafetensorsHeaderBytes || header_bytes > file_bytes - kSafetensorsSizeBytes) {
    AtFile(problems).Add("says that its header has ", header_bytes, " bytes, of ", file_bytes - kSafetensorsSizeBytes,
                         " after the size; at most ", kMaxSafetensorsHeaderBytes, " are possible");
    return std::nullopt;
  }
  return header_bytes;
}

StoredTensors ParseSafetensorsHeader(std::string_view header, uint64_t data_bytes, Problems* problems) {
  return HeaderReader(data_bytes, problems).Read(header);
}

void SetData(std::string_view data, StoredTensors* tensors) {
  for (auto& [name, tensor] : tensors->by_name) tensor.bytes = data.substr(tensor.begin, tensor.num_bytes);
  tensors->has_data = true;
}

StoredTensors ParseSafetensors(std::string_view file, Problems* problems) {
  const std::optional<uint64_t> header_bytes =
      HeaderBytesOf(file.substr(0, kSafetensorsSizeBytes), file.size(), problems);
  if (!header_bytes.has_value()) return {};
  const std::string_view data = file.substr(kSafetensorsSizeBytes + *header_bytes);
  StoredTensors tensors =
      ParseSafetensorsHeader(file.substr(kSafetensorsSizeBytes, *header_bytes), data.size(), problems);
  SetData(data, &tensors);
  return tensors;
}

int64_t NumValues(const StoredTensor& tensor) {
  if (tensor.num_bytes == 0) return 0;  // one size is 0, and the product of the others might overflow
  int64_t num_values = 1;
  for (const int64_t size : tensor.shape) num_values *= size;
  return num_values;
}

bool IsFloatTensor(const StoredTensor& tensor) {
  return tensor.dtype == "F32" || tensor.dtype == "F16" || tensor.dtype == "BF16";
}

HostTensor ToHostTensor(const StoredTensor& tensor) {
  HostTensor host;
  host.shape = tensor.shape;
  host.values.resize(NumValues(tensor));
  if (tensor.dtype == "F32") {
    ConvertValues<uint32_t>(tensor.bytes, &host.values, [](uint32_t bits) { return std::bit_cast<float>(bits); });
  } else if (tensor.dtype == "F16") {
    ConvertValues<uint16_t>(tensor.bytes, &host.values, Float16ToFloat);
  } else {
    ConvertValues<uint16_t>(tensor.bytes, &host.values, Bfloat16ToFloat);
  }
  return host;
}

}  // namespace voxserve
