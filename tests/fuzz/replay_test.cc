// Runs each fuzzer on every file of its corpus and on an empty input.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/fuzz/fuzz.h"
#include "tests/support/paths.h"

namespace {

using voxserve::fuzz::Fuzzer;

class CorpusTest : public testing::TestWithParam<Fuzzer> {};

INSTANTIATE_TEST_SUITE_P(Fuzzers, CorpusTest, testing::ValuesIn(voxserve::fuzz::Fuzzers()),
                         [](const auto& test) { return "fuzz_" + test.param.first; });

TEST_P(CorpusTest, EveryInputReturns) {
  const auto& [name, fuzz] = GetParam();
  const std::filesystem::path folder =
      std::filesystem::path(voxserve::support::SourceDir()) / "tests/fuzz/corpus" / name;
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  ASSERT_FALSE(files.empty()) << folder;

  fuzz(nullptr, 0);
  for (const std::filesystem::path& file : files) {
    // If an input crashes the program, the last name in its output is that of the input's file.
    SCOPED_TRACE(file.filename().string());
    std::ostringstream bytes;
    bytes << std::ifstream(file, std::ios::binary).rdbuf();
    const std::string input = bytes.str();
    std::cerr << file.filename().string() << ", " << input.size() << " bytes\n";
    fuzz(reinterpret_cast<const uint8_t*>(input.data()), input.size());
  }
}

}  // namespace
