#pragma once

// Run is the program voxserve-tune: it reads scans, loads a model, searches for the model's fastest plan (a plan says
// how each convolution is computed) and writes the plan to a file. For the main thread.
//
// voxserve-tune is the only program that uses both the engine and the client's readers of scan files.

#include <functional>
#include <ostream>
#include <string>
#include <vector>

namespace voxserve::tune {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailure = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitInterrupted = 130;

// The parts of the process that Run uses, which main or a test sets.
struct Surroundings {
  std::ostream* out = nullptr;
  std::ostream* err = nullptr;
  bool err_is_tty = false;               // a progress bar may redraw itself on err
  std::function<bool()> is_interrupted;  // whether to stop; called between two batches; may be empty
  std::string version;                   // the engine's version, for which a plan is written
};

// words: the command line without the program's name. Returns the exit code.
int Run(const std::vector<std::string>& words, const Surroundings& surroundings);

}  // namespace voxserve::tune
