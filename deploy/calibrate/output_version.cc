#include "deploy/calibrate/output_version.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/flags.h"
#include "engine/base/numbers.h"
#include "engine/base/status_macros.h"
#include "engine/model/problems.h"
#include "engine/model/text_file.h"
#include "google/protobuf/text_format.h"
#include "nlohmann/json.hpp"
#include "voxserve/model/v1/config.pb.h"

namespace voxserve::calibrate {
namespace {

namespace fs = std::filesystem;

constexpr size_t kSizeBytes = 8;  // of the safetensors header's size

absl::Status CannotWrite(const fs::path& path, const std::string& why) {
  return absl::FailedPreconditionError(absl::StrCat(path.string(), " cannot be written: ", why));
}

absl::Status ExistsAlready(const fs::path& path) {
  return absl::AlreadyExistsError(absl::StrCat(path.string(), " exists already; --overwrite replaces it"));
}

// Renames by Linux's flags. Returns 0, or the number of the error.
int Rename(const fs::path& from, const fs::path& to, unsigned int flags) {
  return renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), flags) == 0 ? 0 : errno;
}

// Returns true for the error of a file system, or a kernel, that does not know the flags.
bool LacksFlags(int error) { return error == EINVAL || error == ENOSYS || error == ENOTSUP; }

// Returns true if `folder` is `inner`, or holds it, by whatever path. Both are absolute.
bool Holds(const fs::path& folder, const fs::path& inner) {
  std::error_code error;
  fs::path real = fs::canonical(inner, error);
  if (error) return false;
  for (; real.has_relative_path(); real = real.parent_path()) {
    if (fs::equivalent(folder, real, error)) return true;
  }
  return false;
}

// Returns the absolute path, without a slash at its end.
fs::path Normal(const fs::path& path) {
  std::error_code error;
  fs::path normal = fs::absolute(path, error).lexically_normal();
  return normal.filename().empty() ? normal.parent_path() : normal;
}

absl::Status WriteFile(const fs::path& path, const std::string& content) {
  const auto fail = [&] { return CannotWrite(path, std::strerror(errno)); };
  const int descriptor = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (descriptor < 0) return fail();
  absl::Status status;
  for (size_t done = 0; done < content.size() && status.ok();) {
    const ssize_t written = write(descriptor, content.data() + done, content.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) status = fail();
    done += static_cast<size_t>(std::max<ssize_t>(written, 0));
  }
  if (status.ok() && fsync(descriptor) != 0) status = fail();
  if (close(descriptor) != 0 && status.ok()) status = fail();
  return status;
}

}  // namespace

absl::StatusOr<int64_t> VersionOf(const fs::path& output) {
  int64_t version = 0;
  const std::string name = Normal(output).filename().string();
  if (ParseInteger(name, &version) && version > 0 && name == absl::StrCat(version)) return version;
  return FlagError("output", output.string(), "a version folder MODEL/VERSION with a version such as 2");
}

absl::StatusOr<std::unique_ptr<OutputVersion>> OutputVersion::Create(const fs::path& output, const fs::path& source,
                                                                     bool may_overwrite) {
  ASSIGN_OR_RETURN(const int64_t version, VersionOf(output));
  const fs::path path = Normal(output);
  if (Holds(path, source)) {
    return absl::InvalidArgumentError(absl::StrCat("--output is ", output.string(), ", which is or holds ",
                                                   source.string(),
                                                   ", the version that is calibrated; write another one"));
  }
  std::error_code error;
  if (fs::symlink_status(path, error).type() != fs::file_type::not_found) {
    if (!may_overwrite) return ExistsAlready(path);
    if (!fs::is_directory(fs::symlink_status(path, error))) return CannotWrite(path, "it is no folder");
  }
  std::unique_ptr<OutputVersion> made(new OutputVersion(path, version, may_overwrite));
  std::vector<fs::path> missing;  // the innermost first
  for (fs::path folder = path.parent_path(); !fs::exists(folder, error); folder = folder.parent_path()) {
    if (error) return CannotWrite(path, error.message());
    missing.push_back(folder);
  }
  for (auto folder = missing.rbegin(); folder != missing.rend(); ++folder) {
    if (!fs::create_directory(*folder, error)) return CannotWrite(path, error.message());
    made->created_.push_back(*folder);
  }
  std::string temporary = (path.parent_path() / ".voxserve-calibrate-XXXXXX").string();
  if (mkdtemp(temporary.data()) == nullptr) return CannotWrite(path, std::strerror(errno));
  made->temporary_ = temporary;
  fs::create_directory(made->temporary_ / absl::StrCat(version), error);
  if (error) return CannotWrite(path, error.message());
  return made;
}

OutputVersion::~OutputVersion() {
  std::error_code ignored;
  if (!temporary_.empty()) fs::remove_all(temporary_, ignored);
  // A folder that has become the committed version's stays, since it is not empty.
  for (auto folder = created_.rbegin(); folder != created_.rend(); ++folder) fs::remove(*folder, ignored);
}

absl::Status OutputVersion::Write(const std::string& name, const std::string& content) {
  return WriteFile(temporary_ / absl::StrCat(version_) / name, content);
}

absl::Status OutputVersion::Commit() {
  const fs::path finished = temporary_ / absl::StrCat(version_);
  int error = Rename(finished, path_, RENAME_NOREPLACE);
  // A plain rename replaces no folder but an empty one.
  if (LacksFlags(error)) error = std::rename(finished.c_str(), path_.c_str()) == 0 ? 0 : errno;
  if (error == 0) return absl::OkStatus();
  if (error != EEXIST && error != ENOTEMPTY) return CannotWrite(path_, std::strerror(error));
  return may_overwrite_ ? Exchange() : ExistsAlready(path_);
}

absl::Status OutputVersion::Exchange() {
  const fs::path finished = temporary_ / absl::StrCat(version_), older = temporary_ / "older";
  int error = Rename(finished, path_, RENAME_EXCHANGE);  // the older version is deleted with temporary_
  if (LacksFlags(error)) {
    error = Rename(path_, older, 0);
    if (error == 0) {
      error = Rename(finished, path_, 0);
      if (error != 0) Rename(older, path_, 0);
    }
  }
  return error == 0 ? absl::OkStatus() : CannotWrite(path_, std::strerror(error));
}

std::string WithScales(const std::string& file, const Scales& scales) {
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data(), kSizeBytes);
  auto header = nlohmann::ordered_json::parse(file.substr(kSizeBytes, header_bytes));
  std::string data = file.substr(kSizeBytes + header_bytes);
  for (const auto& [node, scale] : scales) {
    const size_t begin = data.size();
    data.append(reinterpret_cast<const char*>(&scale), sizeof(scale));
    header[absl::StrCat(node, ".scale")] = {
        {"dtype", "F32"}, {"shape", {1}}, {"data_offsets", {begin, begin + sizeof(scale)}}};
  }
  std::string text = header.dump();
  text.resize((text.size() + kSizeBytes - 1) / kSizeBytes * kSizeBytes, ' ');  // so that the data is aligned
  const uint64_t size = text.size();
  return absl::StrCat(std::string(reinterpret_cast<const char*>(&size), kSizeBytes), text, data);
}

std::string Int8Config(const std::string& config, const std::vector<std::string>& float_nodes) {
  model::v1::ModelConfig proto;
  Problems problems;
  ParseTextProto(config, "config.textproto", &proto, &problems);  // it was read before, without problems
  proto.clear_version_policy();
  proto.set_precision(model::v1::PRECISION_INT8);
  proto.mutable_int8()->Clear();
  for (const std::string& node : float_nodes) proto.mutable_int8()->add_float_nodes(node);
  std::string text;
  google::protobuf::TextFormat::PrintToString(proto, &text);
  return absl::StrCat(
      "# proto-file: voxserve/model/v1/config.proto\n# proto-message: voxserve.model.v1.ModelConfig\n"
      "# Written by voxserve-calibrate. It says how this version is served; other versions have the model's "
      "config.\n\n",
      text);
}

}  // namespace voxserve::calibrate
