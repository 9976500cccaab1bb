#include "client/cpp/view/picture.h"

#include <png.h>

#include <cmath>
#include <cstdint>
#include <limits>

#include "client/cpp/view/stroke_font.h"
#include "gmock/gmock.h"
#include "tests/client/temporary_folder.h"

namespace voxserve::client::picture_test {
namespace {

struct DecodedPng {
  int width = 0, height = 0;
  std::vector<uint8_t> rgb;

  Color at(int x, int y) const {
    const uint8_t* pixel = &rgb[3 * (static_cast<size_t>(y) * static_cast<size_t>(width) + static_cast<size_t>(x))];
    return {static_cast<float>(pixel[0]) / 255, static_cast<float>(pixel[1]) / 255, static_cast<float>(pixel[2]) / 255};
  }
};

DecodedPng Decode(const std::string& bytes) {
  png_image png = {};
  png.version = PNG_IMAGE_VERSION;
  EXPECT_TRUE(png_image_begin_read_from_memory(&png, bytes.data(), bytes.size())) << png.message;
  png.format = PNG_FORMAT_RGB;
  DecodedPng decoded{static_cast<int>(png.width), static_cast<int>(png.height),
                     std::vector<uint8_t>(PNG_IMAGE_SIZE(png))};
  EXPECT_TRUE(png_image_finish_read(&png, nullptr, decoded.rgb.data(), 0, nullptr)) << png.message;
  return decoded;
}

// Returns true if `color` has about the hue of `of`. A mix of a colour with white or black keeps the colour's hue.
bool IsHueOf(const Color& color, const Color& of) {
  const auto normalised = [](Color c) {
    const float low = std::min({c[0], c[1], c[2]}), high = std::max({c[0], c[1], c[2]});
    for (float& channel : c) channel = high > low ? (channel - low) / (high - low) : 0;
    return c;
  };
  const float spread = std::max({color[0], color[1], color[2]}) - std::min({color[0], color[1], color[2]});
  const Color a = normalised(color), b = normalised(of);
  return spread > 0.25f && std::abs(a[0] - b[0]) + std::abs(a[1] - b[1]) + std::abs(a[2] - b[2]) < 0.35f;
}

// Returns a scan with a block of points for each class: road (red) ahead, car (green) to the left, person (blue) behind
// and to the right.
AnnotatedScan ThreeBlocks() {
  AnnotatedScan scan;
  const uint32_t colors[] = {0xff0000, 0x00ff00, 0x0000ff};
  const PixelPoint places[] = {{20, 0}, {0, 15}, {-20, -10}};
  for (uint16_t c = 0; c < 3; ++c) {
    v1::ClassInfo& info = scan.classes.emplace_back();
    info.set_id(c);
    info.set_name("class");
    info.set_color_rgb(colors[c]);
    for (int i = 0; i < 2500; ++i) {
      scan.x.push_back(places[c].x + static_cast<float>(i % 50) * 0.08f);
      scan.y.push_back(places[c].y + static_cast<float>(i / 50) * 0.08f);
      scan.z.push_back(0);
      scan.labels.push_back(c);
    }
  }
  return scan;
}

struct Spot {
  double x = 0, y = 0;
  int num_pixels = 0;
};

// Returns the mean position, and the number, of the pixels that have this hue and are left of column `right`, where the
// legend begins.
Spot Find(const DecodedPng& png, const Color& color, int right) {
  Spot spot;
  for (int y = 0; y < png.height; ++y) {
    for (int x = 0; x < right; ++x) {
      if (!IsHueOf(png.at(x, y), color)) continue;
      spot.x += x;
      spot.y += y;
      ++spot.num_pixels;
    }
  }
  spot.x /= std::max(1, spot.num_pixels);
  spot.y /= std::max(1, spot.num_pixels);
  return spot;
}

TEST(PictureTest, ShowsEveryClassInItsColourAtItsPlace) {
  TemporaryFolder folder;
  const Image image = DrawPicture(ThreeBlocks(), {.title = "three", .lines = {"blocks"}});
  ASSERT_TRUE(image.WritePng(folder.path() + "/a.png").ok());
  const DecodedPng png = Decode(folder.Read("a.png"));
  EXPECT_EQ(png.width, image.width());
  EXPECT_EQ(png.height, image.height());
  EXPECT_LE(png.width, 2200);
  EXPECT_LE(png.height, 1500);

  const int map_width = png.width - 470;  // the legend is 470 pixels wide
  const Spot ahead = Find(png, {1, 0, 0}, map_width), left = Find(png, {0, 1, 0}, map_width),
             behind = Find(png, {0, 0, 1}, map_width);
  for (const Spot& spot : {ahead, left, behind}) EXPECT_GT(spot.num_pixels, 500);
  EXPECT_LT(ahead.y, left.y);  // forward is up in the picture
  EXPECT_LT(left.y, behind.y);
  EXPECT_LT(left.x, ahead.x);  // the left of the scan is left in the picture
  EXPECT_GT(behind.x, ahead.x);
  // A metre has the same length in both directions. The red block is 20 m ahead of the green one and 15 m to its right;
  // the blue block is 10 m to the right of the red one.
  const double pixels_per_m = (left.y - ahead.y) / 20;
  EXPECT_NEAR((ahead.x - left.x) / 15, pixels_per_m, 0.05 * pixels_per_m);
  EXPECT_NEAR((behind.x - ahead.x) / 10, pixels_per_m, 0.05 * pixels_per_m);
}

TEST(PictureTest, TheLegendHasTheColoursAndText) {
  const Image image = DrawPicture(ThreeBlocks(), {.title = "three", .lines = {}});
  int swatches[3] = {}, ink = 0;
  for (int y = 0; y < image.height(); ++y) {
    for (int x = image.width() - 470; x < image.width(); ++x) {
      const Color& pixel = image.at(x, y);
      for (size_t c = 0; c < 3; ++c) {
        Color pure = {0, 0, 0};
        pure[c] = 1;
        swatches[c] += IsHueOf(pixel, pure);
      }
      ink += pixel[0] > 0.8f && pixel[1] > 0.8f && pixel[2] > 0.8f;
    }
  }
  for (const int pixels : swatches) EXPECT_GT(pixels, 200);
  EXPECT_GT(ink, 200);
}

TEST(PictureTest, DrawsScansOfAnyShape) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  AnnotatedScan empty;
  AnnotatedScan one;
  one.x = {0};
  one.y = {0};
  one.z = {0};
  one.labels = {3};
  AnnotatedScan bad = one;
  bad.x = {nan};
  bad.z = {std::numeric_limits<float>::infinity()};
  AnnotatedScan unlabelled = one;
  unlabelled.labels = {255};
  AnnotatedScan line;  // points up to 300 m ahead, and none beside
  for (int i = 0; i < 3000; ++i) {
    line.x.push_back(static_cast<float>(i) * 0.1f);
    line.y.push_back(0);
    line.z.push_back(static_cast<float>(i % 2));
    line.labels.push_back(static_cast<uint16_t>(i % 40));  // more classes than the legend has rows
  }
  for (const AnnotatedScan& scan : {empty, one, bad, unlabelled, line}) {
    const Image image = DrawPicture(scan, {});
    EXPECT_GT(image.width(), 470);
    EXPECT_LE(image.width(), 2200);
    EXPECT_LE(image.height(), 1500);
  }
}

TEST(PictureTest, SaysWhereItCannotWrite) {
  const absl::Status status = Image(2, 2, {0, 0, 0}).WritePng("/no/such/folder/a.png");
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("/no/such/folder/a.png"));
}

TEST(StrokeFontTest, EveryPrintableCharacterLeavesInk) {
  for (char character = '!'; character <= '~'; ++character) {
    Image image(60, 60, {0, 0, 0});
    const std::string text(1, character);
    DrawText(text, {10, 40}, 24, {1, 1, 1}, 1, &image);
    float ink = 0, outside = 0;
    for (int y = 0; y < 60; ++y) {
      for (int x = 0; x < 60; ++x) {
        ink += image.at(x, y)[0];
        // Capitals are 24 pixels high; brackets and descenders reach a little farther.
        const bool is_inside = x >= 7 && static_cast<float>(x) <= 14 + TextWidth(text, 24) && y >= 10 && y <= 52;
        outside += is_inside ? 0 : image.at(x, y)[0];
      }
    }
    EXPECT_GT(ink, 5) << text;
    EXPECT_EQ(outside, 0) << text;
  }
}

TEST(StrokeFontTest, WidthsAddUp) {
  EXPECT_EQ(TextWidth("", 20), 0);
  EXPECT_EQ(TextWidth("111", 20), TextWidth("888", 20));  // so columns align
  EXPECT_GT(TextWidth("ab", 20), TextWidth("a", 20) + TextWidth("b", 20));
  EXPECT_FLOAT_EQ(TextWidth("ab", 40), 2 * TextWidth("ab", 20));
  EXPECT_FLOAT_EQ(TextWidth("\xc3", 20), TextWidth("?", 20));
}

}  // namespace
}  // namespace voxserve::client::picture_test
