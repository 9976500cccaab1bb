#include "server/options.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/runtime/available_memory.h"
#include "engine/serving/engine.h"
#include "server/sockets/network.h"

namespace voxserve {
namespace {

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
constexpr int64_t kMinMemoryLimit = int64_t{512} << 20;
// The memory that the process needs beside its budget: for code, libraries, threads, and for connections without their
// messages. A process without a model has 200 MiB of resident memory.
constexpr int64_t kProcessBytes = int64_t{224} << 20;
constexpr int64_t kMinBudgetBytes = int64_t{64} << 20;

// Returns all flags of the command line: those of the options, and those that do something else than serve.
std::vector<Flag> AllFlags(CommandLine& line) {
  using Action = CommandLine::Action;
  std::vector<Flag> flags = line.options.Flags();
  std::vector<Flag> actions = {
      ActionFlag("help", "Prints this page.", Action::kHelp, &line.action),
      ActionFlag("version", "Prints the version.", Action::kVersion, &line.action),
      ActionFlag("hash_token",
                 "Reads a token from standard input, and prints the second column of its line in --auth_tokens. This "
                 "flag stands alone.",
                 Action::kHashToken, &line.action),
  };
  for (Flag& flag : actions) {
    flag.topic = "other actions";
    flags.push_back(std::move(flag));
  }
  return flags;
}

}  // namespace

std::vector<Flag> Options::Flags() {
  std::vector<Flag> flags;
  const auto add = [&flags](const char* topic, std::vector<Flag> rows) {
    for (Flag& row : rows) {
      row.topic = topic;
      flags.push_back(std::move(row));
    }
  };
  add("models",
      {StringFlag(
           "model_repository", "FOLDER",
           "The folder of the models' folders (MODEL/VERSION/model.textproto), or the folder of one model. Required.",
           &model_repository),
       NumberFlag("model_poll_seconds", "SECONDS",
                  "The server looks for new, changed and removed versions in the repository every SECONDS. 0 loads a "
                  "version only when a call of LoadModel asks for it.",
                  0, 86'400, &model_poll_seconds)});
  add("computing",
      {MaybeEmptyFlag("devices", "DEVICES",
                      "The devices that compute: cpu, or GPUs as cuda:0,cuda:1. Without this flag every GPU computes, "
                      "or the CPU if there is no GPU.",
                      &devices),
       IntFlag("streams_per_device", "N",
               "A GPU runs up to N batches side by side. Each of them takes memory of its own.", 1,
               Engine::kMaxStreamsPerDevice, &streams_per_device),
       BytesFlag("device_memory_limit",
                 "The server uses at most this much memory of each GPU, weights included; 0 sets no limit. A request "
                 "that needs more gets RESOURCE_EXHAUSTED, reason OUT_OF_MEMORY.",
                 0, kNoLimit, &device_memory_limit),
       IntFlag("threads", "N",
               "The number of CPU threads that compute. 0 takes as many as the process may use by its CPU affinity and "
               "its container's quota.",
               0, 4096, &threads),
       BytesFlag("max_grid_bytes",
                 "The CPU uses a coordinate grid of at most this size. Where a grid would be larger it uses a hash "
                 "table, with the same results.",
                 0, kNoLimit, &max_grid_bytes),
       BoolFlag("deterministic",
                "Answers do not depend on the requests that share a batch, to the last bit. Models then run by the "
                "default plan.",
                &deterministic),
       BoolFlag("captured_batches",
                "The server captures a GPU's batches as CUDA graphs, and replays a graph for each later batch of the "
                "same kind, with the same answers. On an H200 a single scan then takes 1 to 9% less time. With "
                "--captured_batches=false every kernel is launched by itself.",
                &captured_batches)});
  add("plans",
      {MaybeEmptyFlag("plan_dir", "FOLDER",
                      "The folder of tuned plans. The server reads its plans before the models' own, writes the plans "
                      "that it finds to it, and creates it when needed. Without this flag each version has its plans "
                      "in its own folder plans/, which must then be writable for a new plan to outlive the process.",
                      &plan_dir),
       BoolFlag("tune_on_load",
                "The server searches a plan for each model that has no plan for this machine. It searches in the "
                "background, on the first scans that the model serves.",
                &tune_on_load)});
  add("the network",
      {StringFlag("host", "ADDRESS",
                  "The gRPC port and the HTTP port listen on this address. By default only this machine reaches them; "
                  "0.0.0.0 or [::] opens them to the network, as a container needs it. Then use --tls_certificate and "
                  "--auth_tokens.",
                  &host),
       IntFlag("port", "N", "The gRPC port. 0 takes any free port, which the log line \"serving\" names.", 0, 65535,
               &port),
       IntFlag("http_port", "N",
               "The HTTP port of /metrics, /healthz, /readyz and the status page. 0 takes any free port.", 0, 65535,
               &http_port),
       MaybeEmptyFlag("trusted_proxies", "NETWORKS",
                      "The networks of proxies, separated by commas (10.0.0.0/8,2001:db8::7), that connect to --port "
                      "and name the client by the PROXY protocol, version 1 or 2. Limits and logs then use the "
                      "client's address. Without this flag no proxy is trusted. A proxy must pass TCP (L4) through.",
                      &trusted_proxies),
       StringFlag("admin_host", "ADDRESS",
                  "The port of AdminService, which loads, unloads and tunes models, listens on this address.",
                  &admin_host),
       IntFlag("admin_port", "N",
               "The port of AdminService. 0 takes any free port; -1 takes the one above --port, where clients look "
               "for it by default.",
               -1, 65535, &admin_port),
       BytesFlag("max_message_bytes",
                 "The largest request, and the largest response. A larger request gets RESOURCE_EXHAUSTED.", 1 << 20,
                 std::numeric_limits<int>::max(), &max_message_bytes),
       MaybeEmptyFlag("shared_memory_prefix", "PREFIX",
                      "Clients of the open inference protocol may register shared memory for their points and outputs "
                      "if its name begins with PREFIX, such as /voxserve-. Every client that may infer can then read "
                      "and write this memory. Without this flag no shared memory can be registered.",
                      &shared_memory_prefix)});
  add("identity",
      {MaybeEmptyFlag("tls_certificate", "FILE",
                      "The PEM file of the server's certificate and the intermediate certificates. Every port then "
                      "speaks only TLS 1.2 or 1.3. The server reads this file and those of the next two flags again "
                      "when they change. Without this flag there is no TLS.",
                      &tls.certificate),
       MaybeEmptyFlag("tls_key", "FILE", "The PEM file of the certificate's private key.", &tls.key),
       MaybeEmptyFlag("tls_client_ca", "FILE",
                      "The PEM file of the root certificates that must have issued the clients' certificates. gRPC "
                      "then refuses clients without a certificate; of HTTP, /healthz and /readyz stay open to them. "
                      "Without this flag clients need no certificate.",
                      &tls.client_ca),
       MaybeEmptyFlag("auth_tokens", "FILE",
                      "The file of bearer tokens. It says for each token which calls it allows, and at which priority "
                      "and share; server/README.md has the form of a line, and --hash_token makes its second column. "
                      "Every call except health checks then needs a token. The server reads the file again when it "
                      "changes. This flag needs --tls_certificate. Without this flag calls need no token.",
                      &auth_tokens),
       BoolFlag(
           "insecure_tokens",
           "The server takes tokens without TLS, for a proxy on this machine that ends TLS. Everybody who can read "
           "the network's packets can then read the tokens.",
           &insecure_tokens)});
  add("limits",
      {BytesFlag("memory_limit",
                 "The process uses at most this much memory of the host: for weights, queues, sweeps, answers and "
                 "batches. A request that does not fit gets RESOURCE_EXHAUSTED before memory is allocated. The limit "
                 "is 512MiB or more; 0 takes 80% of the memory of the machine or the container.",
                 0, kNoLimit, &memory_limit),
       IntFlag("max_queue_requests", "N",
               "Up to N requests of a model may wait. The next one gets RESOURCE_EXHAUSTED, reason QUEUE_FULL.", 1,
               kNoLimit, &max_queue_requests),
       BytesFlag("max_queue_bytes",
                 "The point clouds of a model's waiting requests may take this much memory. A request beyond it gets "
                 "RESOURCE_EXHAUSTED, reason QUEUE_FULL. 0 takes a quarter of --memory_limit, at most 1GiB.",
                 0, kNoLimit, &max_queue_bytes),
       DurationFlag("max_request_time",
                    "A request whose points are predicted to take longer than this to compute, alone, gets "
                    "INVALID_ARGUMENT, reason TOO_MANY_POINTS. One a minute runs nevertheless, so that predictions "
                    "that are too high get corrected.",
                    &max_request_time, absl::Milliseconds(1)),
       BytesFlag("grpc_memory_bytes",
                 "gRPC may hold this much memory for messages on the wire, and as much for answers that clients have "
                 "not read yet. It is at least twice --max_message_bytes. When incomplete requests hold two thirds of "
                 "it, the client that holds the most loses a connection, if it holds more than a quarter. 0 takes a "
                 "quarter of --memory_limit, at most 2GiB.",
                 0, kNoLimit, &grpc_memory_bytes),
       IntFlag("max_connections", "N",
               "Up to N gRPC connections may be open. 0 takes as many as the process may have file descriptors for, at "
               "most 10000.",
               0, kNoLimit, &max_connections),
       DurationFlag("max_connection_idle",
                    "A client that has made no call for this time is asked to close its connection; inf never asks.",
                    &max_connection_idle, absl::Milliseconds(1)),
       DurationFlag("max_connection_age",
                    "A client is asked to connect again when its connection has this age, 10% more or less, so that "
                    "clients spread over servers. Its open calls go on. inf never asks.",
                    &max_connection_age, absl::Milliseconds(1))});
  add("limits of one client",
      {IntFlag("max_client_connections", "N",
               "One client, which is known by its address, may have up to N gRPC connections. 0 takes a quarter of "
               "--max_connections.",
               0, kNoLimit, &max_client_connections),
       IntFlag("max_client_calls", "N",
               "One client may have up to N open calls. The next one gets RESOURCE_EXHAUSTED, reason CLIENT_LIMIT. All "
               "clients together may have 16 times as many.",
               1, 1'000'000, &max_client_calls),
       IntFlag("max_client_streams", "N",
               "Up to N of a client's open calls may be InferStream. The next one gets RESOURCE_EXHAUSTED, reason "
               "CLIENT_LIMIT.",
               1, 1'000'000, &max_client_streams),
       DurationFlag("request_timeout",
                    "A request must have arrived completely this long after the call's start. A later one gets "
                    "DEADLINE_EXCEEDED, reason REQUEST_INCOMPLETE.",
                    &request_timeout),
       DurationFlag("answer_timeout",
                    "A client must have read an answer after this time and one second for each MiB of the answer. A "
                    "slower client's call is cancelled.",
                    &answer_timeout),
       DurationFlag("stream_idle_timeout",
                    "A stream without a new frame for this time ends with DEADLINE_EXCEEDED, reason STREAM_IDLE.",
                    &stream_idle_timeout)});
  add("the process",
      {DurationFlag("drain_timeout",
                    "After SIGTERM, SIGINT or SIGQUIT the server takes up to this time to answer the requests that it "
                    "has accepted. Requests that still wait in queues after a fifth of this time get UNAVAILABLE. A "
                    "second signal ends the process at once.",
                    &drain_timeout, absl::ZeroDuration()),
       DurationFlag("stuck_batch_time",
                    "A batch is stuck if it runs longer than this time and longer than --stuck_batch_factor times its "
                    "predicted time. The server then says NOT_SERVING and ends with status 3 within some seconds. A "
                    "batch without a prediction, such as the first of its size, may run 10 times as long. inf never "
                    "ends the server.",
                    &stuck_batch_time, absl::Milliseconds(1)),
       NumberFlag("stuck_batch_factor", "R",
                  "A batch is not stuck before it has run R times its predicted time. 0 ignores the prediction.", 0,
                  1e6, &stuck_batch_factor),
       ChoiceFlag<LogLevel>(
           "log_level",
           {{"debug", LogLevel::kDebug},
            {"info", LogLevel::kInfo},
            {"warning", LogLevel::kWarning},
            {"error", LogLevel::kError}},
           "The server logs lines of this level and above. At debug it writes a line for each request, at info for "
           "each request that is refused or fails.",
           &log_level),
       ChoiceFlag<LogFormat>("log_format", {{"text", LogFormat::kText}, {"json", LogFormat::kJson}},
                             "text writes key=value pairs; json writes one object a line, for log collectors.",
                             &log_format)});
  return flags;
}

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
  RETURN_IF_ERROR(CheckFlags(Options(*this).Flags()));
  std::error_code ignored;
  if (!plan_dir.empty() && std::filesystem::exists(plan_dir, ignored) &&
      !std::filesystem::is_directory(plan_dir, ignored)) {
    return FlagError("plan_dir", plan_dir, "a folder, or not be there yet");
  }
  if (port != 0 && port == http_port) {
    return absl::InvalidArgumentError(absl::StrCat("--port and --http_port are both ", port, "; they must differ"));
  }
  if (!shared_memory_prefix.empty() &&
      (shared_memory_prefix[0] != '/' || shared_memory_prefix.find('/', 1) != std::string::npos)) {
    return FlagError("shared_memory_prefix", shared_memory_prefix,
                     "a name of shared memory: begin with a slash and have no other");
  }
  if (const auto networks = ParseNetworks(trusted_proxies); !networks.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--trusted_proxies: ", networks.status().message()));
  }
  if (admin_port == -1 && port == 65535) {
    return absl::InvalidArgumentError("--admin_port is required: no port is above --port=65535");
  }
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
        "--auth_tokens needs --tls_certificate and --tls_key: without TLS everybody who can read the network's packets "
        "can read the tokens (--insecure_tokens takes them nevertheless, for a proxy that ends TLS)");
  }
  if (insecure_tokens && auth_tokens.empty()) {
    return absl::InvalidArgumentError("--insecure_tokens needs --auth_tokens");
  }
  if (max_queue_bytes != 0 && max_queue_bytes < max_message_bytes) {
    return FlagError("max_queue_bytes", FormatBytes(max_queue_bytes), "0 or at least --max_message_bytes");
  }
  if (grpc_memory_bytes != 0 && grpc_memory_bytes < 2 * max_message_bytes) {
    return FlagError("grpc_memory_bytes", FormatBytes(grpc_memory_bytes), "0 or at least twice --max_message_bytes");
  }
  if (memory_limit != 0 && memory_limit < kMinMemoryLimit) {
    return FlagError("memory_limit", FormatBytes(memory_limit),
                     absl::StrCat("0 or at least ", FormatBytes(kMinMemoryLimit)));
  }
  const Options resolved = Resolved();
  for (const auto& [flag, bytes] : {std::pair("grpc_memory_bytes", resolved.grpc_memory_bytes),
                                    std::pair("max_queue_bytes", resolved.max_queue_bytes)}) {
    if (bytes <= resolved.memory_limit / 2) continue;
    return FlagError(flag, FormatBytes(bytes),
                     absl::StrCat("at most half of --memory_limit, which is ", FormatBytes(resolved.memory_limit)));
  }
  if (resolved.BudgetBytes() < kMinBudgetBytes) {
    return FlagError(
        "memory_limit", FormatBytes(resolved.memory_limit),
        absl::StrCat("more: it leaves ", FormatBytes(resolved.BudgetBytes()), " beside --grpc_memory_bytes and the ",
                     FormatBytes(kProcessBytes), " of the process itself; models and requests need at least ",
                     FormatBytes(kMinBudgetBytes)));
  }
  return absl::OkStatus();
}

absl::StatusOr<CommandLine> ParseCommandLine(const std::vector<std::string>& args) {
  CommandLine line;
  if (!args.empty() && args[0] == "serve") {
    return absl::InvalidArgumentError(
        "\"serve\" is a command of the Python package; this program is the server itself: write "
        "--model_repository=FOLDER, where FOLDER is one model or has several");
  }
  RETURN_IF_ERROR(ParseFlags(args, AllFlags(line), nullptr));
  if (line.action == CommandLine::Action::kHashToken && args.size() > 1) {
    return absl::InvalidArgumentError("--hash_token stands alone, and reads the token from standard input");
  }
  if (line.action == CommandLine::Action::kServe) RETURN_IF_ERROR(line.options.Validate());
  return line;
}

std::string HelpText() {
  CommandLine defaults;
  return FormatHelp(
             "voxserve",
             {.synopsis = "--model_repository FOLDER [FLAGS]",
              .summary = "serves sparse-convolution networks on LiDAR point clouds over gRPC",
              .description = "A request has a point cloud; its answer has a label for each point, boxes or tensors. "
                             "Sizes are written as 1048576, 64MiB or 1GiB, and times as 500ms, 30s or 2m. A flag that "
                             "is true or false needs no value: --deterministic means --deterministic=true.",
              .examples =
                  "  voxserve --model_repository deploy/models\n"
                  "      Serves every model of the folder to this machine: gRPC on port 8500; metrics, probes and a\n"
                  "      status page on http://localhost:8080. Try it:\n"
                  "      voxserve-client infer --model minkunet scan.bin\n"
                  "  voxserve --model_repository /models --host 0.0.0.0 --max_queue_requests 32 --drain_timeout 10s\n"
                  "      Serves the network, refuses requests early instead of queueing many, and ends quickly.\n"},
             AllFlags(defaults)) +
         "\nExit status: 0 after SIGTERM, SIGINT or SIGQUIT with every accepted request answered; 1 when serving\n"
         "cannot start, when the drain timed out or when a GPU failed; 2 for a bad command line; 3 after a\n"
         "batch that was stuck.\n";
}

}  // namespace voxserve
