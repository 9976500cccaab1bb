#pragma once

// Parses and checks the server's command line. A flag is a member of Options and a row of Options::Flags(); --help, the
// errors and the checks follow from the row, and a test compares the table of server/README.md with the rows.
//
// Not thread-safe: main parses once, before any thread starts.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/base/flags.h"
#include "engine/base/logging.h"
#include "server/identity/tls_files.h"

namespace voxserve {

// The values of the flags, with their defaults. Each member has the name of its flag.
struct Options {
  std::string model_repository;
  double model_poll_seconds = 0;
  std::string host = "127.0.0.1";
  int port = 8500;
  int http_port = 8080;
  std::string admin_host = "127.0.0.1";
  std::string trusted_proxies;  // networks, in the format of ParseNetworks (server/sockets/network.h)
  int admin_port = -1;          // -1: port + 1, or any free port if `port` is 0
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
  bool captured_batches = true;
  int64_t grpc_memory_bytes = 0;
  int64_t memory_limit = 0;
  int64_t max_connections = 0;         // 0: as many as the process's limit of file descriptors has room for
  int64_t max_client_connections = 0;  // 0: a quarter of max_connections
  int64_t max_client_calls = 1024;
  int64_t max_client_streams = 256;
  absl::Duration max_connection_idle = absl::Minutes(5);
  absl::Duration max_connection_age = absl::Hours(1);
  absl::Duration request_timeout = absl::Seconds(30);
  absl::Duration answer_timeout = absl::Seconds(10);
  absl::Duration stream_idle_timeout = absl::Seconds(60);
  absl::Duration drain_timeout = absl::Seconds(30);
  absl::Duration max_request_time = absl::Seconds(30);
  absl::Duration stuck_batch_time = absl::Minutes(1);
  double stuck_batch_factor = 50;
  LogLevel log_level = LogLevel::kInfo;
  LogFormat log_format = LogFormat::kText;

  // Returns the table of flags, by topic. The rows read and write this object.
  std::vector<Flag> Flags();

  // Checks all options. Returns INVALID_ARGUMENT, which names the flag, its value and the allowed values. If a size is
  // 0, checks the size that Resolved puts in its place.
  absl::Status Validate() const;

  // Returns the options with these sizes in place of those that are 0:
  //   memory_limit       80% of the memory of the machine or its cgroup (AvailableMemoryBytes), at least 512 MiB
  //   grpc_memory_bytes  a quarter of memory_limit, at most 2 GiB; but at least 2 * max_message_bytes
  //   max_queue_bytes    a quarter of memory_limit, at most 1 GiB; but at least max_message_bytes
  // An admin_port of -1 is replaced too.
  Options Resolved() const;

  // Returns the part of memory_limit that the process's MemoryBudget hands out: memory_limit less grpc_memory_bytes,
  // and less the memory that the process itself takes for code, threads and the like. The options must be resolved.
  int64_t BudgetBytes() const;
};

struct CommandLine {
  enum class Action { kServe, kHelp, kVersion, kHashToken };
  Action action = Action::kServe;
  Options options;  // validated; set only for kServe
};

// Parses the arguments that follow the program's name. Returns the errors of ParseFlags and of Options::Validate.
absl::StatusOr<CommandLine> ParseCommandLine(const std::vector<std::string>& args);

// Returns the text of --help.
std::string HelpText();

}  // namespace voxserve
