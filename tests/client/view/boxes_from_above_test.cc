#include "client/cpp/view/boxes_from_above.h"

#include <cmath>
#include <limits>

#include "client/cpp/view/picture.h"
#include "client/cpp/view/preview.h"
#include "gmock/gmock.h"

namespace voxserve::client::boxes_from_above_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr float kQuarterTurn = 1.57079632679f;

std::vector<v1::ClassInfo> Classes() {
  std::vector<v1::ClassInfo> classes(2);
  classes[0].set_name("car");
  classes[0].set_color_rgb(0xff0000);
  classes[1].set_id(1);
  classes[1].set_name("truck");
  classes[1].set_color_rgb(0x0000ff);
  return classes;
}

// Returns a scan with a car 20 m ahead that faces left, and a truck 15 m to the right that faces ahead.
AnnotatedScan TwoBoxes() {
  AnnotatedScan scan;
  scan.box_classes = Classes();
  scan.boxes = std::vector<Box>{
      {.class_id = 0, .score = 0.9f, .x = 20, .length = 6, .width = 2, .yaw = kQuarterTurn},
      {.class_id = 1, .score = 1, .y = -15, .length = 8, .width = 4},
  };
  for (int i = 0; i < 4000; ++i) {
    scan.x.push_back(static_cast<float>(i % 80) * 0.5f - 20);
    scan.y.push_back(static_cast<float>(i / 80) * 0.8f - 20);
    scan.z.push_back(0);
  }
  return scan;
}

TEST(BoxesFromAboveTest, AFootprintTurnsWithItsYaw) {
  const auto footprint = FootprintOf({.x = 10, .y = 5, .length = 4, .width = 2, .yaw = kQuarterTurn});
  ASSERT_TRUE(footprint.has_value());
  EXPECT_NEAR(footprint->front.x, 10, 1e-5);
  EXPECT_NEAR(footprint->front.y, 7, 1e-5);
  EXPECT_NEAR(footprint->corners[0].x, 9, 1e-5);  // the car's left side is towards the rear
  EXPECT_NEAR(footprint->corners[0].y, 7, 1e-5);
  EXPECT_NEAR(footprint->corners[2].x, 11, 1e-5);
  EXPECT_NEAR(footprint->corners[2].y, 3, 1e-5);
}

TEST(BoxesFromAboveTest, WhatReachesBeyondEveryLidarIsNotDrawn) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(FootprintOf({.x = 1e30f, .length = 4, .width = 2}).has_value());
  EXPECT_FALSE(FootprintOf({.length = 3e38f, .width = 3e38f}).has_value());
  EXPECT_FALSE(FootprintOf({.x = nan}).has_value());
  EXPECT_FALSE(FootprintOf({.yaw = nan}).has_value());
  EXPECT_TRUE(FootprintOf({.length = -4}).has_value()) << "a size that makes no sense breaks no picture";
}

TEST(BoxesFromAboveTest, CountsTheMostFrequentClassFirstAndNamesEach) {
  const std::vector<BoxCount> counts = CountBoxes({{.class_id = 0, .score = 0.5f},
                                                   {.class_id = 1, .class_name = "lorry", .score = 0.2f},
                                                   {.class_id = 1, .class_name = "lorry", .score = 0.7f},
                                                   {.class_id = 9}},
                                                  Classes());
  ASSERT_EQ(counts.size(), 3u);
  EXPECT_EQ(counts[0].name, "lorry") << "the box's own name";
  EXPECT_EQ(counts[0].num_boxes, 2u);
  EXPECT_EQ(counts[0].best_score, 0.7f);
  EXPECT_EQ(counts[0].color_rgb, 0x0000ffu);
  EXPECT_EQ(counts[1].name, "car");
  EXPECT_EQ(counts[2].name, "class 9");
}

TEST(BoxesFromAboveTest, CountsScansTogether) {
  const std::vector<BoxCount> first = CountBoxes({{.class_id = 1, .score = 0.5f}, {.class_id = 9, .score = 0.2f}}, {});
  const std::vector<BoxCount> both =
      CountBoxes({{.class_id = 9, .score = 0.9f}, {.class_id = 0, .score = 0.3f}, {.class_id = 9}, {.class_id = 0}},
                 Classes(), first);
  ASSERT_EQ(both.size(), 3u);
  EXPECT_EQ(both[0].name, "class 9");
  EXPECT_EQ(both[0].num_boxes, 3u);
  EXPECT_EQ(both[0].best_score, 0.9f);
  EXPECT_EQ(both[1].name, "car");
  EXPECT_EQ(both[1].num_boxes, 2u);
  EXPECT_EQ(both[2].best_score, 0.5f);
  EXPECT_EQ(CountBoxes({}, {}, first).size(), 2u);
}

TEST(BoxesFromAboveTest, TheSurestIsDrawnLast) {
  const std::vector<Box> boxes = {{.score = 0.4f}, {.score = 0.9f}, {.score = 1, .x = 1e30f}, {.score = 0.4f}};
  const std::vector<const Box*> sorted = SurestFirst(boxes);
  EXPECT_THAT(sorted, ElementsAre(&boxes[2], &boxes[1], &boxes[0], &boxes[3])) << "ties as they were";
  std::vector<const Box*> drawn;
  for (const DrawnBox& box : DrawnBoxes(boxes)) drawn.push_back(box.box);
  EXPECT_THAT(drawn, ElementsAre(&boxes[3], &boxes[0], &boxes[1])) << "without the one too far away";
}

// The box with the highest score is drawn last, over a box with a lower score at the same place, whatever their order.
TEST(BoxesFromAboveTest, TheSurestLiesOnTop) {
  AnnotatedScan scan;
  scan.box_classes = Classes();
  const Box car = {.class_id = 0, .score = 0.9f, .x = 10, .length = 8, .width = 6};
  Box truck = car;
  truck.class_id = 1;
  truck.score = 0.5f;
  for (const std::vector<Box>& boxes : {std::vector<Box>{car, truck}, std::vector<Box>{truck, car}}) {
    scan.boxes = boxes;
    const std::string text = DrawPreview(scan, {.columns = 40, .rows = 20, .color = false});
    const std::string map = text.substr(0, text.find("@ sensor"));
    EXPECT_THAT(map, HasSubstr("c"));
    EXPECT_THAT(map, Not(HasSubstr("t")));
    const Image image = DrawPicture(scan, {});
    int red = 0, blue = 0;
    for (int y = 0; y < image.height(); ++y) {
      for (int x = 0; x < image.width() - 470; ++x) {
        red += image.at(x, y)[0] > 0.7f && image.at(x, y)[2] < 0.3f;
        blue += image.at(x, y)[2] > 0.7f && image.at(x, y)[0] < 0.3f;
      }
    }
    EXPECT_GT(red, 100);
    EXPECT_EQ(blue, 0);
  }
}

TEST(BoxesFromAboveTest, TheLegendSaysThatThereAreNone) {
  AnnotatedScan scan = TwoBoxes();
  scan.boxes.emplace();
  AnnotatedScan neither = scan;
  neither.boxes.reset();
  const Image found = DrawPicture(scan, {}), other = DrawPicture(neither, {});
  ASSERT_EQ(found.width(), other.width());
  int in_map = 0, in_legend = 0;
  for (int y = 0; y < found.height(); ++y) {
    for (int x = 0; x < found.width(); ++x) {
      (x < found.width() - 470 ? in_map : in_legend) += found.at(x, y) != other.at(x, y);
    }
  }
  EXPECT_EQ(in_map, 0);
  EXPECT_GT(in_legend, 50) << "words";
  EXPECT_THAT(DrawPreview(scan, {.columns = 30, .rows = 10, .color = false}), HasSubstr("@ sensor  . points"));
}

TEST(BoxesFromAboveTest, TheExtentHoldsEveryBox) {
  AnnotatedScan scan = TwoBoxes();
  (*scan.boxes)[0].x = 90;
  (*scan.boxes)[1].y = 1e6f;  // too far away to be drawn
  const Extent extent = DenseExtent(scan);
  EXPECT_GT(extent.max_x, 90);
  EXPECT_LT(extent.max_x, 100);
  EXPECT_LT(extent.max_y, 30);
}

TEST(BoxesFromAboveTest, APictureHasOutlinesInTheClassesColours) {
  const Image image = DrawPicture(TwoBoxes(), {.title = "boxes", .lines = {}});
  const int map_width = image.width() - 470;
  const int sensor_x = map_width / 2;
  int red = 0, blue = 0, lowest_red = 0, leftmost_blue = map_width;
  for (int y = 0; y < image.height(); ++y) {
    for (int x = 0; x < map_width; ++x) {
      const Color& pixel = image.at(x, y);
      if (pixel[0] > 0.7f && pixel[2] < 0.3f) {
        ++red;
        lowest_red = std::max(lowest_red, y);
      }
      if (pixel[2] > 0.7f && pixel[0] < 0.3f) {
        ++blue;
        leftmost_blue = std::min(leftmost_blue, x);
      }
    }
  }
  EXPECT_GT(red, 100);
  EXPECT_GT(blue, 100);
  EXPECT_LT(lowest_red, image.height() / 2) << "ahead is up";
  EXPECT_GT(leftmost_blue, sensor_x) << "right is right";
}

TEST(BoxesFromAboveTest, BoxesAloneMakeAPictureToo) {
  AnnotatedScan scan = TwoBoxes();
  scan.x = scan.y = scan.z = {};
  scan.boxes->push_back({.x = 1e30f});
  EXPECT_GT(DrawPicture(scan, {}).width(), 470);
  EXPECT_THAT(DrawPreview(scan, {.columns = 30, .rows = 10, .color = false}), HasSubstr("c car"));
}

TEST(BoxesFromAboveTest, APreviewHasLettersOverPoints) {
  const std::string text = DrawPreview(TwoBoxes(), {.columns = 40, .rows = 20, .color = false});
  EXPECT_THAT(text, HasSubstr("@ sensor  c car  t truck  . points"));
  const std::string map = text.substr(0, text.find("@ sensor"));
  EXPECT_LT(map.rfind('c'), map.find('t')) << "the car is ahead of the truck";
  EXPECT_THAT(map, HasSubstr("."));
  EXPECT_THAT(DrawPreview(TwoBoxes(), {.columns = 40, .rows = 10, .color = true}), HasSubstr("8;2;255;0;0m"));
}

// A scan can have labels of one model and boxes of another. The boxes keep their own model's classes: id 0 is road in
// the labels' model and car in the boxes' model.
TEST(BoxesFromAboveTest, BoxesLieOverLabelsOfAnotherModel) {
  AnnotatedScan scan = TwoBoxes();
  scan.labels.assign(scan.x.size(), 0);
  scan.classes = {Classes()[0]};
  scan.classes[0].set_name("road");
  scan.classes[0].set_color_rgb(0x00ff00);
  const std::string text = DrawPreview(scan, {.columns = 40, .rows = 20, .color = false});
  EXPECT_THAT(text, HasSubstr("@ sensor  r road  c car box  t truck box\n"));
  const std::string map = text.substr(0, text.find("@ sensor"));
  for (const char* letter : {"r", "c", "t"}) EXPECT_THAT(map, HasSubstr(letter));
  const Image image = DrawPicture(scan, {});
  int red = 0, green = 0, blue = 0;
  for (int y = 0; y < image.height(); ++y) {
    for (int x = 0; x < image.width() - 470; ++x) {
      const Color& pixel = image.at(x, y);
      red += pixel[0] > 0.6f && pixel[1] < 0.4f && pixel[2] < 0.4f;
      green += pixel[1] > 0.4f && pixel[0] < 0.3f && pixel[2] < 0.3f;
      blue += pixel[2] > 0.6f && pixel[0] < 0.4f && pixel[1] < 0.4f;
    }
  }
  EXPECT_GT(red, 100);
  EXPECT_GT(green, 1000);
  EXPECT_GT(blue, 100);
}

}  // namespace
}  // namespace voxserve::client::boxes_from_above_test
