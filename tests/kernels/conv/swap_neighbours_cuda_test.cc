// Compares the neighbour tables that the GPU swaps with the pairs of the rulebooks from which the tables were made.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/conv/swap_neighbours.h"
#include "kernels/coordinates/neighbour_search.h"
#include "tests/kernels/conv/rulebook_testing.h"
#include "tests/kernels/core/feature_testing.h"

namespace voxserve::kernels::swap_neighbours_cuda_test {
namespace {

using support::ExpectCudaSuccess;
using support::TestStream;

// Fills the entries of a table behind its rows. A kernel that reads them uses a row that does not exist.
constexpr int32_t kRubbishRow = 0x7f7f7f7f;
constexpr uint32_t kRubbishMask = 0x5a5a5a5a;

// Returns a table [K, pitch] with the input row of each output row's pair, or -1 if there is none.
std::vector<int32_t> Neighbours(const RulebookView& rulebook, int64_t pitch) {
  std::vector<int32_t> neighbours(static_cast<size_t>(rulebook.num_offsets * pitch), kRubbishRow);
  for (int64_t k = 0; k < rulebook.num_offsets; ++k) {
    const auto of_offset = neighbours.begin() + k * pitch;
    std::fill(of_offset, of_offset + rulebook.num_out_rows, -1);
    for (int64_t p = rulebook.offset_begin[k]; p < rulebook.offset_begin[k + 1]; ++p) {
      of_offset[rulebook.out_rows[p]] = rulebook.in_rows[p];
    }
  }
  return neighbours;
}

// The call has more rulebooks than one launch takes. They have different sizes, and counts below their capacities.
TEST(SwapNeighboursTest, TurnsEveryPairRound) {
  SKIP_WITHOUT(Device::kCuda);
  Random random(35);
  struct Swapped {
    Rulebook rulebook;
    int64_t in_capacity;
    std::unique_ptr<DeviceArray<int32_t>> neighbours, swapped;
    std::unique_ptr<DeviceArray<uint32_t>> row_masks;
    std::unique_ptr<DeviceArray<int64_t>> num_out;
  };
  std::vector<Swapped> all;
  std::vector<SwapNeighboursParams> params;
  for (int i = 0; i < 40; ++i) {
    const int64_t num_in = i % 5 == 4 ? 0 : 1 + 531 * (i % 7), num_out = i % 6 == 5 ? 0 : 1 + 701 * (i % 4);
    const int32_t num_offsets = i == 3 ? 343 : i == 8 ? 0 : 1 + i % 27;
    Swapped swapped{.rulebook = RandomRulebook(num_offsets, num_in, num_out, 0.5, random), .in_capacity = num_in + 3};
    const int64_t out_capacity = num_out + 4;
    swapped.neighbours =
        std::make_unique<DeviceArray<int32_t>>(Device::kCuda, Neighbours(swapped.rulebook.View(), out_capacity));
    swapped.swapped =
        std::make_unique<DeviceArray<int32_t>>(Device::kCuda, static_cast<size_t>(num_offsets * swapped.in_capacity));
    swapped.row_masks = std::make_unique<DeviceArray<uint32_t>>(
        Device::kCuda, std::vector<uint32_t>(static_cast<size_t>(swapped.in_capacity), kRubbishMask));
    swapped.num_out = std::make_unique<DeviceArray<int64_t>>(Device::kCuda, std::vector<int64_t>{num_out});
    params.push_back({.num_offsets = num_offsets,
                      .neighbours = swapped.neighbours->data(),
                      .out_capacity = out_capacity,
                      .num_out = swapped.num_out->data(),
                      .in_capacity = swapped.in_capacity,
                      .swapped = swapped.swapped->data(),
                      .row_masks = num_offsets <= kRowMaskBits ? swapped.row_masks->data() : nullptr});
    all.push_back(std::move(swapped));
  }
  ExpectCudaSuccess(cuda::SwapNeighbours(params, TestStream()));
  for (const Swapped& swapped : all) {
    const RulebookView rulebook = swapped.rulebook.View();
    std::vector<int32_t> expected(static_cast<size_t>(rulebook.num_offsets * swapped.in_capacity), -1);
    const bool has_masks = rulebook.num_offsets > 0 && rulebook.num_offsets <= kRowMaskBits;
    std::vector<uint32_t> offsets(static_cast<size_t>(swapped.in_capacity), has_masks ? 0 : kRubbishMask);
    for (int64_t k = 0; k < rulebook.num_offsets; ++k) {
      for (int64_t p = rulebook.offset_begin[k]; p < rulebook.offset_begin[k + 1]; ++p) {
        expected[static_cast<size_t>(k * swapped.in_capacity + rulebook.in_rows[p])] = rulebook.out_rows[p];
        if (!has_masks) continue;
        offsets[static_cast<size_t>(rulebook.in_rows[p])] |= 1u << k;
      }
    }
    EXPECT_EQ(swapped.swapped->ToHost(), expected);
    EXPECT_EQ(swapped.row_masks->ToHost(), offsets);
  }
  ExpectCudaSuccess(cuda::SwapNeighbours({}, TestStream()));
}

TEST(SwapNeighboursRefusalCudaTest, RowsOffsetsOfLargeKernels) {
  uint32_t offsets = 0;
  SwapNeighboursParams params{.num_offsets = kRowMaskBits + 1, .row_masks = &offsets};
  EXPECT_EQ(cuda::SwapNeighbours({&params, 1}, TestStream()), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace voxserve::kernels::swap_neighbours_cuda_test
