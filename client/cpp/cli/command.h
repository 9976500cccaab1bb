#pragma once

// This header has the parts that all commands of voxserve-client share: terminal, connection, exit codes. Only the main
// thread uses them.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cpp/api/client.h"
#include "engine/base/flags.h"

namespace voxserve::client {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailure = 1;  // the server, a file or a scan failed, or `health` finds no serving server
inline constexpr int kExitUsage = 2;    // the command line is wrong

// The abilities of the terminal. main determines them from the environment and isatty; commands only read them.
struct Terminal {
  bool out_color = false;    // colours on stdout
  bool out_unicode = false;  // bars and blocks on stdout
  bool err_is_tty = false;   // a progress bar may redraw itself on stderr
};

// Sets the token that is used without --token_file. main reads this token from the environment (VOXSERVE_TOKEN).
void SetDefaultToken(std::string token);

// The flags by which a command reaches the server.
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

  // Returns a command's own flags, and then those that write to this object: --address, --timeout,
  // --max_message_bytes, and those of TLS and tokens.
  std::vector<Flag> Flags(std::vector<Flag> own);
  // Returns Flags(own) and --admin_address.
  std::vector<Flag> AdminFlags(std::vector<Flag> own);
  // Converts the flags, and reads the token's file. Returns INVALID_ARGUMENT if the file cannot be read or has no
  // token.
  absl::StatusOr<Options> ToOptions() const;
  absl::StatusOr<std::unique_ptr<Client>> Connect() const;
};

struct Command {
  CommandHelp help;
  std::vector<Flag> (*list_flags)();  // for the help page
  int (*run)(const std::vector<std::string>& arguments, const Terminal& terminal);
};

// Returns the flags of a command's arguments, for its help page, which uses only the rows' texts. The rows refer to
// members of `arguments`, so the function keeps an object with these members.
template <typename Arguments>
std::vector<Flag> ListFlags() {
  static Arguments arguments;
  return arguments.Flags();
}

// Print the error as one line on stderr and return the exit code: Fail adds Advise's advice, FailUsage points to the
// command's help.
int Fail(const absl::Status& status);
int FailUsage(absl::string_view command, const absl::Status& status);

// Returns the status's message, printable, and advice for its reason ("raise --max_message_bytes ..."), if any, without
// a line end.
std::string Advise(const absl::Status& status);

}  // namespace voxserve::client
