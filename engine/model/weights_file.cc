#include "engine/model/weights_file.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace voxserve {
namespace {

bool Refuse(const std::string& name, const absl::Status& why, Problems* problems) {
  problems->Add(absl::StrCat(name, ": cannot be read (", why.message(), ")"));
  return false;
}

}  // namespace

std::optional<WeightsFile> WeightsFile::Open(const std::filesystem::path& path, Problems* problems,
                                             std::stop_token stop) {
  const std::string name = path.filename().string();
  absl::StatusOr<RegularFile> opened = RegularFile::Open(path);
  if (!opened.ok()) {
    Refuse(name, opened.status(), problems);
    return std::nullopt;
  }
  WeightsFile file(*std::move(opened), name, std::move(stop));
  if (!file.ReadUntil(std::min<int64_t>(kSafetensorsSizeBytes, file.file_bytes()), problems)) return std::nullopt;
  const auto header_bytes = HeaderBytesOf(file.content_, static_cast<uint64_t>(file.file_bytes()), problems);
  if (!header_bytes.has_value()) return std::nullopt;
  file.header_bytes_ = static_cast<int64_t>(*header_bytes);
  return file;
}

StoredTensors WeightsFile::ReadHeader(Problems* problems) {
  constexpr int64_t kBegin = kSafetensorsSizeBytes;
  if (!ReadUntil(kBegin + header_bytes_, problems)) return {};
  return ParseSafetensorsHeader(content().substr(kBegin), static_cast<uint64_t>(file_bytes() - kBegin - header_bytes_),
                                problems);
}

bool WeightsFile::ReadData(StoredTensors* tensors, Problems* problems) {
  const size_t begin = content_.size();
  if (!ReadUntil(file_bytes(), problems)) return false;
  SetData(content().substr(begin), tensors);
  return true;
}

bool WeightsFile::ReadUntil(int64_t end, Problems* problems) {
  const absl::Status read = file_.ReadUntil(end, &content_, stop_);
  return read.ok() || Refuse(name_, read, problems);
}

}  // namespace voxserve
