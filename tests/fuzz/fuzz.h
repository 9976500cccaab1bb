#pragma once

// Declares the entry point of the fuzzers and their check. Each *_fuzz.cc of this folder tests one parser of untrusted
// bytes: the file defines the entry point of libFuzzer (https://llvm.org/docs/LibFuzzer.html), which gives the bytes to
// the parser and must return for every input. A crash, a sanitizer's report, a failed FUZZ_CHECK, or a run that takes
// too long or too much memory is a finding.
//
// Two programs are built from each file. The preset "fuzz" builds a fuzzer (tests/run.sh --fuzz). The other presets
// build a test that runs the entry point on the files of tests/fuzz/corpus/NAME.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string_view>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

// Ends the program if `condition`, which the parser guarantees, is false.
#define FUZZ_CHECK(condition)                                                           \
  do {                                                                                  \
    if (!(condition)) {                                                                 \
      std::cerr << __FILE__ << ":" << __LINE__ << ": broken promise: " #condition "\n"; \
      std::abort();                                                                     \
    }                                                                                   \
  } while (false)

namespace voxserve::fuzz {

inline std::string_view Text(const uint8_t* data, size_t size) { return {reinterpret_cast<const char*>(data), size}; }

// Splits an input at its first byte `separator`. Returns the parts before and after it, or the whole input and an empty
// part if it has no such byte.
struct TwoParts {
  std::string_view first;
  std::string_view second;
};
inline TwoParts SplitAt(std::string_view input, char separator) {
  const size_t at = input.find(separator);
  if (at == std::string_view::npos) return {input, {}};
  return {input.substr(0, at), input.substr(at + 1)};
}

}  // namespace voxserve::fuzz
