// Compares the packed weights of implicit GEMMs with the layout that slices.h describes.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/conv/implicit_gemm/implicit_gemm.h"
#include "kernels/conv/implicit_gemm/int8_implicit_gemm.h"
#include "kernels/conv/implicit_gemm/slices.h"

namespace voxserve::kernels::implicit_gemm_weights_test {
namespace {

class PackImplicitGemmWeightsTest : public testing::TestWithParam<DType> {};

// Returns 1, 2, 3 and so on, so that each weight can be found by its value.
std::vector<float> Numbered(int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  std::iota(values.begin(), values.end(), 1.0f);
  return values;
}

TEST_P(PackImplicitGemmWeightsTest, EveryWeightHasItsPlaceAndTheRestIsZero) {
  const DType dtype = GetParam();
  const int64_t value_bytes = SizeOf(dtype), slice_values = 64 / value_bytes, vector_values = 16 / value_bytes;
  for (const int32_t num_offsets : {0, 1, 2, 3, 4, 5, 8, 27, 33}) {
    for (const int32_t in_channels : {1, 3, 4, 5, 8, 9, 12, 16, 17, 20, 32, 33, 36, 64, 100}) {
      for (const int32_t out_channels : {1, 3, 16, 31, 32, 33, 96, 100}) {
        SCOPED_TRACE(testing::Message() << num_offsets << " offsets, " << in_channels << " to " << out_channels);
        const int64_t num_weights = int64_t{num_offsets} * in_channels * out_channels;
        const std::vector<float> weights = Numbered(num_weights);
        const std::vector<float> packed =
            PackImplicitGemmWeights(num_offsets, in_channels, out_channels, dtype, weights.data());
        // A slice holds one, two or four offsets, if their channels fit into it as whole vectors.
        int64_t sharing = 1;
        if (in_channels <= slice_values / 2) sharing = 2;
        if (in_channels <= slice_values / 4) sharing = 4;
        const int64_t slices_an_offset = (in_channels + slice_values - 1) / slice_values;
        const int64_t num_slices = (num_offsets + sharing - 1) / sharing * slices_an_offset;
        const int64_t padded_out = (out_channels + 31) / 32 * 32;
        std::vector<float> expected(static_cast<size_t>(num_slices * padded_out * slice_values));
        ASSERT_EQ(packed.size(), expected.size());
        for (int64_t i = 0; i < num_weights; ++i) {
          const int64_t k = i / out_channels / in_channels, channel = i / out_channels % in_channels;
          // Each group of 32 output channels is permuted: eight neighbouring channels form four pairs, and each pair is
          // placed eight columns behind the pair before it.
          const int64_t channel_out = i % out_channels;
          const int64_t column =
              channel_out / 32 * 32 + channel_out % 8 / 2 * 8 + channel_out % 32 / 8 * 2 + channel_out % 2;
          const int64_t slice = k / sharing * slices_an_offset + channel / slice_values;
          const int64_t value = k % sharing * (slice_values / sharing) + channel % slice_values;
          // The 16-byte vectors of a row swap places; the swap changes with every second row.
          const int64_t vector = value / vector_values ^ (column / 2 % 4);
          float& place = expected[static_cast<size_t>((slice * padded_out + column) * slice_values +
                                                      vector * vector_values + value % vector_values)];
          ASSERT_EQ(place, 0) << "two weights in one place";
          place = weights[static_cast<size_t>(i)];
        }
        ASSERT_EQ(packed, expected);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, PackImplicitGemmWeightsTest,
                         testing::Values(DType::kFloat16, DType::kBfloat16, DType::kFloat32),
                         [](const auto& dtype) { return std::string(NameOf(dtype.param)); });

// The expected places were computed by hand. A row of a 16-bit slice has 4 vectors of 8 values.
TEST(PackedImplicitGemmWeightsTest, PlacesOfSomeWeights) {
  const auto place_of = [](const std::vector<float>& packed, float weight) {
    return std::find(packed.begin(), packed.end(), weight) - packed.begin();
  };
  // Two offsets of one channel share one slice; offset 1 is in the second vector. Output channels 2, 3 and 4 are in
  // rows 8, 9 and 16.
  const std::vector<float> narrow = PackImplicitGemmWeights(2, 1, 5, DType::kFloat16, Numbered(10).data());
  ASSERT_EQ(narrow.size(), 32u * 32u);
  EXPECT_EQ(place_of(narrow, 1), 0);             // offset 0, channel 0
  EXPECT_EQ(place_of(narrow, 2), 32);            // offset 0, channel 1
  EXPECT_EQ(place_of(narrow, 3), 8 * 32);        // offset 0, channel 2
  EXPECT_EQ(place_of(narrow, 4), 9 * 32);        // offset 0, channel 3
  EXPECT_EQ(place_of(narrow, 5), 16 * 32);       // offset 0, channel 4
  EXPECT_EQ(place_of(narrow, 6), 8);             // offset 1, channel 0
  EXPECT_EQ(place_of(narrow, 10), 16 * 32 + 8);  // offset 1, channel 4
  // Output channel 8 is in row 2, in which vectors are swapped.
  const std::vector<float> swapped = PackImplicitGemmWeights(2, 1, 9, DType::kFloat16, Numbered(18).data());
  EXPECT_EQ(place_of(swapped, 9), 2 * 32 + 8);
  EXPECT_EQ(place_of(swapped, 18), 2 * 32);
  // One offset has 33 channels, one more than a slice holds, so the last channel is in a second slice.
  const std::vector<float> wide = PackImplicitGemmWeights(1, 33, 1, DType::kBfloat16, Numbered(33).data());
  ASSERT_EQ(wide.size(), 2u * 32u * 32u);
  EXPECT_EQ(place_of(wide, 32), 31);
  EXPECT_EQ(place_of(wide, 33), 32 * 32);
  // A row of a 32-bit slice has 4 vectors of 4 values.
  const std::vector<float> wider = PackImplicitGemmWeights(1, 6, 1, DType::kFloat32, Numbered(6).data());
  ASSERT_EQ(wider.size(), 32u * 16u);
  EXPECT_EQ(place_of(wider, 6), 5);
}

// In 8 bits a row of a slice has 2 vectors of 16 values, which swap places in every second four rows.
TEST(PackInt8ImplicitGemmWeightsTest, EveryWeightHasItsPlaceAndTheRestIsZero) {
  constexpr int64_t kSliceValues = 32, kVectorValues = 16;
  for (const int32_t num_offsets : {0, 1, 2, 3, 8, 27}) {
    for (const int32_t in_channels : {1, 4, 16, 17, 20, 32, 33, 64, 96, 100}) {
      for (const int32_t out_channels : {1, 16, 31, 32, 33, 96, 100}) {
        SCOPED_TRACE(testing::Message() << num_offsets << " offsets, " << in_channels << " to " << out_channels);
        const int64_t num_weights = int64_t{num_offsets} * in_channels * out_channels;
        std::vector<int8_t> weights;
        for (int64_t i = 0; i < num_weights; ++i) weights.push_back(static_cast<int8_t>(1 + i % 113));
        const std::vector<int8_t> packed =
            PackInt8ImplicitGemmWeights(num_offsets, in_channels, out_channels, weights.data());
        const int64_t sharing = in_channels <= kVectorValues ? 2 : 1;
        const int64_t slices_an_offset = (in_channels + kSliceValues - 1) / kSliceValues;
        const int64_t num_slices = (num_offsets + sharing - 1) / sharing * slices_an_offset;
        const int64_t padded_out = (out_channels + 31) / 32 * 32;
        std::vector<int8_t> expected(static_cast<size_t>(num_slices * padded_out * kSliceValues));
        for (int64_t i = 0; i < num_weights; ++i) {
          const int64_t k = i / out_channels / in_channels, channel = i / out_channels % in_channels;
          const int64_t channel_out = i % out_channels;
          const int64_t column =
              channel_out / 32 * 32 + channel_out % 8 / 2 * 8 + channel_out % 32 / 8 * 2 + channel_out % 2;
          const int64_t slice = k / sharing * slices_an_offset + channel / kSliceValues;
          const int64_t value = k % sharing * kVectorValues + channel % kSliceValues;
          const int64_t vector = value / kVectorValues ^ (column / 4 % 2);
          int8_t& place = expected[static_cast<size_t>((slice * padded_out + column) * kSliceValues +
                                                       vector * kVectorValues + value % kVectorValues)];
          ASSERT_EQ(place, 0) << "two weights in one place";
          place = weights[static_cast<size_t>(i)];
        }
        ASSERT_EQ(packed, expected);
      }
    }
  }
}

// If eight neighbouring rows are read at the same vector, the reads must not share a bank of shared memory. They must
// thus lie in different eighths of 128 bytes.
TEST(SwizzledSliceVectorTest, EightRowsInDifferentBanks) {
  for (int32_t vector = 0; vector < kSliceVectors; ++vector) {
    for (int32_t first = 0; first < 64; first += 8) {
      uint32_t banks = 0;
      for (int32_t row = first; row < first + 8; ++row) {
        const int32_t place = SwizzledSliceVector(row, vector);
        EXPECT_EQ(place / kSliceVectors, row);
        banks |= 1u << (place % 8);
      }
      EXPECT_EQ(banks, 0xffu);
    }
  }
  for (int32_t vector = 0; vector < 2; ++vector) {
    for (int32_t first = 0; first < 64; first += 8) {
      uint32_t banks = 0;
      for (int32_t row = first; row < first + 8; ++row) banks |= 1u << (SwizzledInt8SliceVector(row, vector) % 8);
      EXPECT_EQ(banks, 0xffu);
    }
  }
}

}  // namespace
}  // namespace voxserve::kernels::implicit_gemm_weights_test
