// Compares the GPU's gather-GEMM-scatter with naive loops in double, for every grouping of offsets.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "kernels/conv/gather_gemm_scatter.h"
#include "kernels/conv/pair_tables.h"
#include "tests/kernels/conv/rulebook_testing.h"
#include "tests/kernels/core/feature_testing.h"
#include "tests/kernels/core/test_gemm.h"

namespace voxserve::kernels::gather_gemm_scatter_cuda_test {
namespace {

using support::ExpectCudaSuccess;
using support::TestStream;

// Fills the entries of a pair table behind its rows. A kernel that reads them uses a pair that does not exist.
constexpr int32_t kRubbishPair = 0x7f7f7f7f;

// Copies the pair tables of a rulebook to the GPU. Their capacities exceed the number of rows.
class DeviceTables {
 public:
  explicit DeviceTables(const RulebookView& rulebook)
      : in_capacity_(rulebook.num_in_rows + 3),
        out_capacity_(rulebook.num_out_rows + 5),
        in_pairs_(Device::kCuda, Table(rulebook, rulebook.in_rows, rulebook.num_in_rows, in_capacity_)),
        out_pairs_(Device::kCuda, Table(rulebook, rulebook.out_rows, rulebook.num_out_rows, out_capacity_)),
        in_masks_(Device::kCuda, Masks(rulebook, rulebook.in_rows, in_capacity_)),
        out_masks_(Device::kCuda, Masks(rulebook, rulebook.out_rows, out_capacity_)),
        view_{.num_offsets = rulebook.num_offsets,
              .in_pairs = in_pairs_.data(),
              .in_capacity = in_capacity_,
              .out_pairs = out_pairs_.data(),
              .out_capacity = out_capacity_,
              .in_masks = in_masks_.data(),
              .out_masks = out_masks_.data(),
              .offset_begin = rulebook.offset_begin,
              .num_in_rows = rulebook.num_in_rows,
              .num_out_rows = rulebook.num_out_rows} {}

  const PairTablesView& view() const { return view_; }

 private:
  static std::vector<int32_t> Table(const RulebookView& rulebook, const int32_t* rows, int64_t num_rows,
                                    int64_t capacity) {
    std::vector<int32_t> table(static_cast<size_t>(rulebook.num_offsets * capacity), kRubbishPair);
    for (int32_t k = 0; k < rulebook.num_offsets; ++k) {
      int32_t* const pairs = table.data() + k * capacity;
      std::fill(pairs, pairs + num_rows, -1);
      for (int64_t p = rulebook.offset_begin[k]; p < rulebook.offset_begin[k + 1]; ++p) {
        pairs[rows[p]] = static_cast<int32_t>(p);
      }
    }
    return table;
  }

  static std::vector<uint32_t> Masks(const RulebookView& rulebook, const int32_t* rows, int64_t capacity) {
    const int32_t words = MaskWords(rulebook.num_offsets);
    std::vector<uint32_t> masks(static_cast<size_t>(capacity * words));
    for (int32_t k = 0; k < rulebook.num_offsets; ++k) {
      for (int64_t p = rulebook.offset_begin[k]; p < rulebook.offset_begin[k + 1]; ++p) {
        masks[static_cast<size_t>(rows[p] * words + k / 32)] |= 1u << (k % 32);
      }
    }
    return masks;
  }

  int64_t in_capacity_, out_capacity_;
  DeviceArray<int32_t> in_pairs_, out_pairs_;
  DeviceArray<uint32_t> in_masks_, out_masks_;
  PairTablesView view_;
};

// Returns the rulebook of a submanifold convolution: the centre offset pairs each row with itself, and opposite offsets
// have the same pairs reversed.
Rulebook RandomSubmanifoldRulebook(int32_t num_offsets, int64_t num_rows, double density, Random& random) {
  const Rulebook half = RandomRulebook(num_offsets / 2, num_rows, num_rows, density, random);
  Rulebook rulebook{.num_out_rows = num_rows, .num_in_rows = num_rows, .offset_begin = {0}};
  for (int32_t k = 0; k < num_offsets; ++k) {
    if (k == num_offsets / 2) {
      for (int32_t row = 0; row < num_rows; ++row) {
        rulebook.in_rows.push_back(row);
        rulebook.out_rows.push_back(row);
      }
    } else {
      const bool is_mirrored = k > num_offsets / 2;
      const auto from = static_cast<size_t>(is_mirrored ? num_offsets - 1 - k : k);
      for (auto p = static_cast<size_t>(half.offset_begin[from]); p < static_cast<size_t>(half.offset_begin[from + 1]);
           ++p) {
        rulebook.in_rows.push_back(is_mirrored ? half.out_rows[p] : half.in_rows[p]);
        rulebook.out_rows.push_back(is_mirrored ? half.in_rows[p] : half.out_rows[p]);
      }
    }
    rulebook.offset_begin.push_back(static_cast<int64_t>(rulebook.in_rows.size()));
  }
  return rulebook;
}

struct RulebookCase {
  std::string name;
  Rulebook rulebook;
  bool is_symmetric = false;
  bool is_inverse = false;  // the test swaps inputs and outputs
};

std::vector<RulebookCase> RulebookCases(Random& random) {
  std::vector<RulebookCase> cases;
  cases.push_back({"strided", RandomRulebook(8, 300, 170, 0.4, random)});
  cases.push_back({"inverse", RandomRulebook(8, 300, 170, 0.4, random), false, true});
  cases.push_back({"submanifold", RandomSubmanifoldRulebook(27, 211, 0.3, random), true});
  cases.push_back({"identity alone", RandomSubmanifoldRulebook(1, 130, 0, random), true});
  cases.push_back({"one row", RandomSubmanifoldRulebook(27, 1, 0, random), true});
  cases.push_back({"no pairs", RandomRulebook(5, 60, 70, 0, random)});
  cases.push_back({"no inputs", RandomRulebook(3, 0, 9, 0, random)});
  cases.push_back({"no outputs", RandomRulebook(3, 9, 0, 0, random)});
  cases.push_back({"343 offsets", RandomSubmanifoldRulebook(343, 20, 0.1, random), true});
  return cases;
}

std::vector<GroupingOptions> Groupings() {
  return {{.grouping = Grouping::kSeparate},    {.grouping = Grouping::kSymmetric},
          {.grouping = Grouping::kFixed},       {},
          {.epsilon = 0.3, .bmm_max_rows = 60}, {.epsilon = 1, .bmm_max_rows = kNoLimit}};
}

MatmulGrouping Group(const PairTablesView& view, bool is_symmetric, const GroupingOptions& options) {
  return GroupMatmuls({.num_offsets = view.num_offsets,
                       .offset_begin = view.offset_begin,
                       .is_symmetric = is_symmetric,
                       .identity_offset = view.identity_offset},
                      options);
}

class GatherGemmScatterTest : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override { SKIP_WITHOUT(Device::kCuda); }
};

struct Case {
  const RulebookCase* rulebook;
  GroupingOptions grouping;
  int32_t in_channels, out_channels;
  Margins margins;
  EpilogueCase epilogue;
  DType dtype, out_dtype;
  bool in_place;  // the output is also the residual
};

void Check(const Case& c, cuda::Gemm& gemm, Random& random) {
  SCOPED_TRACE(testing::Message() << c.rulebook->name << ", grouping " << static_cast<int>(c.grouping.grouping)
                                  << " epsilon " << c.grouping.epsilon << ", " << c.in_channels << " to "
                                  << c.out_channels << " channels as " << NameOf(c.out_dtype) << ", margin "
                                  << c.margins.before << ", bias " << c.epilogue.bias << ", residual "
                                  << c.epilogue.residual << ", ReLU " << c.epilogue.relu << ", in place "
                                  << c.in_place);
  RulebookView rulebook = c.rulebook->rulebook.View();
  const DeviceTables tables(rulebook);
  PairTablesView view = tables.view();
  if (c.rulebook->is_inverse) {
    std::swap(rulebook.in_rows, rulebook.out_rows);
    std::swap(rulebook.num_in_rows, rulebook.num_out_rows);
    std::swap(view.in_pairs, view.out_pairs);
    std::swap(view.in_capacity, view.out_capacity);
    std::swap(view.in_masks, view.out_masks);
    std::swap(view.num_in_rows, view.num_out_rows);
  }
  const int32_t num_offsets = rulebook.num_offsets;
  if (c.rulebook->is_symmetric) view.identity_offset = num_offsets / 2;

  const Matrix in(rulebook.num_in_rows, c.in_channels, c.margins, &random, c.dtype);
  const Matrix residual(rulebook.num_out_rows, c.out_channels, c.margins, &random, c.dtype);
  const int64_t matrix = int64_t{c.in_channels} * c.out_channels;
  const std::vector<float> weights = random.Floats(num_offsets * matrix, c.dtype);
  const std::vector<float> bias = random.Floats(c.out_channels);
  const Expected expected = NaiveConvolution(rulebook, in, weights, c.out_channels, c.epilogue.bias ? &bias : nullptr,
                                             c.epilogue.residual ? &residual : nullptr, c.epilogue.relu);

  std::vector<float> ordered;
  for (const int32_t k : WalkOrder(num_offsets, c.rulebook->is_symmetric)) {
    ordered.insert(ordered.end(), weights.begin() + k * matrix, weights.begin() + (k + 1) * matrix);
  }
  const DeviceMatrix device_in(Device::kCuda, c.dtype, in), device_residual(Device::kCuda, c.dtype, residual);
  const DeviceValues device_weights(Device::kCuda, c.dtype, ordered), device_bias(Device::kCuda, DType::kFloat32, bias);
  const Matrix out_at_first = c.in_place ? residual : Matrix(residual.rows, c.out_channels, c.margins, nullptr);
  std::vector<uint8_t> first_bytes;
  for (int run = 0; run < 2; ++run) {
    const DeviceMatrix out(Device::kCuda, c.out_dtype, out_at_first);
    const MatmulGrouping grouping = Group(view, c.rulebook->is_symmetric, c.grouping);
    cuda::GatherGemmScatterParams params{
        .tables = view,
        .is_symmetric = c.rulebook->is_symmetric,
        .grouping = &grouping,
        .operands = {device_in.View(), out.View(), device_weights.data(),
                     c.epilogue.With(device_bias.data(), c.in_place ? out.View() : device_residual.View())}};
    // Unused workspace holds NaN in the first run and another value in the second. Results that differ would depend on
    // it.
    const size_t bytes = cuda::GatherGemmScatterWorkspaceBytes(params);
    const DeviceArray<uint8_t> workspace(Device::kCuda, std::vector<uint8_t>(bytes, run == 0 ? 0xff : 0x11));
    params.workspace = workspace.data();
    ExpectCudaSuccess(cuda::GatherGemmScatter(params, gemm, TestStream()));
    if (run == 0) {
      ExpectNear(out.ToHost(), expected, c.dtype);
      first_bytes = out.Bytes();
    } else {
      EXPECT_EQ(out.Bytes(), first_bytes);
    }
  }
}

TEST_P(GatherGemmScatterTest, EveryGroupingEqualsTheNaiveLoop) {
  const DType dtype = GetParam();
  Random random(21);
  const TestGemm gemm;
  const std::vector<std::pair<int32_t, int32_t>> channels = {{1, 1},  {3, 8},   {4, 12}, {8, 16},
                                                             {12, 3}, {16, 32}, {32, 96}};
  const std::vector<Margins> margins = {{}, {.before = 8, .after = 8}, {.before = 1, .after = 2}};
  const std::vector<RulebookCase> rulebooks = RulebookCases(random);
  for (const RulebookCase& rulebook : rulebooks) {
    for (const GroupingOptions& grouping : Groupings()) {
      for (int repetition = 0; repetition < 4; ++repetition) {
        const auto [in_channels, out_channels] = random.OneOf(channels);
        const DType out_dtype = random.OneOf(OutDTypes(dtype));
        const EpilogueCase epilogue = random.OneOf(EpilogueCases());
        Check({.rulebook = &rulebook,
               .grouping = grouping,
               .in_channels = in_channels,
               .out_channels = out_channels,
               .margins = random.OneOf(margins),
               .epilogue = epilogue,
               .dtype = dtype,
               .out_dtype = out_dtype,
               .in_place = epilogue.residual && out_dtype == dtype && random.Chance(0.5)},
              *gemm, random);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(GatherGemmScatterTest, EveryWidthOfRows) {
  const DType dtype = GetParam();
  Random random(22);
  const TestGemm gemm;
  const RulebookCase rulebook{"submanifold", RandomSubmanifoldRulebook(27, 150, 0.4, random), true};
  for (const int32_t channels : {1, 2, 3, 4, 6, 8, 12, 16, 32, 96, 256}) {
    Check({&rulebook, {}, channels, channels == 256 ? 8 : 16, {}, {true, false, true}, dtype, dtype, false}, *gemm,
          random);
    Check({&rulebook, {}, 16, channels, {}, {true, true, true}, dtype, dtype, false}, *gemm, random);
    if (HasFatalFailure()) return;
  }
}

TEST_P(GatherGemmScatterTest, GatherWritesThePairsOfMovedOffsetsAlone) {
  const DType dtype = GetParam();
  Random random(23);
  for (const int64_t channels : {3, 8, 2056}) {  // 2056 exceeds the number of threads in a block
    const Rulebook rulebook = RandomRulebook(4, 50, 40, 0.5, random);
    const DeviceTables tables(rulebook.View());
    const Matrix in(50, channels, {.after = 8}, &random, dtype);
    const DeviceMatrix from(Device::kCuda, dtype, in);
    const int64_t num_pairs = rulebook.offset_begin.back();
    const Matrix untouched(num_pairs + 7, channels, {}, nullptr);
    const DeviceMatrix to(Device::kCuda, dtype, untouched);
    OffsetShifts shifts;
    for (int k = 0; k < 4; ++k) shifts.shift[k] = 7;
    shifts.shift[2] = OffsetShifts::kNotMoved;
    ExpectCudaSuccess(cuda::GatherAllOffsets(
        {.tables = tables.view(), .shifts = shifts, .from = from.View(), .to = to.data()}, TestStream()));
    Matrix expected = untouched;
    for (int64_t p = 0; p < num_pairs; ++p) {
      if (p >= rulebook.offset_begin[2] && p < rulebook.offset_begin[3]) continue;
      for (int64_t c = 0; c < channels; ++c) {
        expected.at(p + 7, c) = in.at(rulebook.in_rows[static_cast<size_t>(p)], c);
      }
    }
    EXPECT_EQ(to.ToHost().values, expected.values) << channels << " channels";
  }
}

TEST_P(GatherGemmScatterTest, MoreOffsetsThanTheLimitAreRefused) {
  const TestGemm gemm;
  const std::vector<int64_t> offset_begin(kMaxKernelVolume + 2, 0);
  const cuda::GatherGemmScatterParams params{.tables = {.num_offsets = kMaxKernelVolume + 1,
                                                        .offset_begin = offset_begin.data(),
                                                        .num_in_rows = 1,
                                                        .num_out_rows = 1},
                                             .operands = {.in = {.dtype = GetParam()}, .out = {.dtype = GetParam()}}};
  EXPECT_EQ(cuda::GatherGemmScatter(params, *gemm, TestStream()), cudaErrorInvalidValue);
}

// Every offset pairs every row with itself, so the buffers of gathered rows exceed 2^31 values and need 64-bit indices.
TEST_P(GatherGemmScatterTest, BuffersOfMoreThan2To31Values) {
  if (GetParam() != DType::kFloat16) GTEST_SKIP() << "one dtype is enough";
  size_t free_bytes = 0, total_bytes = 0;
  ExpectCudaSuccess(cudaMemGetInfo(&free_bytes, &total_bytes));
  if (free_bytes < size_t{12} << 30) GTEST_SKIP() << "needs 12 GiB of device memory";
  constexpr int32_t kOffsets = 27, kWide = 512, kNarrow = 8;
  constexpr int64_t kRows = 160000;
  static_assert(kOffsets * kRows * kWide > int64_t{1} << 31);
  const TestGemm gemm;
  std::vector<int32_t> pairs(kOffsets * kRows);
  for (size_t p = 0; p < pairs.size(); ++p) pairs[p] = static_cast<int32_t>(p);
  std::vector<int64_t> offset_begin;
  for (int64_t k = 0; k <= kOffsets; ++k) offset_begin.push_back(k * kRows);
  const DeviceArray<int32_t> device_pairs(Device::kCuda, pairs);
  const DeviceArray<uint32_t> masks(Device::kCuda, std::vector<uint32_t>(kRows, (1u << kOffsets) - 1));
  const PairTablesView view{.num_offsets = kOffsets,
                            .in_pairs = device_pairs.data(),
                            .in_capacity = kRows,
                            .out_pairs = device_pairs.data(),
                            .out_capacity = kRows,
                            .in_masks = masks.data(),
                            .out_masks = masks.data(),
                            .offset_begin = offset_begin.data(),
                            .num_in_rows = kRows,
                            .num_out_rows = kRows};
  for (const bool is_input_wide : {true, false}) {
    const int32_t in_channels = is_input_wide ? kWide : kNarrow, out_channels = is_input_wide ? kNarrow : kWide;
    // All values of a row are equal, and offset k has the one weight (1 + k) * weight. Each output of a row is thus
    // in_channels * value * weight * (1 + 2 + ... + 27). The sum and all products are exact, in float16 too.
    const float weight = 1.0f / 64;
    constexpr int32_t kSumOfFactors = kOffsets * (kOffsets + 1) / 2;
    const auto value_of = [](int64_t row) { return static_cast<float>(row % 61) / 64; };
    std::vector<float> in(static_cast<size_t>(kRows * in_channels));
    for (size_t i = 0; i < in.size(); ++i) in[i] = value_of(static_cast<int64_t>(i) / in_channels);
    const DeviceValues device_in(Device::kCuda, DType::kFloat16, in);
    std::vector<float> weights(static_cast<size_t>(kOffsets) * kWide * kNarrow);
    for (size_t i = 0; i < weights.size(); ++i) {
      weights[i] = static_cast<float>(1 + i / (size_t{kWide} * kNarrow)) * weight;
    }
    const DeviceValues device_weights(Device::kCuda, DType::kFloat16, weights);
    const DeviceArray<float> out(Device::kCuda, static_cast<size_t>(kRows * out_channels));
    const MatmulGrouping grouping = Group(view, false, {.epsilon = 1, .bmm_max_rows = is_input_wide ? kNoLimit : 0});
    cuda::GatherGemmScatterParams params{
        .tables = view,
        .grouping = &grouping,
        .operands = {.in = {.data = device_in.data(),
                            .dtype = DType::kFloat16,
                            .channels = in_channels,
                            .pitch = in_channels,
                            .capacity = kRows},
                     .out = {.data = out.data(), .channels = out_channels, .pitch = out_channels, .capacity = kRows},
                     .weights = device_weights.data()}};
    const DeviceArray<char> workspace(Device::kCuda, cuda::GatherGemmScatterWorkspaceBytes(params));
    params.workspace = workspace.data();
    ExpectCudaSuccess(cuda::GatherGemmScatter(params, *gemm, TestStream()));
    const std::vector<float> result = out.ToHost();
    for (int64_t row = 0; row < kRows; ++row) {
      for (int32_t c = 0; c < out_channels; ++c) {
        ASSERT_EQ(result[static_cast<size_t>(row * out_channels + c)],
                  static_cast<float>(kSumOfFactors * in_channels) * value_of(row) * weight)
            << "row " << row << " channel " << c;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, GatherGemmScatterTest,
                         testing::Values(DType::kFloat32, DType::kFloat16, DType::kBfloat16),
                         [](const auto& dtype) { return std::string(NameOf(dtype.param)); });

}  // namespace
}  // namespace voxserve::kernels::gather_gemm_scatter_cuda_test
