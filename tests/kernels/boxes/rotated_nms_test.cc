// Compares the overlaps of rotated boxes with polygon clipping, and suppressed boxes with the plain algorithm and with
// the results that tests/oracles/detection_heads.py stored.

#include "kernels/boxes/rotated_nms.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numbers>
#include <utility>
#include <vector>

#include "kernels/boxes/box_overlap.h"
#include "tests/kernels/boxes/detection_testing.h"

namespace voxserve::kernels::rotated_nms_test {
namespace {

using support::ExpectCudaSuccess;
using support::TestStream;

constexpr double kPi = std::numbers::pi;

BoxRow BoxAt(double x, double y, double length, double width, double yaw) {
  BoxRow box(kBoxColumns, 0.0f);
  box[kBoxX] = static_cast<float>(x);
  box[kBoxY] = static_cast<float>(y);
  box[kBoxLength] = static_cast<float>(length);
  box[kBoxWidth] = static_cast<float>(width);
  box[kBoxHeight] = 1;
  box[kBoxYaw] = static_cast<float>(yaw);
  box[kBoxScore] = 0.5f;
  return box;
}

struct Point {
  double x, y;
};

std::vector<Point> CornersOf(const BoxRow& box, const BoxRow& origin) {
  const double cosine = std::cos(double{box[kBoxYaw]}), sine = std::sin(double{box[kBoxYaw]});
  std::vector<Point> corners;
  for (const auto& [along, across] : {std::pair(1, 1), std::pair(-1, 1), std::pair(-1, -1), std::pair(1, -1)}) {
    const double l = 0.5 * along * box[kBoxLength], w = 0.5 * across * box[kBoxWidth];
    corners.push_back({double{box[kBoxX]} - origin[kBoxX] + l * cosine - w * sine,
                       double{box[kBoxY]} - origin[kBoxY] + l * sine + w * cosine});
  }
  return corners;
}

// Returns the area of the intersection of two boxes, seen from above. It clips polygons as in I. Sutherland and G.
// Hodgman, "Reentrant Polygon Clipping", 1974.
double CutArea(const BoxRow& a, const BoxRow& b) {
  std::vector<Point> polygon = CornersOf(a, a);
  const std::vector<Point> sides = CornersOf(b, a);
  for (size_t i = 0; i < 4; ++i) {
    const Point from = sides[i], to = sides[(i + 1) % 4];
    const auto inside = [&](const Point& p) {
      return (to.x - from.x) * (p.y - from.y) - (to.y - from.y) * (p.x - from.x);
    };
    std::vector<Point> cut;
    for (size_t p = 0; p < polygon.size(); ++p) {
      const Point& here = polygon[p];
      const Point& before = polygon[(p + polygon.size() - 1) % polygon.size()];
      const double at_here = inside(here), at_before = inside(before);
      if ((at_here > 0) != (at_before > 0)) {
        const double part = at_before / (at_before - at_here);
        cut.push_back({before.x + part * (here.x - before.x), before.y + part * (here.y - before.y)});
      }
      if (at_here > 0) cut.push_back(here);
    }
    polygon = cut;
  }
  double area = 0;
  for (size_t p = 0; p < polygon.size(); ++p) {
    const Point &here = polygon[p], &next = polygon[(p + 1) % polygon.size()];
    area += 0.5 * (here.x * next.y - here.y * next.x);
  }
  return area;
}

TEST(BoxOverlapTest, IsTheAreaOfTheCutPolygon) {
  Random random(1);
  const auto uniform = [&](double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random.engine());
  };
  for (int i = 0; i < 20'000; ++i) {
    const double scale = random.OneOf<double>({1e-3, 1, 1, 1e4});
    const auto size = [&] { return scale * random.OneOf<double>({0.1, 1, uniform(0.05, 4)}); };
    const auto yaw = [&] { return random.OneOf<double>({0, kPi / 2, -kPi / 4, 100.5, uniform(-4, 4)}); };
    const auto place = [&] { return scale * random.OneOf<double>({0, 0.5, -1, uniform(-3, 3)}); };
    const BoxRow a = BoxAt(place(), place(), size(), size(), yaw());
    BoxRow b = BoxAt(place(), place(), size(), size(), yaw());
    if (random.Chance(0.2)) b[kBoxYaw] = a[kBoxYaw];
    const double expected = CutArea(a, b);
    const double area = double{a[kBoxLength]} * a[kBoxWidth] + double{b[kBoxLength]} * b[kBoxWidth];
    ASSERT_NEAR(OverlapFromAbove(a.data(), b.data()), expected, 1e-10 * area) << i;
    ASSERT_NEAR(OverlapFromAbove(b.data(), a.data()), expected, 1e-10 * area) << i;
    if (expected > 1e-9 * area) {
      ASSERT_TRUE(MayOverlap(a.data(), RadiusFromAbove(a.data()), b.data(), RadiusFromAbove(b.data())));
    }
  }
}

TEST(BoxOverlapTest, KnowsTheSpecialCases) {
  const auto overlap = [](const BoxRow& a, const BoxRow& b) { return OverlapFromAbove(a.data(), b.data()); };
  const auto iou = [](const BoxRow& a, const BoxRow& b) { return IouFromAbove(a.data(), b.data()); };
  const BoxRow square = BoxAt(0, 0, 2, 2, 0);
  EXPECT_EQ(iou(square, square), 1.0f);
  EXPECT_NEAR(overlap(square, BoxAt(0, 0, 2, 2, kPi / 4)), 8 * (std::sqrt(2.0) - 1), 1e-6);
  EXPECT_EQ(overlap(square, BoxAt(2, 0, 2, 2, 0)), 0.0);  // they share a side
  EXPECT_EQ(overlap(square, BoxAt(2, 2, 2, 2, 0)), 0.0);  // they share a corner
  EXPECT_EQ(overlap(square, BoxAt(0, 0, 1, 1, 0)), 1.0);
  EXPECT_EQ(iou(square, BoxAt(1, 0, 2, 2, 0)), 1.0f / 3);
  const BoxRow turned = BoxAt(3, -5, 4, 1.5, 0.7);
  EXPECT_EQ(iou(turned, turned), 1.0f);
  EXPECT_NEAR(iou(turned, BoxAt(3, -5, 4, 1.5, 0.7 + kPi)), 1.0f, 1e-6);
  EXPECT_NEAR(iou(turned, BoxAt(3, -5, 1.5, 4, 0.7 - kPi / 2)), 1.0f, 1e-6);
  const BoxRow point = BoxAt(0, 0, 0, 0, 0.3), line = BoxAt(0, 0, 5, 0, 1);
  EXPECT_EQ(iou(point, point), 0.0f);
  EXPECT_EQ(iou(line, line), 0.0f);
  EXPECT_EQ(iou(square, point), 0.0f);
  EXPECT_NEAR(iou(square, line), 0.0f, 1e-12);
  const BoxRow far = BoxAt(3e38, 3e38, 2, 2, 0.1), huge = BoxAt(-3e38, 0, 3e38, 3e38, 0);
  EXPECT_EQ(iou(far, far), 1.0f);
  EXPECT_EQ(iou(square, far), 0.0f);
  EXPECT_EQ(iou(huge, huge), 1.0f);
  EXPECT_TRUE(MayOverlap(huge.data(), RadiusFromAbove(huge.data()), huge.data(), RadiusFromAbove(huge.data())));
}

class RotatedNmsTest : public testing::TestWithParam<Device> {
 protected:
  void SetUp() override { SKIP_WITHOUT(GetParam()); }

  // Runs the kernel. Each input has [samples * boxes] boxes; the result has the same number of rows for each sample.
  std::vector<BoxRow> Suppress(int32_t num_samples, const std::vector<std::vector<BoxRow>>& inputs, float threshold,
                               int32_t max_in, int32_t max_out) const {
    return Suppress(
        {.num_samples = num_samples, .iou_threshold = threshold, .max_boxes_in = max_in, .max_boxes_out = max_out},
        inputs);
  }

  // params: without its inputs and memory.
  std::vector<BoxRow> Suppress(RotatedNmsParams params, const std::vector<std::vector<BoxRow>>& inputs) const {
    const int32_t num_samples = params.num_samples;
    std::vector<std::unique_ptr<DeviceArray<float>>> arrays;
    params.num_inputs = static_cast<int32_t>(inputs.size());
    for (size_t i = 0; i < inputs.size(); ++i) {
      arrays.push_back(std::make_unique<DeviceArray<float>>(GetParam(), ValuesOf(inputs[i])));
      params.inputs[i] = {.boxes = arrays.back()->data(),
                          .max_boxes = static_cast<int32_t>(inputs[i].size()) / num_samples};
    }
    const DeviceArray<float> out(GetParam(), static_cast<size_t>(num_samples * NmsRows(params)) * kBoxPitch);
    params.boxes = out.data();
    if (GetParam() == Device::kCpu) {
      ThreadPool pool(3);
      cpu::RotatedNms(params, pool);
    } else if constexpr (kHasCuda) {
      const DeviceArray<char> workspace(GetParam(), cuda::RotatedNmsWorkspaceBytes(params));
      params.workspace = workspace.data();
      ExpectCudaSuccess(cuda::RotatedNms(params, TestStream()));
      support::Synchronize();
    }
    return BoxRowsOf(out.ToHost());
  }
};

// Runs the plain algorithm on one sample of one input. The result is padded to `rows` rows.
std::vector<BoxRow> PlainNms(const std::vector<BoxRow>& boxes, float threshold, size_t max_in, size_t rows) {
  std::vector<BoxRow> kept;
  for (size_t i = 0; i < boxes.size() && i < max_in && IsBox(boxes[i]) && kept.size() < rows; ++i) {
    const bool goes = std::any_of(kept.begin(), kept.end(), [&](const BoxRow& better) {
      return IouFromAbove(better.data(), boxes[i].data()) > threshold;
    });
    if (!goes) kept.push_back(boxes[i]);
  }
  return kept;
}

// Returns boxes crowded around a few places. Some equal another box, or another box rotated by a quarter turn.
std::vector<BoxRow> Crowd(Random& random, int64_t num_boxes, double spread) {
  std::uniform_real_distribution<double> place(-spread, spread), size(0.3, 5), yaw(-kPi, kPi);
  std::vector<BoxRow> boxes;
  for (int64_t i = 0; i < num_boxes; ++i) {
    if (i > 0 && random.Chance(0.1)) {
      boxes.push_back(random.OneOf(boxes));
      if (random.Chance(0.5)) boxes.back()[kBoxYaw] += static_cast<float>(kPi / 2);
    } else {
      auto& engine = random.engine();
      boxes.push_back(BoxAt(place(engine), place(engine), size(engine), size(engine), yaw(engine)));
    }
    boxes.back()[kBoxScore] = 1 - static_cast<float>(i) / 5000.0f;
    boxes.back()[kBoxClass] = static_cast<float>(i % 3);
  }
  return boxes;
}

TEST_P(RotatedNmsTest, KeepsTheStoredBoxes) {
  const auto& golden = GoldenHeads();
  for (int i = 0; i < 3; ++i) {
    const std::string name = "nms" + std::to_string(i) + "_";
    std::vector<std::vector<BoxRow>> inputs;
    for (int k = 0; golden.count(name + "input" + std::to_string(k)) > 0; ++k) {
      inputs.push_back(BoxRowsOf(golden.at(name + "input" + std::to_string(k))));
    }
    ASSERT_FALSE(inputs.empty());
    const auto numbers = golden.at(name + "numbers").values<double>();
    EXPECT_EQ(Suppress(2, inputs, static_cast<float>(numbers[0]), static_cast<int32_t>(numbers[1]),
                       static_cast<int32_t>(numbers[2])),
              BoxRowsOf(golden.at(name + "boxes")));
  }
}

TEST_P(RotatedNmsTest, EqualsThePlainAlgorithm) {
  Random random(2);
  for (const int64_t num_boxes : {1, 2, 15, 16, 17, 63, 64, 65, 79, 80, 81, 500, 1000, 4096}) {
    for (const double spread : {1.0, 60.0}) {
      for (const float threshold : {0.0f, 0.2f, 0.7f, 1.0f}) {
        const int32_t max_in = random.OneOf<int32_t>({0, 1, 500, 4096});
        const int32_t max_out = random.OneOf<int32_t>({1, 83, 4096});
        std::vector<std::vector<BoxRow>> samples = {Crowd(random, num_boxes, spread), Crowd(random, num_boxes, spread)};
        // Sample 1 has a third of the boxes of sample 0.
        for (auto i = static_cast<size_t>(num_boxes / 3); i < samples[1].size(); ++i) samples[1][i] = NoBoxRow();
        std::vector<BoxRow> both = samples[0];
        both.insert(both.end(), samples[1].begin(), samples[1].end());
        const std::vector<BoxRow> result = Suppress(2, {both}, threshold, max_in, max_out);
        const int64_t rows = static_cast<int64_t>(result.size()) / 2;
        EXPECT_EQ(rows, std::min<int64_t>(max_out, max_in == 0 ? num_boxes : std::min<int64_t>(max_in, num_boxes)));
        for (size_t sample = 0; sample < 2; ++sample) {
          std::vector<BoxRow> expected = PlainNms(
              samples[sample], threshold, max_in == 0 ? 4096 : static_cast<size_t>(max_in), static_cast<size_t>(rows));
          expected.resize(static_cast<size_t>(rows), NoBoxRow());
          ASSERT_TRUE(
              std::equal(expected.begin(), expected.end(), result.begin() + static_cast<int64_t>(sample) * rows))
              << num_boxes << " boxes, spread " << spread << ", threshold " << threshold << ", sample " << sample;
        }
      }
    }
  }
}

// Each class of each input is a list of its own, with its own limits; boxes of class 1 are left out.
TEST_P(RotatedNmsTest, HandlesClassesOnTheirOwn) {
  Random random(3);
  for (const int64_t num_boxes : {1, 64, 500, 3000}) {
    RotatedNmsParams params{.num_samples = 2, .num_classes = 2};
    params.classes[0] = {.class_id = 2, .iou_threshold = 0.2f, .max_boxes_in = 0, .max_boxes_out = 4096};
    params.classes[1] = {.class_id = 0,
                         .iou_threshold = 0.7f,
                         .max_boxes_in = random.OneOf<int32_t>({0, 1, 100, 700}),
                         .max_boxes_out = random.OneOf<int32_t>({1, 50, 300})};
    std::vector<std::vector<BoxRow>> inputs, samples;
    for (int input = 0; input < 2; ++input) {
      inputs.emplace_back();
      for (int sample = 0; sample < 2; ++sample) {
        samples.push_back(Crowd(random, num_boxes, 20));
        for (auto i = static_cast<size_t>(num_boxes / (1 + input)); i < samples.back().size(); ++i) {
          samples.back()[i] = NoBoxRow();
        }
        inputs.back().insert(inputs.back().end(), samples.back().begin(), samples.back().end());
      }
    }
    const std::vector<BoxRow> result = Suppress(params, inputs);
    const size_t rows = result.size() / 2;
    for (size_t sample = 0; sample < 2; ++sample) {
      std::vector<BoxRow> expected;
      for (size_t input = 0; input < 2; ++input) {
        for (size_t k = 0; k < 2; ++k) {
          const NmsClass& limits = params.classes[k];
          std::vector<BoxRow> of_class;
          for (const BoxRow& box : samples[input * 2 + sample]) {
            if (IsBox(box) && box[kBoxClass] == static_cast<float>(limits.class_id)) of_class.push_back(box);
          }
          for (const BoxRow& box : PlainNms(of_class, limits.iou_threshold,
                                            limits.max_boxes_in == 0 ? 4096 : static_cast<size_t>(limits.max_boxes_in),
                                            static_cast<size_t>(limits.max_boxes_out))) {
            expected.push_back(box);
          }
        }
      }
      ASSERT_LE(expected.size(), rows);
      expected.resize(rows, NoBoxRow());
      ASSERT_TRUE(std::equal(expected.begin(), expected.end(), result.begin() + static_cast<int64_t>(sample * rows)))
          << num_boxes << " boxes, sample " << sample;
    }
  }
}

TEST_P(RotatedNmsTest, OfTheSameBoxesTheFirstStays) {
  std::vector<BoxRow> boxes(4096, BoxAt(1, 2, 3, 4, 0.5));
  for (size_t i = 0; i < boxes.size(); ++i) boxes[i][kBoxZ] = static_cast<float>(i);
  const std::vector<BoxRow> result = Suppress(1, {boxes}, 0.99f, 0, 100);
  EXPECT_EQ(result[0], boxes[0]);
  EXPECT_EQ(result[1], NoBoxRow());
}

// In this chain each box overlaps the next. A suppressed box must not suppress its successor, so every other box stays.
TEST_P(RotatedNmsTest, ABoxThatWentSuppressesNothing) {
  std::vector<BoxRow> chain, expected;
  for (int i = 0; i < 300; ++i) {
    chain.push_back(BoxAt(i, 0, 1.5, 1, 0));
    if (i % 2 == 0) expected.push_back(chain.back());
  }
  std::vector<BoxRow> result = Suppress(1, {chain}, 0.1f, 0, 4096);
  ASSERT_EQ(result.size(), 300u);
  result.resize(150);
  EXPECT_EQ(result, expected);
}

TEST_P(RotatedNmsTest, ABoxOnTheThresholdStays) {
  // The two boxes have an IoU of exactly 1/3; the rotated boxes below have one of exactly 0.2.
  const std::vector<BoxRow> third = {BoxAt(0, 0, 2, 2, 0), BoxAt(1, 0, 2, 2, 0)};
  EXPECT_EQ(Suppress(1, {third}, 1.0f / 3, 0, 2), third);
  EXPECT_EQ(Suppress(1, {third}, std::nextafter(1.0f / 3, 0.0f), 0, 2)[1], NoBoxRow());
  const std::vector<BoxRow> fifth = {BoxAt(0, 0, 3, 1, kPi / 2), BoxAt(0, 2, 3, 1, kPi / 2)};
  EXPECT_EQ(Suppress(1, {fifth}, 0.2f, 0, 2), fifth);
  EXPECT_EQ(Suppress(1, {fifth}, 0.199f, 0, 2)[1], NoBoxRow());
  // No IoU is above 1, so a threshold of 1 suppresses nothing. Boxes that only touch have an IoU of 0, which is not
  // above a threshold of 0.
  const std::vector<BoxRow> same = {third[0], third[0]}, touching = {BoxAt(0, 0, 2, 2, 0), BoxAt(2, 0, 2, 2, 0)};
  EXPECT_EQ(Suppress(1, {same}, 1.0f, 0, 2), same);
  EXPECT_EQ(Suppress(1, {touching}, 0.0f, 0, 2), touching);
}

// Boxes of one input must not suppress those of another. In the result, a sample's boxes from all inputs follow each
// other without gaps.
TEST_P(RotatedNmsTest, InputsFollowEachOtherWithoutGaps) {
  const BoxRow box = BoxAt(0, 0, 2, 2, 0), other = BoxAt(9, 0, 2, 2, 0), none = NoBoxRow();
  const std::vector<std::vector<BoxRow>> inputs = {{box, box, other, none, none, none},  // sample 0, sample 1
                                                   {none, box},
                                                   {other, box, none, none, other, box, none, none}};
  // The inputs contribute at most 3, 1 and 3 rows.
  const std::vector<BoxRow> expected = {box, other, other, box,  none, none, none,  // sample 0: [3], [1], [4]
                                        box, other, box,   none, none, none, none};
  const std::vector<BoxRow> result = Suppress(2, inputs, 0.5f, 0, 3);
  ASSERT_EQ(result.size(), expected.size());
  EXPECT_EQ(result, expected);
}

INSTANTIATE_TEST_SUITE_P(Devices, RotatedNmsTest, support::AllDevices(), support::DeviceName);

}  // namespace
}  // namespace voxserve::kernels::rotated_nms_test
