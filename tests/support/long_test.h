#pragma once

// SKIP_UNLESS_LONG() skips a test that takes long and has a short form beside it. It runs where the environment
// variable VOXSERVE_LONG is set, as tests/release.sh does.

#include <gtest/gtest.h>

#include <cstdlib>

#define SKIP_UNLESS_LONG()                                                                 \
  do {                                                                                     \
    if (std::getenv("VOXSERVE_LONG") == nullptr) GTEST_SKIP() << "long: tests/release.sh"; \
  } while (false)
