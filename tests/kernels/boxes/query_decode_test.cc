// Compares the boxes that DecodeQueries makes with a naive loop in double.

#include "kernels/boxes/query_decode.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "tests/kernels/boxes/detection_testing.h"

namespace voxserve::kernels::query_decode_test {
namespace {

using support::ExpectCudaSuccess;
using support::TestStream;
using testing::ElementsAre;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int32_t kClasses = 3;

// The rows of all samples' queries.
struct Queries {
  int32_t samples = 1, k = 1;
  std::vector<float> selection, heatmap, center, height, dim, rot, vel;

  size_t size() const { return static_cast<size_t>(samples) * static_cast<size_t>(k); }
  float* Selected(size_t query) { return &selection[query * kSelectionColumns]; }

  Queries Sample(int32_t sample) const {
    Queries one{.samples = 1, .k = k};
    for (auto list : {&Queries::selection, &Queries::heatmap, &Queries::center, &Queries::height, &Queries::dim,
                      &Queries::rot, &Queries::vel}) {
      const auto width = static_cast<int64_t>((this->*list).size()) / samples;
      (one.*list).assign((this->*list).begin() + sample * width, (this->*list).begin() + (sample + 1) * width);
    }
    return one;
  }
};

// Returns the boxes of a sample in the order of their queries, without a limit on their number.
std::vector<BoxRow> NaiveBoxes(const QueryDecodeParams& params, const Queries& in, int32_t sample, bool has_velocity) {
  std::vector<BoxRow> boxes;
  for (int32_t q = 0; q < in.k; ++q) {
    const auto at = static_cast<size_t>(sample * in.k + q);
    const float* const selected = &in.selection[at * kSelectionColumns];
    const auto k = static_cast<size_t>(selected[kSelectedClass]);
    const double score = selected[kSelectedScore] / (1 + std::exp(-double{in.heatmap[at * kClasses + k]}));
    const double height = std::exp(double{in.dim[at * 3 + 2]});
    const double z = in.height[at] - (params.height_of == QueryHeight::kTop ? height / 2 : 0);
    const std::vector<double> box = {
        (in.center[at * 2] + selected[kSelectedColumn] + 0.5) * params.stride * params.voxel_size[0] +
            params.range_min[0],
        (in.center[at * 2 + 1] + selected[kSelectedRow] + 0.5) * params.stride * params.voxel_size[1] +
            params.range_min[1],
        z,
        std::exp(double{in.dim[at * 3]}),
        std::exp(double{in.dim[at * 3 + 1]}),
        height,
        std::atan2(double{in.rot[at * 2]}, double{in.rot[at * 2 + 1]}),
        has_velocity ? in.vel[at * 2] : 0.0,
        has_velocity ? in.vel[at * 2 + 1] : 0.0,
        score,
        static_cast<double>(params.class_ids[k]),
        q + 1.0};
    bool is_kept = score > params.score_thresholds[k] &&
                   std::hypot(in.rot[at * 2], in.rot[at * 2 + 1]) >= params.min_rot_lengths[k];
    for (size_t axis = 0; axis < 3; ++axis) {
      const double bounded = axis == 2 && params.bounds_bottom ? z - height / 2 : box[axis];
      is_kept = is_kept && bounded >= params.center_min[axis] && bounded <= params.center_max[axis];
    }
    if (is_kept) boxes.emplace_back(box.begin(), box.end());
  }
  return boxes;
}

class QueryDecodeTest : public testing::TestWithParam<Ground> {
 protected:
  void SetUp() override { SKIP_WITHOUT(device()); }
  Device device() const { return GetParam().device; }
  DType dtype() const { return GetParam().dtype; }

  Queries RandomQueries(int32_t samples, int32_t k) {
    Queries in{.samples = samples, .k = k};
    const auto random = [&](int64_t channels) {
      return random_.Floats(static_cast<int64_t>(in.size()) * channels, dtype());
    };
    for (size_t i = 0; i < in.size(); ++i) {
      const auto pick = [&](int most) {
        return static_cast<float>(std::uniform_int_distribution<int>(0, most)(random_.engine()));
      };
      in.selection.insert(in.selection.end(), {pick(50), pick(70), pick(kClasses - 1), (1 + pick(98)) / 100});
    }
    in.heatmap = random(kClasses);
    in.center = random(2);
    in.height = random(1);
    in.dim = random(3);
    in.rot = random(2);
    in.vel = random(2);
    return in;
  }

  static QueryDecodeParams Params(int32_t max_boxes) {
    return {.num_classes = kClasses,
            .class_ids = {4, 0, 7},
            .stride = 8,
            .voxel_size = {0.1f, 0.2f},
            .range_min = {-30, -40},
            .max_boxes = max_boxes};
  }

  // Returns the rows of all samples, [samples * max_boxes].
  std::vector<BoxRow> Decode(const Queries& in, QueryDecodeParams params, bool has_velocity = true) {
    DeviceImages rows(device(), dtype());
    const DeviceArray<float> selection(device(), in.selection);
    const DeviceArray<uint32_t> counts(device(), std::vector<uint32_t>(static_cast<size_t>(in.samples), 0));
    const DeviceArray<float> boxes(device(), static_cast<size_t>(in.samples * params.max_boxes) * kBoxPitch);
    params.num_samples = in.samples;
    params.k = in.k;
    params.dtype = dtype();
    params.selection = selection.data();
    params.heatmap = rows.Add(in.heatmap, kClasses);
    params.center = rows.Add(in.center, 2);
    params.height = rows.Add(in.height, 1);
    params.dim = rows.Add(in.dim, 3);
    params.rot = rows.Add(in.rot, 2);
    if (has_velocity) params.vel = rows.Add(in.vel, 2);
    params.num_not_finite = counts.data();
    params.boxes = boxes.data();
    if (device() == Device::kCpu) {
      ThreadPool pool(3);
      cpu::DecodeQueries(params, pool);
    } else if constexpr (kHasCuda) {
      ExpectCudaSuccess(cuda::DecodeQueries(params, TestStream()));
      support::Synchronize();
    }
    num_not_finite_ = counts.ToHost();
    return BoxRowsOf(boxes.ToHost());
  }

  // Returns how many boxes there are.
  int64_t ExpectNaive(const Queries& in, const QueryDecodeParams& params, bool has_velocity = true) {
    const std::vector<BoxRow> boxes = Decode(in, params, has_velocity);
    for (int32_t sample = 0; sample < in.samples; ++sample) {
      const auto begin = boxes.begin() + sample * params.max_boxes;
      ExpectBestOf({begin, begin + params.max_boxes}, NaiveBoxes(params, in, sample, has_velocity));
    }
    return std::count_if(boxes.begin(), boxes.end(), IsBox);
  }

  // Expects that `boxes` are the best ones of `all`, best first, then rows without a box. Boxes whose scores differ
  // only by a rounding may stand in any order.
  static void ExpectBestOf(std::vector<BoxRow> boxes, std::vector<BoxRow> all) {
    const size_t num_boxes = std::min(boxes.size(), all.size());
    for (size_t i = 0; i < boxes.size(); ++i) {
      ASSERT_EQ(IsBox(boxes[i]), i < num_boxes) << i;
      if (i >= num_boxes) {
        ASSERT_EQ(boxes[i], NoBoxRow()) << i;
      } else if (i > 0) {
        ASSERT_GE(boxes[i - 1][kBoxScore], boxes[i][kBoxScore]) << i;
      }
    }
    boxes.resize(num_boxes);
    std::vector<BoxRow> found;
    for (const BoxRow& box : boxes) {
      const auto same =
          std::find_if(all.begin(), all.end(), [&](const BoxRow& other) { return other[kBoxQuery] == box[kBoxQuery]; });
      ASSERT_NE(same, all.end()) << "query " << box[kBoxQuery];
      found.push_back(*same);
      all.erase(same);
    }
    ExpectNearBoxes(boxes, found);
    for (const BoxRow& box : all) ASSERT_LE(box[kBoxScore], boxes.back()[kBoxScore] + 1e-6);
  }

  Random random_{5};
  std::vector<uint32_t> num_not_finite_;  // of the last decoding, by sample
};
INSTANTIATE_TEST_SUITE_P(Grounds, QueryDecodeTest, AllGrounds(), GroundName);

TEST_P(QueryDecodeTest, EqualsTheNaiveLoop) {
  for (const int32_t k : {1, 2, 33, 200, 500, kMaxQueries}) {
    const Queries in = RandomQueries(3, k);
    EXPECT_EQ(ExpectNaive(in, Params(k)), 3 * k);
    ExpectNaive(in, Params((k + 1) / 2), /*has_velocity=*/false);
    if (HasFatalFailure()) return;
  }
}

TEST_P(QueryDecodeTest, ThresholdsOfEachClass) {
  QueryDecodeParams params = Params(300);
  params.score_thresholds = {0.1f, 0.3f, 0.2f};
  params.min_rot_lengths = {0.3f, 0, 0.8f};
  params.center_min = {-25, -39, -0.8f};
  params.center_max = {20, 35, 0.7f};
  for (const QueryHeight height_of : {QueryHeight::kCenter, QueryHeight::kTop}) {
    for (const bool bounds_bottom : {false, true}) {
      params.height_of = height_of;
      params.bounds_bottom = bounds_bottom;
      const int64_t num_boxes = ExpectNaive(RandomQueries(2, 300), params);
      EXPECT_GT(num_boxes, 10);
      EXPECT_LT(num_boxes, 500);
      EXPECT_THAT(num_not_finite_, ElementsAre(0, 0));
    }
  }
}

// Each query has a row of its own, with values that every dtype has exactly.
Queries PlainQueries(int32_t k) {
  Queries in{.samples = 1, .k = k};
  for (int32_t q = 0; q < k; ++q) {
    in.selection.insert(in.selection.end(), {0, static_cast<float>(q), 0, 0.5f});
    in.heatmap.insert(in.heatmap.end(), {0, 0, 0});
    in.center.insert(in.center.end(), {-0.5f, -0.5f});
    in.height.push_back(1);
    in.dim.insert(in.dim.end(), {0, 0, 0});
    in.rot.insert(in.rot.end(), {0, 1});
    in.vel.insert(in.vel.end(), {0, 0});
  }
  return in;
}

QueryDecodeParams PlainParams(int32_t max_boxes) {
  return {.num_classes = kClasses, .class_ids = {0, 1, 2}, .max_boxes = max_boxes};
}

std::vector<float> QueriesOf(const std::vector<BoxRow>& boxes) {
  std::vector<float> queries;
  for (const BoxRow& box : boxes) queries.push_back(box[kBoxQuery]);
  return queries;
}

TEST_P(QueryDecodeTest, EqualScoresKeepTheOrderOfQueries) {
  Queries in = PlainQueries(6);
  in.Selected(4)[kSelectedScore] = 0.75f;
  const std::vector<BoxRow> boxes = Decode(in, PlainParams(4));
  EXPECT_THAT(QueriesOf(boxes), ElementsAre(5, 1, 2, 3));
  EXPECT_EQ(boxes[0][kBoxX], 4.0f);
  EXPECT_EQ(boxes[0][kBoxScore], 0.375f);
}

TEST_P(QueryDecodeTest, ScoresOnTheThresholdAndQueriesThatAreNoPeaksMakeNoBox) {
  Queries in = PlainQueries(4);
  in.Selected(1)[kSelectedScore] = 0;
  in.heatmap[1 * kClasses] = kNan;  // such a query's logit is not looked at
  in.Selected(2)[kSelectedScore] = 0.25f;
  QueryDecodeParams params = PlainParams(4);
  EXPECT_THAT(QueriesOf(Decode(in, params)), ElementsAre(1, 4, 3, 0));
  EXPECT_THAT(num_not_finite_, ElementsAre(0));
  params.score_thresholds = {0.125f, 0.125f, 0.125f};
  EXPECT_THAT(QueriesOf(Decode(in, params)), ElementsAre(1, 4, 0, 0));
}

TEST_P(QueryDecodeTest, CentresOnTheBoundsAreKept) {
  Queries in = PlainQueries(4);
  in.height = {1, 2, 3, 3.5f};
  QueryDecodeParams params = PlainParams(4);
  params.center_min = {1, 0, 2};
  params.center_max = {2, 0, 3};
  EXPECT_THAT(QueriesOf(Decode(in, params)), ElementsAre(2, 3, 0, 0));
  params.bounds_bottom = true;  // by a half lower
  EXPECT_THAT(QueriesOf(Decode(in, params)), ElementsAre(3, 0, 0, 0));
  params.height_of = QueryHeight::kTop;
  params.center_max = {3, 0, 3};
  const std::vector<BoxRow> boxes = Decode(in, params);
  EXPECT_THAT(QueriesOf(boxes), ElementsAre(3, 4, 0, 0));
  EXPECT_EQ(boxes[0][kBoxZ], 2.5f);
}

TEST_P(QueryDecodeTest, BoxesThatAreNotFiniteAreDroppedAndCounted) {
  Queries in = PlainQueries(9);
  in.heatmap[0] = kNan;
  in.heatmap[1 * kClasses] = kInfinity;
  in.center[2 * 2] = kNan;
  in.height[3] = kInfinity;
  in.dim[4 * 3 + 1] = 1000;  // exp overflows
  in.rot[5 * 2] = kNan;
  in.vel[6 * 2 + 1] = -kInfinity;
  in.heatmap[7 * kClasses + 1] = kNan;  // of another class
  EXPECT_THAT(QueriesOf(Decode(in, PlainParams(9))), ElementsAre(8, 9, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(num_not_finite_, ElementsAre(7));
}

TEST_P(QueryDecodeTest, ASamplesBoxesDependOnItAlone) {
  const Queries in = RandomQueries(4, 150);
  const std::vector<BoxRow> boxes = Decode(in, Params(100));
  for (int32_t sample = 0; sample < 4; ++sample) {
    const std::vector<BoxRow> alone = Decode(in.Sample(sample), Params(100));
    EXPECT_EQ(alone, std::vector<BoxRow>(boxes.begin() + sample * 100, boxes.begin() + (sample + 1) * 100)) << sample;
  }
}

TEST_P(QueryDecodeTest, NoSamplesAreNoWork) { EXPECT_TRUE(Decode({.samples = 0, .k = 4}, Params(4)).empty()); }

}  // namespace
}  // namespace voxserve::kernels::query_decode_test
