#pragma once

// What every command of voxserve-client shares: its terminal, its connection, its exit codes.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cpp/api/client.h"
#include "client/cpp/cli/arguments.h"

namespace voxserve::client {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailure = 1;  // the server, a file or a scan failed; health: not serving
inline constexpr int kExitUsage = 2;    // the command line is wrong

// What the output may contain. Read from the environment by main alone.
struct Terminal {
  bool out_color = false;    // colours on stdout
  bool out_unicode = false;  // bars and blocks on stdout
  bool err_is_tty = false;   // a progress bar may redraw itself on stderr
};

struct Connection {
  std::string address = "localhost:8500";
  absl::Duration timeout = absl::Seconds(30);
  int64_t max_message_bytes = int64_t{64} << 20;
  int num_channels = 1;

  // --address, --timeout, --max_message_bytes
  std::vector<Flag> Flags();
  Options ToOptions() const;
  absl::StatusOr<std::unique_ptr<Client>> Connect() const;
};

struct Command {
  CommandHelp help;
  std::vector<Flag> (*list_flags)();  // for the help page
  int (*run)(const std::vector<std::string>& arguments, const Terminal& terminal);
};

// Prints one line on stderr, with what to do about it where that is known. Return the exit code.
int Fail(const absl::Status& status);
int FailUsage(absl::string_view command, const absl::Status& status);

// The message and what to do about it, without the line's end.
std::string Advise(const absl::Status& status);

}  // namespace voxserve::client
