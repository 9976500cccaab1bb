#pragma once

// Declares fuzzers and their check. Each *_fuzz.cc of this folder tests one parser of untrusted bytes. Its FUZZER gives
// the bytes to the parser and must return for every input. A crash, a sanitizer's report, a failed FUZZ_CHECK, or a run
// that takes too long or too much memory is a finding.
//
// The preset "fuzz" makes a program of each file, in which FUZZER is the entry point of libFuzzer
// (https://llvm.org/docs/LibFuzzer.html); tests/run.sh --fuzz runs them. The other presets make one test of all files,
// which runs each FUZZER on the files of tests/fuzz/corpus/NAME.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// Defines the fuzzer of NAME_fuzz.cc: FUZZER(NAME) { reads `size` bytes at `data`; return 0; }
#ifdef VOXSERVE_FUZZER
#define FUZZER(name) extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size)
#else
#define FUZZER(name)                                                                                  \
  static int Fuzz_##name(const uint8_t* data, size_t size);                                           \
  [[maybe_unused]] static const bool is_known_##name = voxserve::fuzz::AddFuzzer(#name, Fuzz_##name); \
  static int Fuzz_##name(const uint8_t* data, size_t size)
#endif

// Ends the program if `condition`, which the parser guarantees, is false.
#define FUZZ_CHECK(condition)                                                           \
  do {                                                                                  \
    if (!(condition)) {                                                                 \
      std::cerr << __FILE__ << ":" << __LINE__ << ": broken promise: " #condition "\n"; \
      std::abort();                                                                     \
    }                                                                                   \
  } while (false)

namespace voxserve::fuzz {

// The names and the functions of the fuzzers of this program, which FUZZER adds.
using Fuzzer = std::pair<std::string, int (*)(const uint8_t* data, size_t size)>;
inline std::vector<Fuzzer>& Fuzzers() {
  static std::vector<Fuzzer> fuzzers;
  return fuzzers;
}
inline bool AddFuzzer(const char* name, int (*fuzz)(const uint8_t* data, size_t size)) {
  Fuzzers().emplace_back(name, fuzz);
  return true;
}

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
