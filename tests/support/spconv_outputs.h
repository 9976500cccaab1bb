#pragma once

// Finds outputs of spconv 2 that another project published. The files are not part of the repository: tests/run.sh and
// tests/gpu/run.sh convert them from the shared data into the build folder. Tests skip if the files are missing.

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "tests/support/array_tree.h"
#include "tests/support/paths.h"

namespace voxserve::support {

inline std::string SpconvOutputPath(const std::string& name) { return BinaryDir() + "/spconv/" + name + ".npz"; }

}  // namespace voxserve::support

// Declares `file`, an ArrayTree of the published file `name`; skips the test if it is missing.
#define OPEN_SPCONV_OUTPUT_OR_SKIP(file, name)                                                     \
  const std::string file##_path = ::voxserve::support::SpconvOutputPath(name);                     \
  if (!std::filesystem::exists(file##_path)) {                                                     \
    GTEST_SKIP() << "no " << file##_path << "; tests/run.sh makes it where the shared data exist"; \
  }                                                                                                \
  const auto file##_or = ::voxserve::support::ArrayTree::Read(file##_path);                        \
  ASSERT_TRUE(file##_or.ok()) << file##_or.status();                                               \
  const ::voxserve::support::ArrayTree& file = *file##_or
