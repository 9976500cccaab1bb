#include "client/cpp/cli/command.h"

#include <iostream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "client/cpp/api/small_file.h"
#include "client/cpp/cli/printable.h"

namespace voxserve::client {
namespace {

absl::string_view AdviceFor(absl::string_view reason) {
  if (reason == kNoServer) {
    return "start one (voxserve --model_repository deploy/models) or name its address with --address HOST:PORT";
  }
  if (reason == kTlsFailed) return "--tls_ca names the roots of the server's certificate";
  if (reason == "MISSING_TOKEN" || reason == "UNKNOWN_TOKEN") {
    return "give the token with --token_file FILE, or in the environment as VOXSERVE_TOKEN";
  }
  if (reason == "SCOPE_TOO_SMALL") return "the server's operator says what a token may do (--auth_tokens)";
  if (reason == kClientTimeout) return "give it more with --timeout, e.g. --timeout 60s";
  if (reason == kMessageTooLarge) return "raise --max_message_bytes here and at the server";
  if (reason == "MODEL_LOADING") return "wait for it with: voxserve-client health --wait 60s";
  if (reason == "MODEL_NOT_FOUND" || reason == "VERSION_NOT_FOUND") return "voxserve-client models lists the models";
  if (reason == "MODEL_FAILED") return "voxserve-client models NAME shows its problems";
  if (reason == kUnsupportedOutput) return "voxserve-client models NAME shows the model's outputs";
  if (reason == "BAD_MODEL") return "the versions in service stay; repair the files and load it again";
  if (reason == "MISSING_FIELD") {
    return "a field of another name is named with --fields, e.g. --fields intensity=reflectivity";
  }
  if (reason == "QUEUE_FULL") return "try again with a lower --concurrency";
  if (reason == "ALREADY_TUNING") return "a model can have one search at a time: wait for its end";
  return "";
}

std::string& DefaultToken() {
  static auto* const token = new std::string;
  return *token;
}

// Returns the file's text, without white space at both ends, as the token.
absl::StatusOr<std::string> ReadToken(const std::string& path) {
  absl::StatusOr<std::string> text = ReadSmallFile(path);
  if (!text.ok()) return absl::InvalidArgumentError(absl::StrCat("--token_file ", text.status().message()));
  absl::StripAsciiWhitespace(&*text);
  if (text->empty()) return absl::InvalidArgumentError(absl::StrCat("--token_file ", path, " has no token"));
  return text;
}

}  // namespace

void SetDefaultToken(std::string token) { DefaultToken() = std::move(token); }

std::vector<Flag> Connection::Flags(std::vector<Flag> own) {
  for (Flag& flag : std::vector<Flag>{
           StringFlag("address", "HOST:PORT", "The address of the server's gRPC port.", &address),
           DurationFlag("timeout",
                        "A request may take this long, e.g. 500ms or 2m. The server knows the limit and gives up too.",
                        &timeout),
           BytesFlag("max_message_bytes",
                     "The largest request, and the largest answer. The server has a limit of the same name.", 1 << 16,
                     INT32_MAX, &max_message_bytes),
           StringFlag("tls_ca", "FILE",
                      "The PEM file of the root certificates that must have issued the server's certificate. Without "
                      "this flag the connection has no TLS.",
                      &tls_ca),
           StringFlag("tls_certificate", "FILE",
                      "The PEM file of the client's own certificate, for a server that asks for one.",
                      &tls_certificate),
           StringFlag("tls_key", "FILE", "The PEM file of the client certificate's private key.", &tls_key),
           StringFlag("token_file", "FILE",
                      "The file whose one line is the bearer token to send. Without this flag the token is the "
                      "environment variable VOXSERVE_TOKEN, if it is set. A token needs TLS, unless the server is on "
                      "this machine.",
                      &token_file),
       }) {
    own.push_back(std::move(flag));
  }
  return own;
}

std::vector<Flag> Connection::AdminFlags(std::vector<Flag> own) {
  std::vector<Flag> flags = Flags(std::move(own));
  flags.push_back(StringFlag("admin_address", "HOST:PORT",
                             "The address of the server's port for operators (its --admin_host and --admin_port). "
                             "Without this flag it is the port above that of --address.",
                             &admin_address));
  return flags;
}

absl::StatusOr<Options> Connection::ToOptions() const {
  Options options;
  options.address = address;
  options.admin_address = admin_address;
  options.tls_ca = tls_ca;
  options.tls_certificate = tls_certificate;
  options.tls_key = tls_key;
  options.token = DefaultToken();
  if (!token_file.empty()) {
    absl::StatusOr<std::string> token = ReadToken(token_file);
    if (!token.ok()) return token.status();
    options.token = *std::move(token);
  }
  options.default_timeout = timeout;
  options.max_message_bytes = max_message_bytes;
  options.num_channels = num_channels;
  return options;
}

absl::StatusOr<std::unique_ptr<Client>> Connection::Connect() const {
  absl::StatusOr<Options> options = ToOptions();
  if (!options.ok()) return options.status();
  return Client::Create(*std::move(options));
}

std::string Advise(const absl::Status& status) {
  const std::string reason = ErrorReason(status);
  const absl::string_view advice = AdviceFor(reason);
  return absl::StrCat(Printable(status.message()), advice.empty() ? "" : "; ", advice);
}

int Fail(const absl::Status& status) {
  std::cerr << "voxserve-client: " << Advise(status) << std::endl;
  return kExitFailure;
}

int FailUsage(absl::string_view command, const absl::Status& status) {
  std::cerr << "voxserve-client " << command << ": " << Printable(status.message()) << "; see voxserve-client help "
            << command << std::endl;
  return kExitUsage;
}

}  // namespace voxserve::client
