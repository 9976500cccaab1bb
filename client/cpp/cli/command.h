#pragma once

// The parts that all commands of voxserve-client share: terminal, connection, exit codes.

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

// The abilities of the terminal. Only main reads it from the environment.
struct Terminal {
  bool out_color = false;    // colours on stdout
  bool out_unicode = false;  // bars and blocks on stdout
  bool err_is_tty = false;   // a progress bar may redraw itself on stderr
};

// A token for programs that are not told of a file (--token_file). Only main reads it from the environment.
void SetDefaultToken(std::string token);

struct Connection {
  std::string address = "localhost:8500";
  std::string admin_address;
  std::string tls_ca;
  std::string tls_certificate;
  std::string tls_key;
  std::string token_file;
  absl::Duration timeout = absl::Seconds(30);
  int64_t max_message_bytes = int64_t{64} << 20;
  int num_channels = 1;

  // Returns --address, --timeout, --max_message_bytes, and the flags of TLS and tokens.
  std::vector<Flag> Flags();
  // Returns the same flags and --admin_address.
  std::vector<Flag> AdminFlags();
  // Reads the token. INVALID_ARGUMENT for a file that cannot be read or has no token.
  absl::StatusOr<Options> ToOptions() const;
  absl::StatusOr<std::unique_ptr<Client>> Connect() const;
};

struct Command {
  CommandHelp help;
  std::vector<Flag> (*list_flags)();  // for the help page
  int (*run)(const std::vector<std::string>& arguments, const Terminal& terminal);
};

// Prints the error as one line on stderr, with advice if there is some. Returns the exit code.
int Fail(const absl::Status& status);
int FailUsage(absl::string_view command, const absl::Status& status);

// Returns the message and the advice, without a line end.
std::string Advise(const absl::Status& status);

}  // namespace voxserve::client
