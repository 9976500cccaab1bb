#include "server/grpc/library_log.h"

#include <atomic>

#include "server/grpc/grpc_version.h"

#if VOXSERVE_GRPC_UP_TO_1_51
#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>

#include <string>
#else
#include "absl/base/log_severity.h"
#include "absl/log/globals.h"
#include "absl/log/initialize.h"
#include "absl/log/log_entry.h"
#include "absl/log/log_sink.h"
#include "absl/log/log_sink_registry.h"
#include "absl/strings/match.h"
#endif

namespace voxserve {
namespace {

std::atomic<LibraryLog> library_log = nullptr;

void Tell(bool is_error, const char* library, std::string_view text) {
  library_log.load()(is_error ? LogLevel::kWarning : LogLevel::kDebug, library, text);
}

// gRPC 1.51 and the protobuf of its time each have a hook.
#if VOXSERVE_GRPC_UP_TO_1_51
void LogFromGrpc(gpr_log_func_args* args) { Tell(args->severity == GPR_LOG_SEVERITY_ERROR, "grpc", args->message); }

void LogFromProtobuf(google::protobuf::LogLevel level, const char* /*file*/, int /*line*/, const std::string& message) {
  Tell(level >= google::protobuf::LOGLEVEL_ERROR, "protobuf", message);
}

void Connect() {
  gpr_set_log_function(LogFromGrpc);
  google::protobuf::SetLogHandler(LogFromProtobuf);
}
#else
// Later ones log by Abseil, whose lines do not say which library wrote them: its source file tells.
class Sink final : public absl::LogSink {
  void Send(const absl::LogEntry& entry) override {
    // Abseil sends a fatal line twice: before and after it has collected the stack.
    if (!entry.stacktrace().empty()) return;
    const absl::string_view text = entry.text_message();
    Tell(entry.log_severity() >= absl::LogSeverity::kError,
         absl::StrContains(entry.source_filename(), "google/protobuf/") ? "protobuf" : "grpc",
         {text.data(), text.size()});
  }
};

void Connect() {
  absl::AddLogSink(new Sink);  // never destroyed: threads of libraries log until the process ends
  // Until it is initialized, Abseil writes all lines to stderr, whatever the threshold.
  absl::SetStderrThreshold(absl::LogSeverityAtLeast::kInfinity);
  absl::InitializeLog();
  // This is 1.51's default. gRPC sets another level when it starts if GRPC_VERBOSITY asks for it.
  absl::SetMinLogLevel(absl::LogSeverityAtLeast::kError);
}
#endif

}  // namespace

void SetLibraryLog(LibraryLog log) {
  if (library_log.exchange(log) == nullptr) Connect();
}

}  // namespace voxserve
