#pragma once

// Each *_fuzz.cc of this folder drives one parser of bytes that nobody trusts. It defines the entry point of libFuzzer
// (https://llvm.org/docs/LibFuzzer.html), which must return for every input. A crash, a sanitizer's report, a broken
// promise (FUZZ_CHECK), or a run that takes too long or too much memory is a finding.
//
// Two programs are built from it: by the preset "fuzz" a fuzzer (tests/run.sh --fuzz), by the others a test that replays
// the files of tests/fuzz/corpus/NAME.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string_view>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

// Ends the program where a promise of the parser does not hold.
#define FUZZ_CHECK(condition)                                                          \
  do {                                                                                 \
    if (!(condition)) {                                                                \
      std::cerr << __FILE__ << ":" << __LINE__ << ": broken promise: " #condition "\n"; \
      std::abort();                                                                    \
    }                                                                                  \
  } while (false)

namespace voxserve::fuzz {

inline std::string_view Text(const uint8_t* data, size_t size) { return {reinterpret_cast<const char*>(data), size}; }

// The parts of an input before and after its first byte of this value; all of it and nothing where there is none.
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
