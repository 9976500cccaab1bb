#include "client/cpp/api/options.h"

#include "absl/strings/str_cat.h"

namespace voxserve::client {

absl::Status Options::Validate() const {
  if (address.empty()) return absl::InvalidArgumentError("address is empty; write host:port, e.g. localhost:8500");
  if (num_channels < 1 || num_channels > 256) {
    return absl::InvalidArgumentError(absl::StrCat("num_channels is ", num_channels, ", must be 1 to 256"));
  }
  if (max_message_bytes < 1 << 16 || max_message_bytes > INT32_MAX) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_message_bytes is ", max_message_bytes, ", must be 65536 to ", INT32_MAX));
  }
  if (default_timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("default_timeout is ", absl::FormatDuration(default_timeout), ", must be positive"));
  }
  return absl::OkStatus();
}

}  // namespace voxserve::client
