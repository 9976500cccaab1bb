#pragma once

// These functions are what the programs that run without a server (voxserve-tune, voxserve-calibrate) do alike as
// processes: signals, exit codes, error messages and progress. For the main thread.

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace voxserve::offline {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailure = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitInterrupted = 130;

// The parts of the process that a program uses, which main or a test sets.
struct Surroundings {
  std::ostream* out = nullptr;
  std::ostream* err = nullptr;
  bool err_is_tty = false;               // a progress bar may redraw itself on err
  std::function<bool()> is_interrupted;  // whether to stop; called between two batches; may be empty
  std::string version;                   // the engine's version

  bool wants_stop() const { return is_interrupted && is_interrupted(); }
};

// Runs a program as the process: catches signals, and gives `run` the words of the command line and the terminal.
// Returns the exit code.
int Main(int argc, char** argv, const std::string& version,
         int (*run)(const std::vector<std::string>& words, const Surroundings& surroundings));

// Prints that the command line is wrong. Returns kExitUsage.
int FailUsage(const std::string& program, const absl::Status& status, std::ostream& err);

// Does the program's work, prints its error, if any, and returns the exit code. Work that was cancelled has written
// nothing. Exceptions of the standard library become errors.
int Finish(const std::string& program, const std::function<absl::Status()>& work, std::ostream& err);

// Shows how far the work is on Surroundings::err: a bar that redraws itself in a terminal, otherwise a line for each
// stage.
class ProgressReport {
 public:
  explicit ProgressReport(const Surroundings& surroundings) : surroundings_(surroundings) {}
  ~ProgressReport() { Clear(); }
  ProgressReport(const ProgressReport&) = delete;
  ProgressReport& operator=(const ProgressReport&) = delete;

  // fraction: 0 to 1.
  void Show(double fraction, const std::string& stage);
  // Removes the bar from the terminal, before something else is printed.
  void Clear();

 private:
  const Surroundings& surroundings_;
  const absl::Time start_ = absl::Now();
  absl::Time last_drawn_ = absl::InfinitePast();
  std::string stage_;
  bool is_drawn_ = false;
};

// Returns a line such as "[#####.....]  50%  0:12  size 1 of 2: candidates".
std::string FormatProgress(double fraction, const std::string& stage, absl::Duration elapsed);

}  // namespace voxserve::offline
