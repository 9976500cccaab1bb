// Compares decoded boxes of CenterPoint's and SECOND's heads with the boxes that tests/oracles/detection_heads.py
// stored, and the choice of the best candidates with a plain sort.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/boxes/anchor_head.h"
#include "kernels/boxes/center_head.h"
#include "tests/kernels/boxes/detection_testing.h"

namespace voxserve::kernels::detection_heads_test {
namespace {

using support::ExpectCudaSuccess;
using support::TestStream;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(BoxCandidatesTest, KeysSortByLogitThenByIndex) {
  const std::vector<float> falling = {kInfinity, 1e30f, 2.0f, 1e-40f, 0.0f, -1e-40f, -1.0f, -3e38f, -kInfinity};
  for (size_t i = 0; i < falling.size(); ++i) {
    EXPECT_EQ(LogitOfKey(CandidateKey(falling[i], 7)), falling[i]);
    EXPECT_EQ(IndexOfKey(CandidateKey(falling[i], 7)), 7u);
    EXPECT_GT(CandidateKey(falling[i], 3), CandidateKey(falling[i], 4));
    EXPECT_NE(CandidateKey(falling[i], ~0u), 0u);
    if (i > 0) {
      EXPECT_GT(CandidateKey(falling[i - 1], ~0u), CandidateKey(falling[i], 0));
    }
  }
  EXPECT_EQ(CandidateKey(0.0f, 5), CandidateKey(-0.0f, 5));
}

TEST(BoxCandidatesTest, LowestLogitIsTheFirstWhoseScoreIsEnough) {
  EXPECT_EQ(LowestLogit(0.5f, false), 0.0f);
  EXPECT_EQ(LowestLogit(0.5f, true), std::nextafter(0.0f, 1.0f));
  EXPECT_EQ(LowestLogit(0, false), -kInfinity);
  EXPECT_EQ(LowestLogit(0, true), std::numeric_limits<float>::lowest());
  EXPECT_EQ(LowestLogit(-1, true), -kInfinity);
  EXPECT_EQ(LowestLogit(1, false), kInfinity);
  EXPECT_TRUE(std::isnan(LowestLogit(1, true)));
  EXPECT_TRUE(std::isnan(LowestLogit(1.5f, false)));
  for (const float threshold : {0.01f, 0.1f, 0.3f, 0.7f, 0.999f}) {
    for (const bool is_strict : {false, true}) {
      const float lowest = LowestLogit(threshold, is_strict);
      const auto score = [](float logit) { return 1 / (1 + std::exp(-static_cast<long double>(logit))); };
      EXPECT_GE(score(lowest), threshold);
      EXPECT_LT(score(std::nextafter(lowest, -kInfinity)), threshold);
    }
  }
}

class DetectionHeadTest : public testing::TestWithParam<Ground> {
 protected:
  void SetUp() override { SKIP_WITHOUT(device()); }
  Device device() const { return GetParam().device; }
  DType dtype() const { return GetParam().dtype; }

  // Decodes all heads and returns [samples * max_boxes] boxes for each.
  std::vector<std::vector<BoxRow>> Decode(int32_t num_samples, const std::vector<CenterHead>& heads) {
    const DeviceArray<uint32_t> num_not_finite(device(), std::vector<uint32_t>(static_cast<size_t>(num_samples), 0));
    CenterHeadParams params{.num_samples = num_samples,
                            .dtype = dtype(),
                            .num_heads = static_cast<int32_t>(heads.size()),
                            .num_not_finite = num_not_finite.data()};
    std::vector<std::unique_ptr<DeviceArray<float>>> boxes;
    for (size_t i = 0; i < heads.size(); ++i) {
      boxes.push_back(std::make_unique<DeviceArray<float>>(
          device(), static_cast<size_t>(num_samples * heads[i].max_boxes) * kBoxPitch));
      params.heads[i] = heads[i];
      params.heads[i].boxes = boxes.back()->data();
    }
    if (device() == Device::kCpu) {
      ThreadPool pool(3);
      cpu::DecodeCenterHeads(params, pool);
    } else if constexpr (kHasCuda) {
      const DeviceArray<char> workspace(device(), cuda::CenterHeadWorkspaceBytes(params));
      params.workspace = workspace.data();
      ExpectCudaSuccess(cuda::DecodeCenterHeads(params, TestStream()));
      support::Synchronize();
    }
    std::vector<std::vector<BoxRow>> rows;
    for (const auto& of_head : boxes) rows.push_back(BoxRowsOf(of_head->ToHost()));
    num_not_finite_ = num_not_finite.ToHost();
    return rows;
  }

  std::vector<BoxRow> Decode(AnchorHeadParams params) {
    const auto num_samples = static_cast<size_t>(params.num_samples);
    const DeviceArray<uint32_t> num_not_finite(device(), std::vector<uint32_t>(num_samples, 0));
    params.dtype = dtype();
    params.num_not_finite = num_not_finite.data();
    const DeviceArray<float> boxes(device(), static_cast<size_t>(params.num_samples * params.max_boxes) * kBoxPitch);
    params.boxes = boxes.data();
    if (device() == Device::kCpu) {
      ThreadPool pool(3);
      cpu::DecodeAnchorHead(params, pool);
    } else if constexpr (kHasCuda) {
      const DeviceArray<char> workspace(device(), cuda::AnchorHeadWorkspaceBytes(params));
      params.workspace = workspace.data();
      ExpectCudaSuccess(cuda::DecodeAnchorHead(params, TestStream()));
      support::Synchronize();
    }
    num_not_finite_ = num_not_finite.ToHost();
    return BoxRowsOf(boxes.ToHost());
  }

  std::vector<uint32_t> num_not_finite_;  // of the last decoding, by sample
};

// Returns a head whose boxes tell where they come from: a box's x is its column, its y the row, and its class the index
// of the channel. logits: [cells, num_classes].
CenterHead PlainHead(CenterHeadConvention convention, int32_t num_rows, int32_t num_columns, int32_t num_classes,
                     const std::vector<float>& logits, DeviceImages& images) {
  CenterHead head{.convention = convention,
                  .num_rows = num_rows,
                  .num_columns = num_columns,
                  .num_classes = num_classes,
                  .score_threshold = 0};
  for (int32_t k = 0; k < num_classes; ++k) head.class_ids[static_cast<size_t>(k)] = k;
  const size_t cells = logits.size() / static_cast<size_t>(num_classes);
  head.heatmap = images.Add(logits, num_classes);
  head.center = images.Add(std::vector<float>(2 * cells, 0), 2);
  head.height = images.Add(std::vector<float>(cells, 0), 1);
  head.dim = images.Add(std::vector<float>(3 * cells, 0), 3);
  head.rot = images.Add(std::vector<float>(2 * cells, 1), 2);
  return head;
}

struct Place {
  float logit;
  int32_t class_index;
  int32_t cell;
};

// Returns the candidates of one sample with a finite logit over `above`, sorted by descending logit. The sample's
// logits [cells, classes] start at index `begin`. With one_class_a_cell, a cell contributes only its best class.
std::vector<Place> BestPlaces(const std::vector<float>& logits, int64_t begin, int32_t num_cells, int32_t num_classes,
                              bool one_class_a_cell, float above) {
  std::vector<Place> places;
  for (int32_t cell = 0; cell < num_cells; ++cell) {
    std::vector<Place> of_cell;
    for (int32_t k = 0; k < num_classes; ++k) {
      const float logit = logits[static_cast<size_t>(begin + int64_t{cell} * num_classes + k)];
      if (std::isfinite(logit) && logit > above) of_cell.push_back({logit, k, cell});
    }
    std::stable_sort(of_cell.begin(), of_cell.end(), [](const Place& a, const Place& b) { return a.logit > b.logit; });
    if (one_class_a_cell && !of_cell.empty()) of_cell.erase(of_cell.begin() + 1, of_cell.end());
    places.insert(places.end(), of_cell.begin(), of_cell.end());
  }
  std::sort(places.begin(), places.end(), [](const Place& a, const Place& b) {
    return std::tuple(-a.logit, a.class_index, a.cell) < std::tuple(-b.logit, b.class_index, b.cell);
  });
  return places;
}

TEST_P(DetectionHeadTest, CenterHeadsDecodeTheStoredImages) {
  const auto& golden = GoldenHeads();
  for (int i = 0; i < 6; ++i) {
    const auto array = [&](const std::string& name) -> const support::NpyArray& {
      return golden.at("center" + std::to_string(i) + "_" + name);
    };
    SCOPED_TRACE(i);
    DeviceImages images(device(), dtype());
    const auto numbers = array("numbers").values<double>();
    const auto number = [&](size_t n) { return static_cast<float>(numbers[n]); };
    const auto& shape = array("heatmap").shape;
    CenterHead head{.convention = numbers[0] == 1 ? CenterHeadConvention::kOpenPcdet : CenterHeadConvention::kDet3d,
                    .num_rows = static_cast<int32_t>(shape[1]),
                    .num_columns = static_cast<int32_t>(shape[2]),
                    .num_classes = static_cast<int32_t>(shape[3]),
                    .heatmap = images.Add(array("heatmap")),
                    .center = images.Add(array("center")),
                    .height = images.Add(array("height")),
                    .dim = images.Add(array("dim")),
                    .rot = images.Add(array("rot")),
                    .stride = number(1),
                    .voxel_size = {number(2), number(3)},
                    .range_min = {number(4), number(5)},
                    .score_threshold = number(6),
                    .center_min = {number(8), number(9), number(10)},
                    .center_max = {number(11), number(12), number(13)},
                    .max_boxes = static_cast<int32_t>(numbers[7])};
    if (golden.count("center" + std::to_string(i) + "_vel") > 0) head.vel = images.Add(array("vel"));
    const auto ids = array("class_ids").values<int32_t>();
    std::copy(ids.begin(), ids.end(), head.class_ids.begin());
    ExpectNearBoxes(Decode(static_cast<int32_t>(shape[0]), {head})[0], BoxRowsOf(array("boxes")));
  }
}

TEST_P(DetectionHeadTest, AnchorHeadDecodesTheStoredImages) {
  const auto& golden = GoldenHeads();
  for (int i = 0; i < 3; ++i) {
    const auto array = [&](const std::string& name) -> const support::NpyArray& {
      return golden.at("anchor" + std::to_string(i) + "_" + name);
    };
    SCOPED_TRACE(i);
    DeviceImages images(device(), dtype());
    const auto numbers = array("numbers").values<double>();
    const auto number = [&](size_t n) { return static_cast<float>(numbers[n]); };
    const auto& shape = array("scores").shape;
    const auto anchors = array("anchors").values<float>();
    const auto ids = array("class_ids").values<int32_t>();
    const auto num_anchors = static_cast<int64_t>(anchors.size() / 5);
    AnchorHeadParams params{.num_samples = static_cast<int32_t>(shape[0]),
                            .num_rows = static_cast<int32_t>(shape[1]),
                            .num_columns = static_cast<int32_t>(shape[2]),
                            .num_classes = static_cast<int32_t>(ids.size()),
                            .num_anchors = static_cast<int32_t>(num_anchors),
                            .scores = images.Add(array("scores")),
                            .residuals = images.Add(array("residuals")),
                            .directions = images.Add(array("directions")),
                            .range_min = {number(0), number(1)},
                            .range_max = {number(2), number(3)},
                            .num_direction_bins = static_cast<int32_t>(array("directions").shape.back() / num_anchors),
                            .direction_offset = number(4),
                            .direction_limit_offset = number(5),
                            .score_threshold = number(6),
                            .max_boxes = static_cast<int32_t>(numbers[7])};
    std::copy(ids.begin(), ids.end(), params.class_ids.begin());
    for (size_t a = 0; a < anchors.size() / 5; ++a) {
      const float* const anchor = &anchors[5 * a];
      params.anchors[a] = {.size = {anchor[0], anchor[1], anchor[2]}, .bottom = anchor[3], .yaw = anchor[4]};
    }
    const std::vector<BoxRow> boxes = Decode(params);
    ExpectNearBoxes(boxes, BoxRowsOf(array("boxes")));
    for (const BoxRow& box : boxes) EXPECT_LE(std::abs(box[kBoxYaw]), 3.1415928f);
  }
}

// Uses more candidates than one sort can take. The distributions cover every path of the histograms that choose
// candidates: logits spread out, all in one bin, all equal, beyond the bins, and few.
TEST_P(DetectionHeadTest, TheBestAreThoseOfAPlainSort) {
  Random random(1);
  const auto uniform = [&](double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random.engine());
  };
  const std::vector<std::pair<const char*, std::function<double()>>> distributions = {
      {"spread out", [&] { return uniform(-9, 9); }},
      {"one bin", [&] { return uniform(1.0, 1.015625); }},
      {"around 0", [&] { return uniform(-1e-3, 1e-3); }},
      {"the same", [] { return -1.5; }},
      {"two values", [&] { return random.Chance(0.9) ? 3.0 : 3.5; }},
      {"beyond the bins", [&] { return uniform(-6e4, 6e4); }},
      {"with NaN and infinity",
       [&] {
         return random.Chance(0.1) ? kNan : random.Chance(0.1) ? kInfinity : random.Chance(0.1) ? -kInfinity : 1.0;
       }},
      {"few", [&] { return random.Chance(0.01) ? uniform(-3, 3) : -kInfinity; }},
      {"none", [] { return -kInfinity; }},
  };
  constexpr int32_t kRows = 61, kColumns = 70, kCells = kRows * kColumns;
  for (const auto& [name, draw] : distributions) {
    for (const auto convention : {CenterHeadConvention::kOpenPcdet, CenterHeadConvention::kDet3d}) {
      for (const int32_t max_boxes : {1, 500, 1024, 1025, 2000, kMaxBoxes}) {
        for (const int32_t num_classes : {1, 3}) {
          constexpr int32_t kSamples = 2;
          std::vector<float> logits(static_cast<size_t>(kSamples * kCells * num_classes));
          for (float& logit : logits) logit = Rounded(dtype(), static_cast<float>(draw()));
          DeviceImages images(device(), dtype());
          CenterHead head = PlainHead(convention, kRows, kColumns, num_classes, logits, images);
          head.max_boxes = max_boxes;
          const std::vector<BoxRow> boxes = Decode(kSamples, {head})[0];
          for (int32_t sample = 0; sample < kSamples; ++sample) {
            const auto begin = logits.begin() + int64_t{sample} * kCells * num_classes;
            EXPECT_EQ(num_not_finite_[static_cast<size_t>(sample)],
                      std::count_if(begin, begin + int64_t{kCells} * num_classes,
                                    [](float logit) { return !std::isfinite(logit); }))
                << name;
            const std::vector<Place> best =
                BestPlaces(logits, int64_t{sample} * kCells * num_classes, kCells, num_classes,
                           convention == CenterHeadConvention::kDet3d, -kInfinity);
            for (int32_t i = 0; i < max_boxes; ++i) {
              const BoxRow& box = boxes[static_cast<size_t>(sample * max_boxes + i)];
              ASSERT_EQ(IsBox(box), i < static_cast<int32_t>(best.size())) << name << " row " << i;
              if (!IsBox(box)) {
                ASSERT_EQ(box, NoBoxRow());
                continue;
              }
              const Place& place = best[static_cast<size_t>(i)];
              ASSERT_EQ(std::tuple(box[kBoxClass], box[kBoxX], box[kBoxY]),
                        std::tuple(static_cast<float>(place.class_index), static_cast<float>(place.cell % kColumns),
                                   static_cast<float>(place.cell / kColumns)))
                  << name << " row " << i << " of sample " << sample << ", at most " << max_boxes;
            }
          }
        }
      }
    }
  }
}

// A GPU sorts by a network whose size is a power of two, with a different way through it for each size.
TEST_P(DetectionHeadTest, EveryNumberOfCandidatesIsSorted) {
  Random random(2);
  constexpr int32_t kSide = 70;
  for (const int32_t count : {1, 2, 127, 128, 129, 255, 256, 257, 512, 513, 1024, 1025, 2047, 2048, 2049, 4095, 4096}) {
    std::vector<float> logits(size_t{kSide} * kSide, -kInfinity);
    for (int32_t i = 0; i < count; ++i) {
      // 37 and the number of cells have no common divisor, so no cell is chosen twice.
      logits[static_cast<size_t>(i) * 37 % logits.size()] = random.Floats(1, dtype())[0];
    }
    DeviceImages images(device(), dtype());
    CenterHead head = PlainHead(CenterHeadConvention::kOpenPcdet, kSide, kSide, 1, logits, images);
    head.max_boxes = kMaxBoxes;
    const std::vector<BoxRow> boxes = Decode(1, {head})[0];
    const std::vector<Place> best = BestPlaces(logits, 0, kSide * kSide, 1, false, -kInfinity);
    ASSERT_EQ(best.size(), static_cast<size_t>(count));
    for (int32_t i = 0; i < kMaxBoxes; ++i) {
      const BoxRow& box = boxes[static_cast<size_t>(i)];
      ASSERT_EQ(IsBox(box), i < count) << "row " << i << " of " << count;
      if (i >= count) continue;
      const int32_t cell = best[static_cast<size_t>(i)].cell;
      ASSERT_EQ(std::pair(box[kBoxX], box[kBoxY]),
                std::pair(static_cast<float>(cell % kSide), static_cast<float>(cell / kSide)))
          << "row " << i << " of " << count;
    }
  }
}

// The chosen boxes are those without IoUs; only their scores and their order are others.
TEST_P(DetectionHeadTest, IousRectifyScores) {
  Random random(7);
  const auto uniform = [&](double low, double high) {
    return static_cast<float>(std::uniform_real_distribution<double>(low, high)(random.engine()));
  };
  constexpr int32_t kRows = 31, kColumns = 40, kCells = kRows * kColumns, kClasses = 3, kSamples = 2;
  const std::vector<float> powers = {0.68f, 0, 1};
  for (const int32_t max_boxes : {1, 500, 1024, 1025, 2000, kMaxBoxes}) {
    std::vector<float> logits(static_cast<size_t>(kSamples * kCells * kClasses)), ious(kSamples * kCells);
    for (float& logit : logits) logit = Rounded(dtype(), uniform(-6, 3));
    for (float& iou : ious) iou = Rounded(dtype(), uniform(-0.2, 1.2));
    DeviceImages images(device(), dtype());
    CenterHead head = PlainHead(CenterHeadConvention::kOpenPcdet, kRows, kColumns, kClasses, logits, images);
    head.max_boxes = max_boxes;
    head.score_threshold = 0.1f;
    head.iou = images.Add(ious, 1);
    std::copy(powers.begin(), powers.end(), head.iou_powers.begin());
    const std::vector<BoxRow> boxes = Decode(kSamples, {head})[0];
    for (int32_t sample = 0; sample < kSamples; ++sample) {
      std::vector<Place> best = BestPlaces(logits, int64_t{sample} * kCells * kClasses, kCells, kClasses, false,
                                           std::nextafter(LowestLogit(0.1f, true), -kInfinity));
      best.resize(std::min(best.size(), static_cast<size_t>(max_boxes)));
      std::map<std::tuple<int32_t, int32_t>, double> expected;  // by class and cell
      for (const Place& place : best) {
        const double score = 1 / (1 + std::exp(-double{place.logit}));
        const double iou = std::clamp(double{ious[static_cast<size_t>(sample * kCells + place.cell)]}, 0.0, 1.0);
        const double power = powers[static_cast<size_t>(place.class_index)];
        expected[{place.class_index, place.cell}] = std::pow(score, 1 - power) * std::pow(iou, power);
      }
      for (int32_t i = 0; i < max_boxes; ++i) {
        const BoxRow& box = boxes[static_cast<size_t>(sample * max_boxes + i)];
        ASSERT_EQ(IsBox(box), i < static_cast<int32_t>(best.size())) << i;
        if (!IsBox(box)) continue;
        const auto cell = static_cast<int32_t>(box[kBoxY]) * kColumns + static_cast<int32_t>(box[kBoxX]);
        const auto place = expected.find({static_cast<int32_t>(box[kBoxClass]), cell});
        ASSERT_NE(place, expected.end()) << i;
        ASSERT_NEAR(box[kBoxScore], place->second, 1e-6) << i;
        expected.erase(place);
        if (i > 0) {
          ASSERT_GE(boxes[static_cast<size_t>(sample * max_boxes + i - 1)][kBoxScore], box[kBoxScore]) << i;
        }
      }
      EXPECT_TRUE(expected.empty());
    }
  }
}

TEST_P(DetectionHeadTest, IousThatAreNotFiniteMakeNoBox) {
  DeviceImages images(device(), dtype());
  CenterHead head = PlainHead(CenterHeadConvention::kOpenPcdet, 1, 4, 1, {1, 2, 3, 4}, images);
  head.max_boxes = 3;
  head.iou = images.Add({1, kNan, 0.5f, kInfinity}, 1);
  head.iou_powers = {0.5f};
  const std::vector<BoxRow> boxes = Decode(1, {head})[0];
  EXPECT_EQ(num_not_finite_[0], 1u);
  // Infinity counts as 1, as every IoU above it.
  EXPECT_EQ(boxes[0][kBoxX], 3);
  EXPECT_EQ(boxes[1][kBoxX], 2);
  EXPECT_EQ(boxes[2], NoBoxRow());
}

// Decodes heads of different sizes, and several samples, in one launch. Each must give the same bytes as when it is
// decoded alone.
TEST_P(DetectionHeadTest, HeadsAndSamplesAreIndependent) {
  Random random(2);
  DeviceImages images(device(), dtype());
  std::vector<CenterHead> heads;
  std::vector<CenterHead> second_samples;
  for (const auto& [rows, columns, classes] : {std::tuple(40, 33, 2), std::tuple(1, 1, 1), std::tuple(7, 200, 10)}) {
    CenterHead head{.convention = heads.size() == 1 ? CenterHeadConvention::kDet3d : CenterHeadConvention::kOpenPcdet,
                    .num_rows = rows,
                    .num_columns = columns,
                    .num_classes = classes,
                    .stride = 4,
                    .voxel_size = {0.1f, 0.2f},
                    .range_min = {-8, 3},
                    .score_threshold = 0.3f,
                    .max_boxes = 100};
    const int64_t cells = int64_t{3} * rows * columns;
    head.heatmap = images.Add(random.Floats(cells * classes, dtype()), classes);
    head.center = images.Add(random.Floats(cells * 2, dtype()), 2);
    head.height = images.Add(random.Floats(cells, dtype()), 1);
    head.dim = images.Add(random.Floats(cells * 3, dtype()), 3);
    head.rot = images.Add(random.Floats(cells * 2, dtype()), 2);
    heads.push_back(head);
    const auto second = [&](ImageChannels image) {
      const int64_t values = int64_t{rows} * columns * image.pitch;
      return ImageChannels{static_cast<const char*>(image.data) + values * SizeOf(dtype()), image.pitch};
    };
    head.heatmap = second(head.heatmap);
    head.center = second(head.center);
    head.height = second(head.height);
    head.dim = second(head.dim);
    head.rot = second(head.rot);
    second_samples.push_back(head);
  }
  const auto together = Decode(3, heads);
  for (size_t i = 0; i < heads.size(); ++i) {
    EXPECT_EQ(Decode(3, {heads[i]})[0], together[i]);
    const std::vector<BoxRow> alone = Decode(1, {second_samples[i]})[0];
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(), together[i].begin() + 100));
    EXPECT_TRUE(IsBox(alone[0]));
  }
}

TEST_P(DetectionHeadTest, BoxesOnTheBoundsAreWithinAndScoresOnTheThresholdAreNot) {
  DeviceImages images(device(), dtype());
  CenterHead head = PlainHead(CenterHeadConvention::kDet3d, 3, 5, 1, std::vector<float>(15, 0.0f), images);
  head.max_boxes = 15;
  head.center_min = {1, 1, 0};
  head.center_max = {3, 1, 0};
  const std::vector<BoxRow> boxes = Decode(1, {head})[0];
  for (size_t i = 0; i < 15; ++i) {
    ASSERT_EQ(IsBox(boxes[i]), i < 3);
    if (i < 3) {
      EXPECT_EQ(boxes[i][kBoxX], static_cast<float>(1 + i));
      EXPECT_EQ(boxes[i][kBoxScore], 0.5f);
    }
  }
  head.score_threshold = 0.5f;
  EXPECT_FALSE(IsBox(Decode(1, {head})[0][0]));
}

// A box with a value that is not finite is dropped. OpenPCDet's convention leaves its row empty; det3d's convention
// moves the following boxes up.
TEST_P(DetectionHeadTest, WhatIsNotFiniteIsNoBox) {
  for (const auto convention : {CenterHeadConvention::kOpenPcdet, CenterHeadConvention::kDet3d}) {
    // Cell i has a higher logit than cell i + 1. Seven of the ten cells get a value that is not finite, so only the
    // last three are boxes.
    std::vector<float> logits;
    for (int i = 0; i < 10; ++i) logits.push_back(static_cast<float>(10 - i));
    DeviceImages images(device(), dtype());
    CenterHead head = PlainHead(convention, 1, 10, 1, logits, images);
    std::vector<float> center(20, 0), height(10, 0), dim(30, 0), rot(20, 1), vel(20, 0);
    center[0] = kNan;
    center[3] = kInfinity;
    height[2] = -kInfinity;
    dim[3 * 3 + 1] = 1000;  // its exponential is infinite
    rot[2 * 4] = kNan;
    vel[2 * 5 + 1] = kNan;
    vel[2 * 6] = kInfinity;
    dim[3 * 7] = -1000;  // a box of length 0, which is still a box
    head.center = images.Add(center, 2);
    head.height = images.Add(height, 1);
    head.dim = images.Add(dim, 3);
    head.rot = images.Add(rot, 2);
    head.vel = images.Add(vel, 2);
    const bool moves_up = convention == CenterHeadConvention::kDet3d;
    for (const int32_t max_boxes : {2, 9}) {
      head.max_boxes = max_boxes;
      const std::vector<BoxRow> boxes = Decode(1, {head})[0];
      const int32_t expected = moves_up ? std::min(max_boxes, 3) : std::max(max_boxes - 7, 0);
      EXPECT_THAT(num_not_finite_, testing::ElementsAre(moves_up ? 7 : std::min(max_boxes, 7)));
      for (int32_t i = 0; i < max_boxes; ++i) {
        const BoxRow& box = boxes[static_cast<size_t>(i)];
        ASSERT_EQ(IsBox(box), i < expected) << i;
        if (i < expected) {
          EXPECT_EQ(box[kBoxX], static_cast<float>(7 + i));
        }
        if (i == 0 && expected > 0) {
          EXPECT_EQ(box[kBoxLength], 0.0f);
        }
      }
    }
  }
}

TEST_P(DetectionHeadTest, LogitsThatAreNotFiniteAreNoScores) {
  for (const auto convention : {CenterHeadConvention::kOpenPcdet, CenterHeadConvention::kDet3d}) {
    DeviceImages images(device(), dtype());
    CenterHead head = PlainHead(convention, 1, 3, 2,
                                {kInfinity, 1, kNan, 2, -kInfinity, -kInfinity,  // sample 0
                                 0, 3, 0, 0, kInfinity, kInfinity},
                                images);
    head.max_boxes = 3;
    const std::vector<BoxRow> boxes = Decode(2, {head})[0];
    EXPECT_THAT(num_not_finite_, testing::ElementsAre(4, 2));
    const auto place = [&](size_t i) { return std::pair(boxes[i][kBoxX], boxes[i][kBoxClass]); };
    EXPECT_EQ(place(0), std::pair(1.0f, 1.0f));
    EXPECT_EQ(place(1), std::pair(0.0f, 1.0f));
    EXPECT_FALSE(IsBox(boxes[2]));
    EXPECT_EQ(place(3), std::pair(0.0f, 1.0f));
  }
}

TEST_P(DetectionHeadTest, AnchorsOnTheThresholdAreBoxesAndTiesGoToTheFirst) {
  DeviceImages images(device(), dtype());
  AnchorHeadParams params{.num_samples = 1,
                          .num_rows = 1,
                          .num_columns = 3,
                          .num_classes = 2,
                          .num_anchors = 2,
                          .range_min = {0, 5},
                          .range_max = {4, 9},
                          .num_direction_bins = 1,
                          .score_threshold = 0.5f,
                          .max_boxes = 6};
  params.class_ids = {4, 2};
  params.anchors[1].bottom = 3;
  params.scores = images.Add({0, 0, 1, 2, -1, 0, 2, kNan, kNan, kNan, kNan, -1}, 4);
  params.residuals = images.Add(std::vector<float>(42, 0), 14);
  params.directions = images.Add(std::vector<float>(6, kNan), 2);
  const std::vector<BoxRow> boxes = Decode(params);
  EXPECT_THAT(num_not_finite_, testing::ElementsAre(4));
  // Each tuple is (x, z, class) of a box.
  const std::vector<std::tuple<float, float, float>> expected = {
      {0.0f, 3.5f, 2.0f}, {2.0f, 3.5f, 4.0f}, {0.0f, 0.5f, 4.0f}, {2.0f, 0.5f, 2.0f}};
  for (size_t i = 0; i < boxes.size(); ++i) {
    ASSERT_EQ(IsBox(boxes[i]), i < expected.size());
    if (i < expected.size()) {
      EXPECT_EQ(std::tuple(boxes[i][kBoxX], boxes[i][kBoxZ], boxes[i][kBoxClass]), expected[i]);
      EXPECT_EQ(boxes[i][kBoxY], 5.0f);  // there is only one row
    }
  }
}

TEST_P(DetectionHeadTest, NoSamplesAreNoWork) {
  EXPECT_TRUE(Decode(0, {CenterHead{.max_boxes = 4}})[0].empty());
  EXPECT_TRUE(Decode(AnchorHeadParams{.max_boxes = 4}).empty());
}

INSTANTIATE_TEST_SUITE_P(Grounds, DetectionHeadTest, AllGrounds(), GroundName);

}  // namespace
}  // namespace voxserve::kernels::detection_heads_test
