#pragma once

// Parses and checks the command line. Flags are Abseil's; they are parsed through its reflection interface, so that an
// unknown flag or a bad value is an absl::Status with one clear line, and --help shows only our flags.
//
// Not thread-safe: main parses once, before any thread starts.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/base/logging.h"
#include "server/identity/tls_files.h"

namespace voxserve {

struct Options {
  std::string model_repository;
  double model_poll_seconds = 0;
  std::string host = "127.0.0.1";
  int port = 8500;
  int http_port = 8080;
  std::string admin_host = "127.0.0.1";
  std::string trusted_proxies;  // networks, see ParseNetworks
  int admin_port = -1;          // -1: the one above `port`, or any free one where that is 0
  TlsPaths tls;
  std::string auth_tokens;
  bool insecure_tokens = false;
  int threads = 0;
  std::string devices;
  int streams_per_device = 2;
  int64_t device_memory_limit = 0;
  int64_t max_message_bytes = int64_t{64} << 20;
  std::string shared_memory_prefix;
  int64_t max_queue_requests = 256;
  int64_t max_queue_bytes = 0;
  int64_t max_grid_bytes = int64_t{512} << 20;
  std::string plan_dir;
  bool tune_on_load = false;
  bool deterministic = false;
  bool captured_batches = false;
  int64_t grpc_memory_bytes = 0;
  int64_t memory_limit = 0;
  int64_t max_connections = 0;         // 0: what the limit of descriptors leaves room for
  int64_t max_client_connections = 0;  // 0: a quarter of them
  int64_t max_client_calls = 1024;
  int64_t max_client_streams = 256;
  absl::Duration max_connection_idle = absl::Minutes(5);
  absl::Duration max_connection_age = absl::Hours(1);
  absl::Duration request_timeout = absl::Seconds(30);
  absl::Duration answer_timeout = absl::Seconds(10);
  absl::Duration stream_idle_timeout = absl::Seconds(60);
  absl::Duration drain_timeout = absl::Seconds(30);
  absl::Duration stuck_batch_time = absl::Minutes(1);
  double stuck_batch_factor = 50;
  LogLevel log_level = LogLevel::kInfo;
  LogFormat log_format = LogFormat::kText;

  // INVALID_ARGUMENT naming the flag, its value and what is allowed. Sizes that are 0 are checked as they resolve.
  absl::Status Validate() const;

  // Returns the options with the sizes that 0 stands for:
  //   memory_limit       80% of what the machine or its cgroup has (AvailableMemoryBytes)
  //   grpc_memory_bytes  a quarter of that, at most 2 GiB, and no less than two messages
  //   max_queue_bytes    a quarter of that, at most 1 GiB, and no less than a message
  // and the admin_port that -1 stands for.
  Options Resolved() const;

  // Returns the part of memory_limit that the process's MemoryBudget hands out, of resolved options: without gRPC's own
  // quota and what the process takes itself.
  int64_t BudgetBytes() const;
};

struct CommandLine {
  enum class Action { kServe, kHelp, kVersion, kHashToken };
  Action action = Action::kServe;
  Options options;  // validated; of kServe alone
};

// args: without the program's name. INVALID_ARGUMENT for an unknown flag (with the nearest known one), a value that
// does not parse, an argument that is not a flag, or what Validate finds.
absl::StatusOr<CommandLine> ParseCommandLine(const std::vector<std::string>& args);

// The text of --help: what the program does, two examples, every flag by topic with its default.
std::string HelpText();

}  // namespace voxserve
