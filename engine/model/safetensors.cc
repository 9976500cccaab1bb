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

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
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

class Parser {
 public:
  Parser(uint64_t data_bytes, Problems* problems) : data_bytes_(data_bytes), problems_(problems) {}

  StoredTensors Parse(std::string_view text) {
    Json header;
    if (!ParseHeader(text, &header)) return {};
    for (const auto& [name, entry] : header.items()) {
      if (name == "__metadata__") continue;
      ++num_entries_;
      if (!AddTensor(name, entry)) tensors_.broken.insert(name);
    }
    CheckCoverage();
    tensors_.is_listed = true;
    return std::move(tensors_);
  }

 private:
  struct Extent {
    uint64_t begin;
    uint64_t end;
    std::string name;
  };

  ProblemsAt AtFile() const { return voxserve::AtFile(problems_); }
  ProblemsAt At(const std::string& name) const { return {absl::StrCat("tensor ", Quoted(name)), problems_}; }

  // The JSON library silently keeps the last of two equal keys. So a callback records the names to find repeated ones.
  bool ParseHeader(std::string_view text, Json* header) {
    std::set<std::string> names;
    std::set<std::string> repeated;
    const auto watch_names = [&](int depth, Json::parse_event_t event, Json& value) {
      if (event == Json::parse_event_t::key && depth == 1) {
        const std::string name = value.get<std::string>();
        if (!names.insert(name).second) repeated.insert(name);
      }
      return true;
    };
    try {
      *header = Json::parse(text.begin(), text.end(), watch_names);
    } catch (const Json::exception& error) {
      AtFile().Add("its header is not valid JSON (", absl::Utf8SafeCEscape(error.what()), ")");
      return false;
    }
    if (!header->is_object()) {
      AtFile().Add("its header is not a JSON object");
      return false;
    }
    for (const std::string& name : repeated) At(name).Add("appears twice in ", kSafetensorsFile);
    return true;
  }

  // Returns false if it has reported a problem of the tensor.
  bool AddTensor(const std::string& name, const Json& entry) {
    if (!entry.is_object() || !entry.contains("dtype") || !entry["dtype"].is_string() || !entry.contains("shape") ||
        !entry["shape"].is_array() || !entry.contains("data_offsets") || !entry["data_offsets"].is_array()) {
      At(name).Add("its header entry needs dtype, shape and data_offsets");
      return false;
    }
    StoredTensor tensor;
    tensor.dtype = entry["dtype"].get<std::string>();
    const uint64_t value_bytes = BytesOf(tensor.dtype);
    if (value_bytes == 0) {
      At(name).Add("has the unknown dtype ", Quoted(tensor.dtype));
      return false;
    }
    if (!ReadShape(entry["shape"], value_bytes, &tensor.shape, &tensor.num_bytes)) {
      At(name).Add("its shape is not a list of sizes, or too large");
      return false;
    }
    uint64_t end = 0;
    if (!ReadOffsets(entry["data_offsets"], &tensor.begin, &end)) {
      At(name).Add("its data_offsets are not [begin, end]");
      return false;
    }
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

  // Returns false if a size is not an integer from 0 to 2^63 - 1, or if the product of value_bytes and the sizes other
  // than 0 overflows.
  static bool ReadShape(const Json& sizes, uint64_t value_bytes, std::vector<int64_t>* shape, uint64_t* num_bytes) {
    bool is_empty = false;
    *num_bytes = value_bytes;
    for (const Json& size : sizes) {
      if (!size.is_number_unsigned()) return false;
      const auto value = size.get<uint64_t>();
      if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return false;
      if (__builtin_mul_overflow(*num_bytes, std::max<uint64_t>(value, 1), num_bytes)) return false;
      is_empty = is_empty || value == 0;
      shape->push_back(static_cast<int64_t>(value));
    }
    if (is_empty) *num_bytes = 0;
    return true;
  }

  static bool ReadOffsets(const Json& offsets, uint64_t* begin, uint64_t* end) {
    if (offsets.size() != 2 || !offsets[0].is_number_unsigned() || !offsets[1].is_number_unsigned()) return false;
    *begin = offsets[0].get<uint64_t>();
    *end = offsets[1].get<uint64_t>();
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
  if (header_bytes > kMaxHeaderBytes || header_bytes > file_bytes - kSafetensorsSizeBytes) {
    AtFile(problems).Add("says that its header has ", header_bytes, " bytes, of ", file_bytes - kSafetensorsSizeBytes,
                         " after the size; at most ", kMaxHeaderBytes, " are allowed");
    return std::nullopt;
  }
  return header_bytes;
}

StoredTensors ParseSafetensorsHeader(std::string_view header, uint64_t data_bytes, Problems* problems) {
  return Parser(data_bytes, problems).Parse(header);
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
