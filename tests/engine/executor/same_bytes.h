#pragma once

// Compares the answers of two runs of a batch byte by byte.

#include <gtest/gtest.h>

#include <cstddef>

#include "engine/executor/executor.h"

namespace voxserve {

// A debug build waits after each launch, and a capture forbids waiting. So a debug build captures no batches.
#ifdef NDEBUG
inline constexpr bool kCanCapture = true;
#else
inline constexpr bool kCanCapture = false;
#endif

// Expects the same status, outputs, tensors and counts. Times are not compared.
inline void ExpectSameBytes(const BatchReport& output, const BatchReport& expected) {
  ASSERT_EQ(output.status, expected.status);
  ASSERT_EQ(output.samples.size(), expected.samples.size());
  for (size_t i = 0; i < expected.samples.size(); ++i) {
    SCOPED_TRACE(i);
    const InferResult& sample = output.samples[i];
    const InferResult& other = expected.samples[i];
    EXPECT_EQ(sample.status, other.status);
    EXPECT_EQ(sample.counts.voxels, other.counts.voxels);
    EXPECT_EQ(sample.counts.used, other.counts.used);
    EXPECT_EQ(sample.counts.invalid, other.counts.invalid);
    EXPECT_EQ(sample.counts.out_of_range, other.counts.out_of_range);
    EXPECT_EQ(sample.counts.dropped, other.counts.dropped);
    EXPECT_EQ(sample.counts.not_finite, other.counts.not_finite);
    EXPECT_EQ(sample.num_not_finite_boxes, other.num_not_finite_boxes);
    ASSERT_EQ(sample.outputs.size(), other.outputs.size());
    for (size_t j = 0; j < other.outputs.size(); ++j) {
      EXPECT_EQ(sample.outputs[j].name, other.outputs[j].name);
      EXPECT_TRUE(sample.outputs[j].bytes == other.outputs[j].bytes) << other.outputs[j].name;
    }
    ASSERT_EQ(sample.tensors.size(), other.tensors.size());
    for (size_t j = 0; j < other.tensors.size(); ++j) {
      EXPECT_EQ(sample.tensors[j].info.name, other.tensors[j].info.name);
      EXPECT_TRUE(sample.tensors[j].bytes == other.tensors[j].bytes) << other.tensors[j].info.name;
      EXPECT_TRUE(sample.tensors[j].coordinates == other.tensors[j].coordinates) << other.tensors[j].info.name;
    }
  }
}

}  // namespace voxserve
