#include "server/options.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <string_view>
#include <system_error>

#include "absl/flags/commandlineflag.h"
#include "absl/flags/flag.h"
#include "absl/flags/marshalling.h"
#include "absl/flags/reflection.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "engine/base/status_macros.h"
#include "engine/runtime/available_memory.h"
#include "engine/serving/engine.h"
#include "server/flag_values.h"
#include "server/sockets/network.h"

ABSL_FLAG(std::string, model_repository, voxserve::Options().model_repository,
          "Folder of model folders (<model>/<version>/model.textproto). Required.");
ABSL_FLAG(double, model_poll_seconds, voxserve::Options().model_poll_seconds,
          "How often to look through the repository for versions that are new, changed or gone; 0: only when LoadModel "
          "asks for one.");
ABSL_FLAG(int, threads, voxserve::Options().threads,
          "CPU threads that compute; 0: as many as this process may use (affinity, container quota).");
ABSL_FLAG(std::string, devices, voxserve::Options().devices,
          "Where to compute: cpu, or GPUs as cuda:0,cuda:1. Empty: every GPU, or the CPU where there is none.");
ABSL_FLAG(int, streams_per_device, voxserve::Options().streams_per_device,
          "Batches that run side by side on a GPU, each with memory of its own.");
ABSL_FLAG(voxserve::ByteSize, device_memory_limit, voxserve::ByteSize{voxserve::Options().device_memory_limit},
          "Memory of each GPU that may be used, weights included; 0: all. A request that needs more gets "
          "RESOURCE_EXHAUSTED, reason OUT_OF_MEMORY.");
ABSL_FLAG(voxserve::ByteSize, max_grid_bytes, voxserve::ByteSize{voxserve::Options().max_grid_bytes},
          "Largest coordinate grid on the CPU; beyond it a hash table serves, with the same results.");
ABSL_FLAG(
    std::string, plan_dir, voxserve::Options().plan_dir,
    "Folder of tuned plans, read before the models' own and written by searches; created when needed. Empty: each "
    "model version's own plans/ folder, which must then be writable for a search's result to outlive the process.");
ABSL_FLAG(
    bool, tune_on_load, voxserve::Options().tune_on_load,
    "Search a plan for each model that has none that fits this machine, in the background, on the first scans that "
    "it serves. --tune_on_load alone means true.");
ABSL_FLAG(bool, deterministic, voxserve::Options().deterministic,
          "Answer with bytes that do not depend on which requests share a batch. Models run by the default plan then. "
          "--deterministic alone means true.");
ABSL_FLAG(
    bool, captured_batches, voxserve::Options().captured_batches,
    "Capture a GPU's batches as CUDA graphs and replay them where they are alike, with the same answers. On an H200 a "
    "single scan then takes 1 to 9% less time. --captured_batches=false launches every kernel by itself.");
ABSL_FLAG(
    std::string, host, voxserve::Options().host,
    "Address that the gRPC and the HTTP port listen on. By default only this machine gets in; 0.0.0.0 or [::] opens "
    "the ports to the network (in a container: always needed): with --tls_certificate and --auth_tokens.");
ABSL_FLAG(int, port, voxserve::Options().port, "gRPC port; 0: any free one (the \"serving\" log line says which).");
ABSL_FLAG(int, http_port, voxserve::Options().http_port,
          "HTTP port of /metrics, /healthz, /readyz and the status page; 0: any free one.");
ABSL_FLAG(std::string, admin_host, voxserve::Options().admin_host,
          "Address that the port of AdminService (loads, unloads, searches of plans) listens on.");
ABSL_FLAG(
    std::string, trusted_proxies, voxserve::Options().trusted_proxies,
    "Networks of proxies, with commas (10.0.0.0/8,2001:db8::7), that say with the PROXY protocol, version 1 or 2, "
    "for whom they connect to --port. Limits and logs then see those clients in place of the proxy.");
ABSL_FLAG(
    std::string, shared_memory_prefix, voxserve::Options().shared_memory_prefix,
    "Clients of the open inference protocol may register shared memory whose name begins so (/voxserve-), for their "
    "points and outputs. Whoever may infer can then read and write these objects. Empty: none.");
ABSL_FLAG(int, admin_port, voxserve::Options().admin_port,
          "Port of AdminService; 0: any free one; -1: the one above --port, where clients look for it by default.");
ABSL_FLAG(
    std::string, auth_tokens, voxserve::Options().auth_tokens,
    "File of bearer tokens: who may do what, at which priority and with which share (server/README.md has the "
    "form of a line; --hash_token makes its second column). Every call then needs one, but for health checks. The "
    "file is read again when it changes. Needs --tls_certificate. Empty: no tokens.");
ABSL_FLAG(bool, insecure_tokens, voxserve::Options().insecure_tokens,
          "Take tokens without TLS, where a proxy on this machine ends it. Whoever sees the network sees the tokens.");
ABSL_FLAG(std::string, tls_certificate, voxserve::Options().tls.certificate,
          "PEM file of the server's certificate and those between it and the root; every port then speaks TLS 1.2 or "
          "1.3 alone. It and the next two are read again when they change. Empty: no TLS.");
ABSL_FLAG(std::string, tls_key, voxserve::Options().tls.key, "PEM file of the certificate's private key.");
ABSL_FLAG(std::string, tls_client_ca, voxserve::Options().tls.client_ca,
          "PEM file of roots that clients' certificates must come from. gRPC then connects to nobody without one; of "
          "HTTP, /healthz and /readyz stay open. Empty: clients need no certificate.");
ABSL_FLAG(voxserve::ByteSize, max_message_bytes, voxserve::ByteSize{voxserve::Options().max_message_bytes},
          "Largest request or response. A larger request gets RESOURCE_EXHAUSTED.");
ABSL_FLAG(int64_t, max_queue_requests, voxserve::Options().max_queue_requests,
          "Requests that may wait per model; beyond it: RESOURCE_EXHAUSTED, reason QUEUE_FULL.");
ABSL_FLAG(voxserve::ByteSize, max_queue_bytes, voxserve::ByteSize{voxserve::Options().max_queue_bytes},
          "Bytes of point clouds that may wait per model; likewise. 0: a quarter of --memory_limit, at most 1GiB.");
ABSL_FLAG(voxserve::ByteSize, grpc_memory_bytes, voxserve::ByteSize{voxserve::Options().grpc_memory_bytes},
          "Memory that gRPC may hold for messages on the wire, and bytes of answers that clients have not read yet; at "
          "least twice --max_message_bytes. When requests that are not whole hold two thirds of it, the client that "
          "holds the most, if that is more than a quarter, loses a connection. 0: a quarter of --memory_limit, at "
          "most 2GiB.");
ABSL_FLAG(
    voxserve::ByteSize, memory_limit, voxserve::ByteSize{voxserve::Options().memory_limit},
    "Memory of the host that the process may use: weights, queues, sweeps, answers and what batches compute with. "
    "What does not fit gets RESOURCE_EXHAUSTED before it is allocated. At least 512MiB; 0: 80% of what the "
    "machine or the container has.");
ABSL_FLAG(int64_t, max_connections, voxserve::Options().max_connections,
          "gRPC connections that may be open; 0: as many as the process may have descriptors for, up to 10000.");
ABSL_FLAG(int64_t, max_client_connections, voxserve::Options().max_client_connections,
          "The same of one client, which is known by its address; 0: a quarter of --max_connections.");
ABSL_FLAG(int64_t, max_client_calls, voxserve::Options().max_client_calls,
          "Calls that one client may have open; beyond it: RESOURCE_EXHAUSTED, reason CLIENT_LIMIT. All clients "
          "together may have 16 times as many.");
ABSL_FLAG(int64_t, max_client_streams, voxserve::Options().max_client_streams,
          "InferStream calls among them, likewise.");
ABSL_FLAG(absl::Duration, max_connection_idle, voxserve::Options().max_connection_idle,
          "Time without calls after which a client is asked to close its connection; inf: never.");
ABSL_FLAG(absl::Duration, max_connection_age, voxserve::Options().max_connection_age,
          "Age, 10% more or less, at which a client is asked to connect anew, so that clients spread over servers; its "
          "open calls go on. inf: never.");
ABSL_FLAG(absl::Duration, request_timeout, voxserve::Options().request_timeout,
          "Time from the start of a call until its whole request has come; then: DEADLINE_EXCEEDED, reason "
          "REQUEST_INCOMPLETE.");
ABSL_FLAG(absl::Duration, answer_timeout, voxserve::Options().answer_timeout,
          "Time that a client has to read an answer, and a second more for each MiB; then the call is cut off.");
ABSL_FLAG(absl::Duration, stream_idle_timeout, voxserve::Options().stream_idle_timeout,
          "Time between the frames of a stream; then it ends with DEADLINE_EXCEEDED, reason STREAM_IDLE.");
ABSL_FLAG(
    absl::Duration, drain_timeout, voxserve::Options().drain_timeout,
    "After SIGTERM or SIGINT: time for accepted requests to be answered; those that wait in queues after a fifth of "
    "it get UNAVAILABLE. A second signal ends at once.");
ABSL_FLAG(absl::Duration, stuck_batch_time, voxserve::Options().stuck_batch_time,
          "A batch that runs for longer than this, and than --stuck_batch_factor times its prediction, is taken for "
          "stuck: the server says NOT_SERVING and ends with status 3 within some seconds. One without a "
          "prediction, the first of its size say, may take 10 times as long. inf: never.");
ABSL_FLAG(double, stuck_batch_factor, voxserve::Options().stuck_batch_factor,
          "Likewise; 0: the prediction does not count.");
ABSL_FLAG(voxserve::LogLevel, log_level, voxserve::Options().log_level,
          "debug (a line per request), info (refused and failed ones), warning or error.");
ABSL_FLAG(voxserve::LogFormat, log_format, voxserve::Options().log_format,
          "text (key=value pairs), or json (an object a line) for collectors of logs.");

namespace voxserve {
namespace {

constexpr int64_t kMinMemoryLimit = int64_t{512} << 20;
// The memory that the process needs beside its budget: for code, libraries, threads, and for connections without their
// messages. A process without a model has 200 MiB of resident memory.
constexpr int64_t kProcessBytes = int64_t{224} << 20;
constexpr int64_t kMinBudgetBytes = int64_t{64} << 20;

struct FlagGroup {
  const char* title;
  std::vector<const char*> flags;
};

// Returns every flag of this program; --help and the parser know no other.
const std::vector<FlagGroup>& FlagGroups() {
  static const auto* groups = new std::vector<FlagGroup>{
      {"Models and computing",
       {"model_repository", "model_poll_seconds", "devices", "streams_per_device", "device_memory_limit", "threads",
        "max_grid_bytes", "captured_batches"}},
      {"Tuned plans", {"plan_dir", "tune_on_load", "deterministic"}},
      {"Network",
       {"host", "port", "http_port", "trusted_proxies", "admin_host", "admin_port", "max_message_bytes",
        "shared_memory_prefix"}},
      {"Identity", {"tls_certificate", "tls_key", "tls_client_ca", "auth_tokens", "insecure_tokens"}},
      {"Limits",
       {"memory_limit", "max_queue_requests", "max_queue_bytes", "grpc_memory_bytes", "max_connections",
        "max_connection_idle", "max_connection_age"}},
      {"Limits of one client",
       {"max_client_connections", "max_client_calls", "max_client_streams", "request_timeout", "answer_timeout",
        "stream_idle_timeout"}},
      {"Life of the process", {"drain_timeout", "stuck_batch_time", "stuck_batch_factor", "log_level", "log_format"}},
  };
  return *groups;
}

bool IsOurs(std::string_view name) {
  for (const FlagGroup& group : FlagGroups()) {
    for (const char* flag : group.flags) {
      if (name == flag) return true;
    }
  }
  return false;
}

size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substituted = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({substituted, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

absl::Status UnknownFlag(const std::string& name) {
  constexpr size_t kNear = 3;
  std::vector<const char*> known = {"help", "version", "hash_token"};
  for (const FlagGroup& group : FlagGroups()) known.insert(known.end(), group.flags.begin(), group.flags.end());
  std::string nearest;
  size_t best = kNear + 1;
  for (const char* flag : known) {
    const size_t distance = EditDistance(name, flag);
    if (distance < best) {
      best = distance;
      nearest = flag;
    }
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown flag --", name,
                                                 nearest.empty() ? "" : absl::StrCat("; did you mean --", nearest, "?"),
                                                 " (--help lists all flags)"));
}

absl::Status OutOfRange(const char* flag, int64_t value, const std::string& allowed) {
  return absl::InvalidArgumentError(absl::StrCat("--", flag, "=", value, " is out of range: ", allowed));
}

absl::Status OutOfRange(const char* flag, absl::Duration value, const std::string& allowed) {
  return absl::InvalidArgumentError(
      absl::StrCat("--", flag, "=", absl::FormatDuration(value), " is out of range: ", allowed));
}

// Breaks text into lines of at most `width` characters, each after `indent`.
void AppendWrapped(std::string* out, const std::string& text, size_t indent, size_t width) {
  std::string line;
  for (const absl::string_view word : absl::StrSplit(text, ' ')) {
    if (!line.empty() && line.size() + 1 + word.size() > width) {
      absl::StrAppend(out, std::string(indent, ' '), line, "\n");
      line.clear();
    }
    absl::StrAppend(&line, line.empty() ? "" : " ", word);
  }
  absl::StrAppend(out, std::string(indent, ' '), line, "\n");
}

}  // namespace

Options Options::Resolved() const {
  Options resolved = *this;
  if (memory_limit == 0) resolved.memory_limit = std::max(AvailableMemoryBytes() / 10 * 8, kMinMemoryLimit);
  const int64_t quarter = resolved.memory_limit / 4;
  if (grpc_memory_bytes == 0) {
    resolved.grpc_memory_bytes = std::max(std::min(quarter, int64_t{2} << 30), 2 * max_message_bytes);
  }
  if (max_queue_bytes == 0) {
    resolved.max_queue_bytes = std::max(std::min(quarter, int64_t{1} << 30), max_message_bytes);
  }
  if (admin_port == -1) resolved.admin_port = port == 0 ? 0 : port + 1;
  return resolved;
}

int64_t Options::BudgetBytes() const { return memory_limit - grpc_memory_bytes - kProcessBytes; }

absl::Status Options::Validate() const {
  if (model_repository.empty()) {
    return absl::InvalidArgumentError(
        "--model_repository is required: the folder of model folders, for example --model_repository deploy/models");
  }
  // Not in this range: NaN too.
  if (!(model_poll_seconds >= 0 && model_poll_seconds <= 86'400)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--model_poll_seconds=", model_poll_seconds, " is out of range: 0 to 86400"));
  }
  std::error_code ignored;
  if (!plan_dir.empty() && std::filesystem::exists(plan_dir, ignored) &&
      !std::filesystem::is_directory(plan_dir, ignored)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--plan_dir=", plan_dir, " is a file; it must be a folder, or not be there yet"));
  }
  if (host.empty()) return absl::InvalidArgumentError("--host is empty: an address to listen on, or 0.0.0.0 for all");
  if (port < 0 || port > 65535) return OutOfRange("port", port, "0 to 65535");
  if (http_port < 0 || http_port > 65535) return OutOfRange("http_port", http_port, "0 to 65535");
  if (port != 0 && port == http_port) {
    return absl::InvalidArgumentError(absl::StrCat("--port and --http_port are both ", port, "; they must differ"));
  }
  if (!shared_memory_prefix.empty() &&
      (shared_memory_prefix[0] != '/' || shared_memory_prefix.find('/', 1) != std::string::npos)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--shared_memory_prefix=", shared_memory_prefix,
                     " must begin with a slash and have no other, as names of shared memory do"));
  }
  if (const auto networks = ParseNetworks(trusted_proxies); !networks.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--trusted_proxies: ", networks.status().message()));
  }
  if (admin_host.empty()) return absl::InvalidArgumentError("--admin_host is empty: an address to listen on");
  if (admin_port < -1 || admin_port > 65535) return OutOfRange("admin_port", admin_port, "-1 to 65535");
  if (admin_port == -1 && port == 65535) return OutOfRange("admin_port", 65536, "none is above --port=65535: name one");
  const int resolved_admin_port = Resolved().admin_port;
  for (const auto& [flag, other] : {std::pair("port", port), std::pair("http_port", http_port)}) {
    if (resolved_admin_port == 0 || resolved_admin_port != other) continue;
    return absl::InvalidArgumentError(absl::StrCat("--admin_port and --", flag, " are both ", other,
                                                   admin_port == -1 ? " (by default the one above --port)" : "",
                                                   "; they must differ"));
  }
  if (tls.certificate.empty() != tls.key.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("--", tls.key.empty() ? "tls_certificate" : "tls_key", " needs --",
                                                   tls.key.empty() ? "tls_key" : "tls_certificate", " as well"));
  }
  if (!tls.client_ca.empty() && !tls.enabled()) {
    return absl::InvalidArgumentError("--tls_client_ca needs --tls_certificate and --tls_key as well");
  }
  if (!auth_tokens.empty() && !tls.enabled() && !insecure_tokens) {
    return absl::InvalidArgumentError(
        "--auth_tokens needs --tls_certificate and --tls_key: without TLS whoever sees the network sees the tokens "
        "(--insecure_tokens takes them all the same, behind a proxy say)");
  }
  if (insecure_tokens && auth_tokens.empty()) {
    return absl::InvalidArgumentError("--insecure_tokens needs --auth_tokens");
  }
  if (threads < 0 || threads > 4096) return OutOfRange("threads", threads, "0 to 4096");
  if (max_message_bytes < 1 << 20 || max_message_bytes > std::numeric_limits<int>::max()) {
    return OutOfRange("max_message_bytes", max_message_bytes, "1MiB to 2147483647 bytes");
  }
  if (max_queue_requests < 1) return OutOfRange("max_queue_requests", max_queue_requests, "1 or more");
  if (max_queue_bytes != 0 && max_queue_bytes < max_message_bytes) {
    return OutOfRange("max_queue_bytes", max_queue_bytes, "at least --max_message_bytes");
  }
  if (streams_per_device < 1 || streams_per_device > Engine::kMaxStreamsPerDevice) {
    return OutOfRange("streams_per_device", streams_per_device, absl::StrCat("1 to ", Engine::kMaxStreamsPerDevice));
  }
  if (device_memory_limit < 0) return OutOfRange("device_memory_limit", device_memory_limit, "0 or more");
  if (max_grid_bytes < 0) return OutOfRange("max_grid_bytes", max_grid_bytes, "0 or more");
  if (grpc_memory_bytes != 0 && grpc_memory_bytes < 2 * max_message_bytes) {
    return OutOfRange("grpc_memory_bytes", grpc_memory_bytes, "at least twice --max_message_bytes");
  }
  if (memory_limit != 0 && memory_limit < kMinMemoryLimit) {
    return OutOfRange("memory_limit", memory_limit,
                      absl::StrCat(AbslUnparseFlag(ByteSize{kMinMemoryLimit}), " or more"));
  }
  const Options resolved = Resolved();
  for (const auto& [flag, bytes] : {std::pair("grpc_memory_bytes", resolved.grpc_memory_bytes),
                                    std::pair("max_queue_bytes", resolved.max_queue_bytes)}) {
    if (bytes <= resolved.memory_limit / 2) continue;
    return OutOfRange(flag, bytes, absl::StrCat("at most half of --memory_limit, which is ", resolved.memory_limit));
  }
  if (resolved.BudgetBytes() < kMinBudgetBytes) {
    return OutOfRange(
        "memory_limit", resolved.memory_limit,
        absl::StrCat("it leaves ", resolved.BudgetBytes(), " bytes beside --grpc_memory_bytes and the ", kProcessBytes,
                     " of the process itself; models and requests need at least ", kMinBudgetBytes));
  }
  if (max_connections < 0) return OutOfRange("max_connections", max_connections, "0 or more");
  if (max_client_connections < 0) return OutOfRange("max_client_connections", max_client_connections, "0 or more");
  if (max_client_calls < 1 || max_client_calls > 1'000'000) {
    return OutOfRange("max_client_calls", max_client_calls, "1 to 1000000");
  }
  if (max_client_streams < 1 || max_client_streams > 1'000'000) {
    return OutOfRange("max_client_streams", max_client_streams, "1 to 1000000");
  }
  for (const auto& [flag, time] : {std::pair<const char*, absl::Duration>{"max_connection_idle", max_connection_idle},
                                   {"max_connection_age", max_connection_age}}) {
    if (time < absl::Milliseconds(1)) return OutOfRange(flag, time, "1ms or more");
  }
  for (const auto& [flag, timeout] : {std::pair<const char*, absl::Duration>{"request_timeout", request_timeout},
                                      {"answer_timeout", answer_timeout},
                                      {"stream_idle_timeout", stream_idle_timeout}}) {
    if (timeout <= absl::ZeroDuration()) return OutOfRange(flag, timeout, "more than 0s");
  }
  if (drain_timeout < absl::ZeroDuration()) return OutOfRange("drain_timeout", drain_timeout, "0s or more");
  if (stuck_batch_time < absl::Milliseconds(1)) return OutOfRange("stuck_batch_time", stuck_batch_time, "1ms or more");
  // Not in this range: NaN too.
  if (!(stuck_batch_factor >= 0 && stuck_batch_factor <= 1e6)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--stuck_batch_factor=", stuck_batch_factor, " is out of range: 0 to 1000000"));
  }
  return absl::OkStatus();
}

absl::StatusOr<CommandLine> ParseCommandLine(const std::vector<std::string>& args) {
  for (size_t i = 0; i < args.size(); ++i) {
    absl::string_view arg = args[i];
    if (!absl::ConsumePrefix(&arg, "--") && !absl::ConsumePrefix(&arg, "-")) {
      return absl::InvalidArgumentError(absl::StrCat("\"", args[i], "\" is not a flag (--help lists all flags)"));
    }
    const std::pair<std::string, std::string> split = absl::StrSplit(arg, absl::MaxSplits('=', 1));
    const std::string& name = split.first;
    if (name == "help" || name == "h") return CommandLine{.action = CommandLine::Action::kHelp, .options = {}};
    if (name == "version") return CommandLine{.action = CommandLine::Action::kVersion, .options = {}};
    if (name == "hash_token") {
      if (arg.find('=') == absl::string_view::npos && args.size() == 1) {
        return CommandLine{.action = CommandLine::Action::kHashToken, .options = {}};
      }
      return absl::InvalidArgumentError("--hash_token stands alone, and reads the token from standard input");
    }
    if (!IsOurs(name)) return UnknownFlag(name);

    absl::CommandLineFlag* const flag = absl::FindCommandLineFlag(name);
    std::string value = split.second;
    if (arg.find('=') == absl::string_view::npos) {
      if (flag->IsOfType<bool>()) {
        value = "true";
      } else if (i + 1 < args.size()) {
        value = args[++i];
      } else {
        return absl::InvalidArgumentError(absl::StrCat("--", name, " needs a value"));
      }
    }
    std::string error;
    if (!flag->ParseFrom(value, &error)) {
      // For flag types of this program, Abseil's error ends with "; " and the text of the type's AbslParseFlag.
      std::vector<std::string> parts = absl::StrSplit(error, "; ");
      return absl::InvalidArgumentError(
          absl::StrCat("bad value for --", name, ": \"", value, "\"", parts.size() > 1 ? "; " + parts.back() : ""));
    }
  }

  CommandLine line;
  Options& options = line.options;
  options.model_repository = absl::GetFlag(FLAGS_model_repository);
  options.model_poll_seconds = absl::GetFlag(FLAGS_model_poll_seconds);
  options.host = absl::GetFlag(FLAGS_host);
  options.port = absl::GetFlag(FLAGS_port);
  options.http_port = absl::GetFlag(FLAGS_http_port);
  options.admin_host = absl::GetFlag(FLAGS_admin_host);
  options.trusted_proxies = absl::GetFlag(FLAGS_trusted_proxies);
  options.shared_memory_prefix = absl::GetFlag(FLAGS_shared_memory_prefix);
  options.admin_port = absl::GetFlag(FLAGS_admin_port);
  options.auth_tokens = absl::GetFlag(FLAGS_auth_tokens);
  options.insecure_tokens = absl::GetFlag(FLAGS_insecure_tokens);
  options.tls = {.certificate = absl::GetFlag(FLAGS_tls_certificate),
                 .key = absl::GetFlag(FLAGS_tls_key),
                 .client_ca = absl::GetFlag(FLAGS_tls_client_ca)};
  options.threads = absl::GetFlag(FLAGS_threads);
  options.max_message_bytes = absl::GetFlag(FLAGS_max_message_bytes).bytes;
  options.max_queue_requests = absl::GetFlag(FLAGS_max_queue_requests);
  options.max_queue_bytes = absl::GetFlag(FLAGS_max_queue_bytes).bytes;
  options.devices = absl::GetFlag(FLAGS_devices);
  options.streams_per_device = absl::GetFlag(FLAGS_streams_per_device);
  options.device_memory_limit = absl::GetFlag(FLAGS_device_memory_limit).bytes;
  options.max_grid_bytes = absl::GetFlag(FLAGS_max_grid_bytes).bytes;
  options.plan_dir = absl::GetFlag(FLAGS_plan_dir);
  options.tune_on_load = absl::GetFlag(FLAGS_tune_on_load);
  options.deterministic = absl::GetFlag(FLAGS_deterministic);
  options.captured_batches = absl::GetFlag(FLAGS_captured_batches);
  options.grpc_memory_bytes = absl::GetFlag(FLAGS_grpc_memory_bytes).bytes;
  options.memory_limit = absl::GetFlag(FLAGS_memory_limit).bytes;
  options.max_connections = absl::GetFlag(FLAGS_max_connections);
  options.max_client_connections = absl::GetFlag(FLAGS_max_client_connections);
  options.max_client_calls = absl::GetFlag(FLAGS_max_client_calls);
  options.max_client_streams = absl::GetFlag(FLAGS_max_client_streams);
  options.max_connection_idle = absl::GetFlag(FLAGS_max_connection_idle);
  options.max_connection_age = absl::GetFlag(FLAGS_max_connection_age);
  options.request_timeout = absl::GetFlag(FLAGS_request_timeout);
  options.answer_timeout = absl::GetFlag(FLAGS_answer_timeout);
  options.stream_idle_timeout = absl::GetFlag(FLAGS_stream_idle_timeout);
  options.drain_timeout = absl::GetFlag(FLAGS_drain_timeout);
  options.stuck_batch_time = absl::GetFlag(FLAGS_stuck_batch_time);
  options.stuck_batch_factor = absl::GetFlag(FLAGS_stuck_batch_factor);
  options.log_level = absl::GetFlag(FLAGS_log_level);
  options.log_format = absl::GetFlag(FLAGS_log_format);
  RETURN_IF_ERROR(options.Validate());
  return line;
}

std::string HelpText() {
  std::string text =
      "voxserve serves sparse-convolution networks on LiDAR point clouds over gRPC: a cloud in, a label per point "
      "out.\n"
      "\n"
      "Examples\n"
      "  voxserve --model_repository deploy/models\n"
      "      Serves every model of the folder to this machine: gRPC on 8500; metrics, probes and a status page on\n"
      "      http://localhost:8080. Try it: voxserve-client infer --model minkunet scan.bin\n"
      "  voxserve --model_repository /models --host 0.0.0.0 --port 9000 --max_queue_requests 32 --drain_timeout 10s\n"
      "      Serves the network, refuses early rather than queueing, and restarts quickly.\n";
  for (const FlagGroup& group : FlagGroups()) {
    absl::StrAppend(&text, "\n", group.title, "\n");
    for (const char* name : group.flags) {
      const absl::CommandLineFlag* flag = absl::FindCommandLineFlag(name);
      const std::string value = flag->DefaultValue();
      absl::StrAppend(&text, "  --", name, value.empty() ? "" : absl::StrCat("  (default ", value, ")"), "\n");
      AppendWrapped(&text, flag->Help(), 6, 108);
    }
  }
  absl::StrAppend(
      &text,
      "\nAbout\n  --help, --version\n"
      "  --hash_token reads a token from standard input and prints what a line of --auth_tokens has for it\n"
      "\nExit status: 0 after SIGTERM or SIGINT with every accepted request answered; 1 when serving cannot "
      "start, the\ndrain timed out or a GPU failed; 2 for a bad command line; 3 after a batch that was stuck. Sizes: "
      "1048576, 64MiB,\n1GiB. Times: 500ms, 30s, 2m.\n");
  return text;
}

}  // namespace voxserve
