#include "client/cpp/view/preview.h"

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"

namespace voxserve::client::preview_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Returns a scan that is wider than long: points of class car on the left, of class road on the right.
AnnotatedScan Wide() {
  AnnotatedScan scan;
  const char* names[] = {"road", "car"};
  for (uint32_t c = 0; c < 2; ++c) {
    v1::ClassInfo& info = scan.classes.emplace_back();
    info.set_id(c);
    info.set_name(names[c]);
    info.set_color_rgb(c == 0 ? 0xff0000 : 0x0000ff);
  }
  for (int i = 0; i < 4000; ++i) {
    const bool is_car = i < 1000;
    scan.x.push_back(static_cast<float>(i % 50) * 0.1f);
    scan.y.push_back((is_car ? 20.0f : -20.0f) + static_cast<float>(i % 1000 / 50) * 0.1f);
    scan.z.push_back(0);
    scan.labels.push_back(is_car ? 1 : 0);
  }
  return scan;
}

std::vector<std::string> LinesOf(const std::string& text) { return absl::StrSplit(text, '\n'); }

TEST(PreviewTest, PlainTextHasALetterPerClassAndALegend) {
  const std::string text = DrawPreview(Wide(), {.columns = 40, .rows = 10, .color = false});
  const std::vector<std::string> lines = LinesOf(text);
  ASSERT_EQ(lines.size(), 10u + 2 + 1);
  EXPECT_EQ(lines[10], "@ sensor  r road  c car");
  EXPECT_THAT(lines[11], HasSubstr("forward is up"));
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
  size_t last_car = 0, first_road = std::string::npos;
  for (size_t i = 0; i < 10; ++i) {
    EXPECT_LE(lines[i].size(), 40u);
    if (const size_t place = lines[i].rfind('c'); place != std::string::npos) last_car = std::max(last_car, place);
    first_road = std::min(first_road, lines[i].find('r'));
  }
  EXPECT_GT(last_car, 0u);
  EXPECT_LT(last_car, first_road);  // the left of the scan is left in the preview
}

TEST(PreviewTest, ColourShowsTheClassesColours) {
  const std::string text = DrawPreview(Wide(), {.columns = 40, .rows = 10, .color = true});
  EXPECT_EQ(LinesOf(text).size(), 10u + 1 + 1);
  EXPECT_THAT(text, testing::ContainsRegex("[34]8;2;2[0-9]*;0;0m"));  // road
  EXPECT_THAT(text, testing::ContainsRegex("[34]8;2;0;0;2[0-9]*m"));  // car
  EXPECT_THAT(text, HasSubstr("\xe2\x96\x80"));
  for (size_t i = 0; i < 10; ++i) EXPECT_THAT(LinesOf(text)[i], testing::EndsWith("\x1b[0m"));
}

TEST(PreviewTest, TurnsLongScansOnTheirSide) {
  AnnotatedScan scan = Wide();
  std::swap(scan.x, scan.y);
  EXPECT_THAT(DrawPreview(scan, {.color = false}), HasSubstr("forward is right"));
}

TEST(PreviewTest, ShowsTheSensorAloneWhereThereAreNoPoints) {
  const std::string text = DrawPreview(AnnotatedScan(), {.columns = 20, .rows = 6, .color = false});
  EXPECT_THAT(text, HasSubstr("@"));
  EXPECT_EQ(LinesOf(DrawPreview(AnnotatedScan(), {.columns = 20, .rows = 6, .color = true})).size(), 8u);
}

}  // namespace
}  // namespace voxserve::client::preview_test
