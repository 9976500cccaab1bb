#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cpp/cli/commands.h"
#include "client/cpp/cli/printable.h"
#include "client/cpp/cli/progress_bar.h"
#include "client/cpp/cli/report.h"
#include "client/cpp/view/count_text.h"

namespace voxserve::client {
namespace {

struct TuneArguments {
  Connection connection{.timeout = absl::Hours(1)};
  std::string model;
  int64_t version = 0;
  int64_t num_scans = 16;
  absl::Duration max_wait = absl::Seconds(60);

  std::vector<Flag> Flags() {
    return connection.AdminFlags(
        {StringFlag("model", "NAME", "The model whose plan is searched. Required.", &model),
         IntFlag("version", "N", "The model's version. Without this flag it is the newest that is ready.", 1, INT64_MAX,
                 &version),
         IntFlag("scans", "N", "The search uses the scans of the next N requests.", 1, 100, &num_scans),
         DurationFlag("max_wait",
                      "The server waits for up to this time for those requests. Then the search uses the scans that "
                      "have come.",
                      &max_wait)});
  }
};

// Shows progress: a bar that redraws itself in a terminal, otherwise a line per stage.
class ProgressReport {
 public:
  explicit ProgressReport(const Terminal& terminal) : is_tty_(terminal.err_is_tty) {}

  void Show(v1::TunePlanProgress progress) {
    MakePrintable(&progress);
    if (is_tty_) {
      std::cerr << "\r\x1b[K" << FormatFraction(progress.fraction()) << "  " << progress.stage() << std::flush;
    } else if (progress.stage() != stage_) {
      std::cerr << FormatFraction(progress.fraction()) << "  " << progress.stage() << std::endl;
    }
    stage_ = progress.stage();
  }

  // Removes the bar from the terminal.
  void Finish() const {
    if (is_tty_) std::cerr << "\r\x1b[K" << std::flush;
  }

 private:
  const bool is_tty_;
  std::string stage_;
};

std::string VoxelsOf(const v1::TunedBucket& bucket) {
  if (bucket.max_voxels() == 0) {
    return bucket.min_voxels() == 0 ? "any" : absl::StrCat("from ", WithSeparators(bucket.min_voxels()));
  }
  if (bucket.min_voxels() == 0) return absl::StrCat("below ", WithSeparators(bucket.max_voxels()));
  return absl::StrCat(WithSeparators(bucket.min_voxels()), " to ", WithSeparators(bucket.max_voxels()));
}

std::string FormatResult(const std::string& model, const v1::TunePlanResult& result) {
  std::string text = absl::StrFormat("%s tuned on %s with %d scans in %s\n", model, result.device(), result.num_scans(),
                                     FormatTime(absl::Seconds(result.seconds())));
  absl::StrAppendFormat(&text, "  %-24s %5s %11s %11s %7s\n", "voxels", "scans", "default", "tuned", "gain");
  for (const v1::TunedBucket& bucket : result.buckets()) {
    const std::string gain =
        bucket.tuned_ms() > 0 ? absl::StrFormat("%.2fx", bucket.default_ms() / bucket.tuned_ms()) : "-";
    absl::StrAppendFormat(&text, "  %-24s %5d %8.2f ms %8.2f ms %7s\n", VoxelsOf(bucket), bucket.num_scans(),
                          bucket.default_ms(), bucket.tuned_ms(), gain);
  }
  absl::StrAppend(&text, result.path().empty() ? "the server could not write the plan and will lose it when it ends"
                                               : absl::StrCat("the server wrote ", result.path()));
  return absl::StrCat(text, "\n");
}

int RunTune(const std::vector<std::string>& words, const Terminal& terminal) {
  TuneArguments arguments;
  std::vector<std::string> positionals;
  if (absl::Status status = ParseFlags(words, arguments.Flags(), &positionals); !status.ok()) {
    return FailUsage("tune", status);
  }
  if (!positionals.empty()) {
    return FailUsage("tune",
                     absl::InvalidArgumentError("it takes no arguments: the server uses the scans of its requests"));
  }
  if (arguments.model.empty()) return FailUsage("tune", absl::InvalidArgumentError("--model is missing"));
  const absl::StatusOr<std::unique_ptr<Client>> client = arguments.connection.Connect();
  if (!client.ok()) return Fail(client.status());
  ProgressReport report(terminal);
  absl::StatusOr<v1::TunePlanResult> result =
      (*client)->TunePlan({.model = arguments.model,
                           .version = arguments.version,
                           .num_scans = static_cast<int>(arguments.num_scans),
                           .max_wait = arguments.max_wait,
                           .timeout = arguments.connection.timeout},
                          [&report](const v1::TunePlanProgress& progress) { report.Show(progress); });
  report.Finish();
  if (!result.ok()) return Fail(result.status());
  MakePrintable(&*result);
  std::cout << FormatResult(arguments.model, *result);
  return kExitOk;
}

}  // namespace

Command TuneCommand() {
  return {
      {"tune", "--model NAME [--scans N] [FLAGS]", "makes the server search for a faster plan of a model",
       "The server keeps the clouds of the next requests, measures with them which plan is fastest on its device, and "
       "swaps it in. It answers requests meanwhile. It needs requests: without scans there is nothing to measure. "
       "Ending this command ends the search.",
       "  voxserve-client tune --model minkunet\n"
       "  voxserve-client tune --model minkunet --scans 50 --max_wait 10m     # if scans are rare\n"},
      ListFlags<TuneArguments>,
      RunTune};
}

}  // namespace voxserve::client
