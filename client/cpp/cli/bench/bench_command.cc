#include <iostream>

#include "absl/time/clock.h"
#include "client/cpp/cli/bench/bench_options.h"
#include "client/cpp/cli/bench/bench_report.h"
#include "client/cpp/cli/bench/bench_run.h"
#include "client/cpp/cli/commands.h"
#include "client/cpp/io/file.h"

namespace voxserve::client {
namespace {

constexpr absl::Duration kNextProgressLine = absl::Seconds(10);  // if the bar cannot redraw itself
constexpr absl::Duration kCheckTimeout = absl::Seconds(30);

// Shows progress on stderr: a line that redraws itself in a terminal, otherwise a new line now and then.
class ProgressLine {
 public:
  explicit ProgressLine(const Terminal& terminal) : is_tty_(terminal.err_is_tty) {}

  void Show(const BenchProgress& progress) {
    if (is_tty_) {
      std::cerr << "\r\x1b[K" << FormatBenchProgress(progress) << std::flush;
    } else if (const absl::Time now = absl::Now(); now - last_line_ >= kNextProgressLine) {
      last_line_ = now;
      std::cerr << FormatBenchProgress(progress) << std::endl;
    }
  }

  void Finish() const {
    if (is_tty_) std::cerr << "\r\x1b[K" << std::flush;
  }

 private:
  const bool is_tty_;
  absl::Time last_line_ = absl::Now();
};

// Makes one call first, so that a problem with the model or the server shows before a thousand requests fail. It does
// not use --timeout, which belongs to the load: a first call also connects and may take longer.
absl::Status CheckModel(const BenchOptions& options) {
  Connection connection = options.connection;
  connection.timeout = kCheckTimeout;
  const absl::StatusOr<std::unique_ptr<Client>> client = connection.Connect();
  if (!client.ok()) return client.status();
  return (*client)->GetModel(options.model, options.version).status();
}

int RunBenchCommand(const std::vector<std::string>& words, const Terminal& terminal) {
  BenchOptions options;
  if (absl::Status status = ParseFlags(words, options.Flags(), &options.paths); !status.ok()) {
    return FailUsage("bench", status);
  }
  if (absl::Status status = options.Validate(); !status.ok()) return FailUsage("bench", status);
  options.connection.num_channels = options.channels();
  absl::StatusOr<Options> connection = options.connection.ToOptions();
  if (!connection.ok()) return Fail(connection.status());
  connection->max_attempts = 1;  // a refusal is a result
  const absl::StatusOr<std::shared_ptr<Channels>> created = Channels::Create(*std::move(connection));
  if (!created.ok()) return Fail(created.status());
  const std::shared_ptr<Channels>& channels = *created;
  const absl::StatusOr<std::vector<BenchScan>> scans = ReadBenchScans(options, *channels);
  if (!scans.ok()) return Fail(scans.status());
  if (absl::Status status = CheckModel(options); !status.ok()) return Fail(status);
  BenchInput input;
  for (const BenchScan& scan : *scans) {
    ++input.num_scans;
    input.num_points += scan.num_points;
  }
  ProgressLine progress(terminal);
  const absl::StatusOr<BenchResult> result =
      RunBench(options, channels, *scans, [&progress](const BenchProgress& shown) { progress.Show(shown); });
  progress.Finish();
  if (!result.ok()) return Fail(result.status());
  std::cout << FormatBench(options, input, *result);
  if (!options.json.empty()) {
    if (absl::Status status = WriteFile(options.json, FormatBenchJson(options, input, *result)); !status.ok()) {
      return Fail(status);
    }
  }
  const absl::Status verdict = VerdictOn(*result);
  return verdict.ok() ? kExitOk : Fail(verdict);
}

}  // namespace

Command BenchCommand() {
  return {
      {"bench", "--model NAME SCAN|FOLDER... [FLAGS]", "measures throughput and latency of a server",
       "Sends scans, each encoded once, and prints throughput, latency percentiles, refused requests with reasons, and "
       "the time of each stage on the server. There are three kinds of load: callers that wait for their answers "
       "(--concurrency), requests at given times, answered or not (--rate), and vehicles that stream frames "
       "(--streams).\n"
       "Latency counts from the time at which a request or frame was due, so a server cannot hide that it makes "
       "clients wait. --timeout counts from there too; for streams it is the frame_timeout. Latencies belong to the "
       "requests that were due in the measured time, throughput to the answers that came in it. --json writes all "
       "results to a file. Frames that newer ones of their stream superseded are counted separately, not as failures. "
       "The exit code is 1 if no request was answered with OK.",
       "  voxserve-client bench --model minkunet scan.bin                     # one caller\n"
       "  voxserve-client bench --model minkunet drive/ --concurrency 8 --duration 30s\n"
       "  voxserve-client bench --model minkunet drive/ --concurrency 8 --stable 5 --json result.json\n"
       "  voxserve-client bench --model minkunet drive/ --rate 1500 --arrivals poisson --timeout 50ms\n"
       "  voxserve-client bench --model minkunet drive/ --streams 16          # vehicles, 10 Hz each\n"
       "  voxserve-client bench --model sweeps10 drive/ --streams 4 --sweeps 10 --poses poses.txt\n"},
      ListFlags<BenchOptions>,
      RunBenchCommand};
}

}  // namespace voxserve::client
