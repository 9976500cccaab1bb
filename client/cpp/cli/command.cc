#include "client/cpp/cli/command.h"

#include <iostream>

#include "absl/strings/str_cat.h"

namespace voxserve::client {
namespace {

absl::string_view AdviceFor(absl::string_view reason) {
  if (reason == kNoServer) {
    return "start one (voxserve --model_repository deploy/models) or name its address with --address HOST:PORT";
  }
  if (reason == kClientTimeout) return "give it more with --timeout, e.g. --timeout 60s";
  if (reason == kMessageTooLarge) return "raise --max_message_bytes here and at the server";
  if (reason == "MODEL_LOADING") return "wait for it with: voxserve-client health --wait 60s";
  if (reason == "MODEL_NOT_FOUND" || reason == "VERSION_NOT_FOUND") return "voxserve-client models lists the models";
  if (reason == "MODEL_FAILED") return "voxserve-client models NAME shows its problems";
  if (reason == kUnsupportedOutput) return "voxserve-client models NAME shows the model's outputs";
  if (reason == "BAD_MODEL") return "the versions in service stay; repair the files and load it again";
  if (reason == "QUEUE_FULL") return "try again with a lower --concurrency";
  if (reason == "ALREADY_TUNING") return "a model can have one search at a time: wait for its end";
  return "";
}

}  // namespace

std::vector<Flag> Connection::Flags() {
  return {
      StringFlag("address", "HOST:PORT", "Address of the server. Default localhost:8500.", &address),
      DurationFlag("timeout",
                   absl::StrCat("How long a request may take, e.g. 500ms or 2m; then the server gives up too. "
                                "Default ",
                                absl::FormatDuration(timeout), "."),
                   &timeout),
      IntFlag("max_message_bytes", "N", "Largest request or answer. Default 67108864 (64 MiB), as the server's.",
              1 << 16, INT32_MAX, &max_message_bytes),
  };
}

Options Connection::ToOptions() const {
  Options options;
  options.address = address;
  options.default_timeout = timeout;
  options.max_message_bytes = max_message_bytes;
  options.num_channels = num_channels;
  return options;
}

absl::StatusOr<std::unique_ptr<Client>> Connection::Connect() const { return Client::Create(ToOptions()); }

std::string Advise(const absl::Status& status) {
  const std::string reason = ErrorReason(status);
  const absl::string_view advice = AdviceFor(reason);
  return absl::StrCat(status.message(), advice.empty() ? "" : "; ", advice);
}

int Fail(const absl::Status& status) {
  std::cerr << "voxserve-client: " << Advise(status) << std::endl;
  return kExitFailure;
}

int FailUsage(absl::string_view command, const absl::Status& status) {
  std::cerr << "voxserve-client " << command << ": " << status.message() << "; see voxserve-client help " << command
            << std::endl;
  return kExitUsage;
}

}  // namespace voxserve::client
