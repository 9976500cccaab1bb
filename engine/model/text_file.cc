#include "engine/model/text_file.h"

#include <algorithm>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/base/regular_file.h"
#include "engine/base/utf8.h"
#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/stubs/common.h"
#include "google/protobuf/text_format.h"

namespace voxserve {
namespace {

// Replaces each byte that belongs to no UTF-8 character. The parser's messages quote bytes of the file, and clients
// could not read an answer that is not UTF-8.
std::string WithoutBrokenCharacters(absl::string_view text) {
  std::string whole;
  while (!text.empty()) {
    const std::optional<Utf8Character> character = FirstUtf8Character(text);
    const size_t size = character.has_value() ? character->size : 1;
    whole.append(character.has_value() ? text.data() : "?", size);
    text.remove_prefix(size);
  }
  return whole;
}

class ProblemCollector : public google::protobuf::io::ErrorCollector {
 public:
  ProblemCollector(const std::string& file_name, Problems* problems) : file_name_(file_name), problems_(problems) {}

  // A parser that allows unknown fields warns of each unknown field and continues. Otherwise it would stop at the first
  // one.
#if GOOGLE_PROTOBUF_VERSION >= 4022000  // protobuf 22 renamed these two methods
  void RecordError(int line, google::protobuf::io::ColumnNumber column, absl::string_view message) override {
    Add(line, column, message);
  }
  void RecordWarning(int line, google::protobuf::io::ColumnNumber column, absl::string_view message) override {
    Add(line, column, message);
  }
#else
  void AddError(int line, google::protobuf::io::ColumnNumber column, const std::string& message) override {
    Add(line, column, message);
  }
  void AddWarning(int line, google::protobuf::io::ColumnNumber column, const std::string& message) override {
    Add(line, column, message);
  }
#endif

 private:
  // The parser counts lines and columns from 0. Its line -1 means that an error belongs to the whole text.
  void Add(int line, google::protobuf::io::ColumnNumber column, absl::string_view message) {
    const std::string place = line < 0 ? std::string() : absl::StrCat(":", line + 1, ":", column + 1);
    problems_->Add(absl::StrCat(file_name_, place, ": ", WithoutBrokenCharacters(message)));
  }

  const std::string& file_name_;
  Problems* const problems_;
};

}  // namespace

int64_t BytesOfTextFile(const std::filesystem::path& path) {
  // A byte of text becomes at most this many bytes: "nodes{sparse_conv{}}" becomes 16 times its size.
  constexpr uintmax_t kBytesOfParsedByte = 20;
  std::error_code error;
  const uintmax_t bytes = std::filesystem::file_size(path, error);
  return error ? 0 : static_cast<int64_t>(std::min<uintmax_t>(bytes, kMaxTextFileBytes) * (1 + kBytesOfParsedByte));
}

std::optional<std::string> ReadFile(const std::filesystem::path& path, Problems* problems, int64_t max_bytes) {
  absl::StatusOr<std::string> content = ReadRegularFile(path, max_bytes);
  if (content.ok()) return *std::move(content);
  problems->Add(absl::StrCat(path.filename().string(), ": cannot be read (", content.status().message(), ")"));
  return std::nullopt;
}

bool ParseTextProto(std::string_view text, const std::string& file_name, google::protobuf::Message* message,
                    Problems* problems) {
  ProblemCollector collector(file_name, problems);
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&collector);
  parser.AllowUnknownField(true);  // ProblemCollector reports all unknown fields as problems
  // The parser calls itself for each level of nesting, of unknown fields and lists too.
  parser.SetRecursionLimit(kMaxTextDepth);
  const size_t before = problems->size();
  const bool is_parsed = parser.ParseFromString(std::string(text), message);
  if (is_parsed && problems->size() == before) return true;
  if (problems->size() == before) problems->Add(absl::StrCat(file_name, ": is not a valid text format message"));
  return false;
}

}  // namespace voxserve
