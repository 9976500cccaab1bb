#include "client/cpp/view/picture.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cpp/view/boxes_from_above.h"
#include "client/cpp/view/count_text.h"
#include "client/cpp/view/stroke_font.h"

namespace voxserve::client {
namespace {

constexpr float kMapLongSide = 1480;  // in pixels
constexpr float kMinMapWidth = 860;
constexpr float kMinMapHeight = 980;
constexpr float kMaxMapWidth = 1700;
constexpr int kLegendWidth = 470;
constexpr float kPanelMargin = 34;

constexpr Color kBackground = {0.031f, 0.039f, 0.055f};
constexpr Color kPanel = {0.055f, 0.067f, 0.090f};
constexpr Color kInk = {0.93f, 0.95f, 0.98f};
constexpr Color kFaintInk = {0.56f, 0.62f, 0.70f};
constexpr Color kWhite = {1, 1, 1};

// Projects the ground to the picture: forward is up, left is left.
struct PictureProjection {
  float pixels_per_m = 1;
  PixelPoint sensor;  // position of the sensor
  int width = 0, height = 0;

  PixelPoint operator()(float x, float y) const { return {sensor.x - y * pixels_per_m, sensor.y - x * pixels_per_m}; }
};

PictureProjection Fit(const Extent& extent) {
  PictureProjection projection;
  const float scale = std::min(kMapLongSide / extent.length(), kMaxMapWidth / extent.width());
  const float width = std::max(extent.width() * scale, kMinMapWidth);
  const float height = std::max(extent.length() * scale, kMinMapHeight);
  projection.pixels_per_m = scale;
  projection.width = static_cast<int>(std::lround(width));
  projection.height = static_cast<int>(std::lround(height));
  projection.sensor = {width / 2 + (extent.max_y + extent.min_y) / 2 * scale,
                       height / 2 + (extent.max_x + extent.min_x) / 2 * scale};
  return projection;
}

// The drawing of one class's points.
struct Layer {
  std::vector<float> density;     // [height, width]
  std::vector<float> brightness;  // [height, width]; each point is weighted by its height above the ground
};

void Splat(PixelPoint at, float radius, float brightness, const PictureProjection& projection, Layer* layer) {
  const int left = std::max(0, static_cast<int>(at.x - 2 * radius));
  const int right = std::min(projection.width - 1, static_cast<int>(at.x + 2 * radius));
  const int top = std::max(0, static_cast<int>(at.y - 2 * radius));
  const int bottom = std::min(projection.height - 1, static_cast<int>(at.y + 2 * radius));
  for (int py = top; py <= bottom; ++py) {
    for (int px = left; px <= right; ++px) {
      const float dx = static_cast<float>(px) + 0.5f - at.x, dy = static_cast<float>(py) + 0.5f - at.y;
      const float weight = std::exp(-(dx * dx + dy * dy) / (radius * radius));
      const size_t index = static_cast<size_t>(py) * projection.width + px;
      layer->density[index] += weight;
      layer->brightness[index] += weight * brightness;
    }
  }
}

void Compose(const Layer& layer, const Color& color, float gain, const PictureProjection& projection, Image* image) {
  for (int y = 0; y < projection.height; ++y) {
    for (int x = 0; x < projection.width; ++x) {
      const size_t index = static_cast<size_t>(y) * projection.width + x;
      const float density = layer.density[index];
      if (density < 0.004f) continue;
      const float alpha = 1 - std::exp(-gain * density);
      const float brightness = layer.brightness[index] / density;  // 0..1
      const float crowd = 1 - std::exp(-0.10f * density);          // places with many points shine
      const Color shaded = Mix(Mix(kBackground, color, 0.74f + 0.26f * brightness), kWhite, 0.30f * crowd * brightness);
      image->Blend(x, y, shaded, alpha);
    }
  }
}

// Returns the heights at which the shading begins and ends; most of the scan is between them.
std::pair<float, float> HeightRange(const AnnotatedScan& scan) {
  std::vector<float> heights;
  for (const float z : scan.z) {
    if (std::isfinite(z)) heights.push_back(z);
  }
  if (heights.empty()) return {0, 1};
  const auto quantile = [&](double share) {
    const auto nth = heights.begin() + static_cast<std::ptrdiff_t>(share * static_cast<double>(heights.size() - 1));
    std::nth_element(heights.begin(), nth, heights.end());
    return *nth;
  };
  const float low = quantile(0.02), high = quantile(0.95);
  return {low, std::max(high, low + 1)};
}

void DrawPointsInPicture(const AnnotatedScan& scan, const std::vector<ClassCount>& counts,
                         const PictureProjection& projection, Image* image) {
  const auto [low, high] = HeightRange(scan);
  const size_t num_pixels = static_cast<size_t>(projection.width) * projection.height;
  const auto draw = [&, low = low, high = high](int id, const Color& color, float share) {
    Layer layer{std::vector<float>(num_pixels, 0.0f), std::vector<float>(num_pixels, 0.0f)};
    // Rare classes get a broader pen, so that a person of forty points is visible.
    const float emphasis = share < 0.01f ? 1.45f : share < 0.05f ? 1.2f : 1.0f;
    for (size_t i = 0; i < scan.x.size(); ++i) {
      const float x = scan.x[i], y = scan.y[i], z = scan.z[i];
      const int label = scan.labels.empty() ? scan.ignore_label : scan.labels[i];
      if (label != id || !std::isfinite(x) || !std::isfinite(y) || !std::isfinite(z)) continue;
      const PixelPoint at = projection(x, y);
      if (at.x < -8 || at.y < -8 || at.x > static_cast<float>(projection.width) + 8 ||
          at.y > static_cast<float>(projection.height) + 8) {
        continue;
      }
      // The distance between points grows with the range.
      const float spread = std::min(std::hypot(x, y) * 0.012f, 0.9f);
      const float brightness = std::clamp((z - low) / (high - low), 0.0f, 1.0f);
      Splat(at, (0.95f + spread) * emphasis, brightness, projection, &layer);
    }
    Compose(layer, color, 1.1f, projection, image);
  };
  draw(scan.ignore_label, {0.35f, 0.37f, 0.40f}, 1);
  for (const ClassCount& count : counts) draw(count.id, ColorOf(count.color_rgb), static_cast<float>(count.share));
}

void DrawBoxesInPicture(const AnnotatedScan& scan, const PictureProjection& projection, Image* image) {
  if (!scan.boxes) return;
  for (const auto& [box, footprint] : DrawnBoxes(*scan.boxes)) {
    const Color color = ColorOf(RgbOf(*box, scan.box_classes));
    const float alpha = 0.4f + 0.6f * std::clamp(box->score, 0.0f, 1.0f);
    for (const auto& [from, to] : footprint.Lines()) {
      const PixelPoint a = projection(from.x, from.y), b = projection(to.x, to.y);
      image->DrawLine(a, b, 5, kBackground, 0.5f * alpha);
      image->DrawLine(a, b, 2.4f, color, alpha);
    }
  }
}

float RingStep(const Extent& extent) {
  const float reach = std::max({extent.max_x, -extent.min_x, extent.max_y, -extent.min_y});
  for (const float step : {5.0f, 10.0f, 20.0f, 25.0f, 50.0f, 100.0f}) {
    if (reach / step <= 6) return step;
  }
  return 200;
}

void DrawRings(const Extent& extent, const PictureProjection& projection, Image* image) {
  const float step = RingStep(extent);
  const float reach = std::hypot(std::max(extent.max_x, -extent.min_x), std::max(extent.max_y, -extent.min_y));
  for (int i = 1; static_cast<float>(i) * step < reach; ++i) {
    image->DrawRing(projection.sensor, static_cast<float>(i) * step * projection.pixels_per_m, 1.3f, kFaintInk, 0.20f);
  }
}

// Writes each ring's range where the ring crosses the x axis, ahead of the sensor and behind it.
void DrawRingLabels(const Extent& extent, const PictureProjection& projection, Image* image) {
  constexpr float kSize = 15;
  const float step = RingStep(extent);
  const float reach = std::max(extent.max_x, -extent.min_x);
  for (int i = 1; static_cast<float>(i) * step <= reach; ++i) {
    const float range = static_cast<float>(i) * step;
    const std::string label = absl::StrCat(range, " m");
    const float half_width = TextWidth(label, kSize) / 2;
    for (const float x : {range, -range}) {
      const PixelPoint at = projection(x, 0);
      if (at.y < 24 || at.y > static_cast<float>(projection.height) - 24) continue;
      image->FillRectangle(at.x - half_width - 6, at.y - kSize / 2 - 6, at.x + half_width + 6, at.y + kSize / 2 + 6, 6,
                           kBackground, 0.72f);
      DrawText(label, {at.x - half_width, at.y + kSize / 2}, kSize, kFaintInk, 0.95f, image);
    }
  }
}

void DrawSensor(const PictureProjection& projection, Image* image) {
  const PixelPoint s = projection.sensor;
  image->DrawLine({s.x, s.y}, {s.x, s.y}, 26, kBackground, 0.55f);
  const PixelPoint tip = {s.x, s.y - 13}, left = {s.x - 9, s.y + 10}, right = {s.x + 9, s.y + 10};
  const PixelPoint notch = {s.x, s.y + 4};
  image->DrawLine(tip, left, 3.2f, kWhite, 1);
  image->DrawLine(tip, right, 3.2f, kWhite, 1);
  image->DrawLine(left, notch, 3.2f, kWhite, 1);
  image->DrawLine(right, notch, 3.2f, kWhite, 1);
}

// Shortens text that does not fit, with "...".
std::string Shorten(std::string text, float size, float width) {
  if (TextWidth(text, size) <= width) return text;
  while (!text.empty() && TextWidth(absl::StrCat(text, "..."), size) > width) text.pop_back();
  return absl::StrCat(text, "...");
}

struct LegendRow {
  std::string name;
  uint32_t color_rgb = 0;
  uint64_t number = 0;  // number of points or boxes
  double share = 0;     // of the largest such number
  std::string note;
};

std::vector<LegendRow> LegendRows(const AnnotatedScan& scan, const std::vector<ClassCount>& counts) {
  std::vector<LegendRow> rows;
  const auto share_of = [](uint64_t number, uint64_t largest) {
    return static_cast<double>(number) / static_cast<double>(largest);
  };
  // The class with the most comes first.
  const std::vector<BoxCount> boxes = CountBoxes(scan.boxes.value_or(std::vector<Box>()), scan.box_classes);
  for (const BoxCount& count : boxes) {
    rows.push_back({count.name, count.color_rgb, count.num_boxes, share_of(count.num_boxes, boxes.front().num_boxes),
                    absl::StrFormat("%.2f", count.best_score)});
  }
  for (const ClassCount& count : counts) {
    rows.push_back({count.name, count.color_rgb, count.num_points,
                    share_of(count.num_points, counts.front().num_points),
                    count.share < 0.001 ? "<0.1%" : absl::StrFormat("%.1f%%", 100 * count.share)});
  }
  return rows;
}

void DrawLegendRow(const LegendRow& row, float left, float right, float y, Image* image) {
  const Color color = ColorOf(row.color_rgb);
  constexpr float kSize = 17;
  image->FillRectangle(left, y - 16, left + 18, y + 2, 5, color, 1);
  const std::string number = WithSeparators(row.number);
  DrawText(Shorten(row.name, kSize, 215), {left + 32, y}, kSize, kInk, 1, image);
  DrawText(number, {right - 86 - TextWidth(number, kSize), y}, kSize, kFaintInk, 1, image);
  DrawText(row.note, {right - TextWidth(row.note, kSize), y}, kSize, kInk, 1, image);
  const float bar = (right - left - 32) * static_cast<float>(row.share);
  image->FillRectangle(left + 32, y + 9, right, y + 13, 2, kFaintInk, 0.13f);
  image->FillRectangle(left + 32, y + 9, left + 32 + std::max(bar, 4.0f), y + 13, 2, color, 0.95f);
}

void DrawLegend(const AnnotatedScan& scan, const std::vector<ClassCount>& counts, const PictureText& text,
                Image* image) {
  const float left = static_cast<float>(image->width() - kLegendWidth) + kPanelMargin;
  const float right = static_cast<float>(image->width()) - kPanelMargin;
  image->FillRectangle(static_cast<float>(image->width() - kLegendWidth), 0, static_cast<float>(image->width()),
                       static_cast<float>(image->height()), 0, kPanel, 1);
  float y = kPanelMargin + 30;
  DrawText(Shorten(text.title, 30, right - left), {left, y}, 30, kInk, 1, image);
  y += 14;
  for (const std::string& line : text.lines) {
    y += 28;
    DrawText(Shorten(line, 16, right - left), {left, y}, 16, kFaintInk, 1, image);
  }
  y += 62;
  constexpr float kRow = 46;
  const size_t fitting = static_cast<size_t>((static_cast<float>(image->height()) - y - 70) / kRow);
  const std::vector<LegendRow> rows = LegendRows(scan, counts);
  const size_t shown = std::min(rows.size(), fitting);
  for (size_t i = 0; i < shown; ++i, y += kRow) DrawLegendRow(rows[i], left, right, y, image);
  uint64_t unlabelled = scan.labels.size();
  for (const ClassCount& count : counts) unlabelled -= count.num_points;
  std::string rest;
  if (scan.boxes) rest = scan.boxes->empty() ? "no boxes" : "boxes, and the best score";
  if (shown < rows.size()) absl::StrAppend(&rest, rest.empty() ? "" : ", ", rows.size() - shown, " more classes");
  if (unlabelled > 0) {
    absl::StrAppend(&rest, rest.empty() ? "" : ", ", WithSeparators(unlabelled), " points not labelled");
  }
  if (scan.boxes && !counts.empty()) {
    DrawText("points, and their share", {left, y}, 15, kFaintInk, 1, image);
    y += 24;
  }
  DrawText(rest, {left, y}, 15, kFaintInk, 1, image);
  DrawText("seen from above, forward is up", {left, static_cast<float>(image->height()) - kPanelMargin}, 14, kFaintInk,
           0.8f, image);
}

}  // namespace

Image DrawPicture(const AnnotatedScan& scan, const PictureText& text) {
  const Extent extent = DenseExtent(scan);
  const PictureProjection projection = Fit(extent);
  const std::vector<ClassCount> counts = CountClasses(scan.labels, scan.ignore_label, scan.classes);
  Image image(projection.width + kLegendWidth, projection.height, kBackground);
  DrawRings(extent, projection, &image);
  DrawPointsInPicture(scan, counts, projection, &image);
  image.Glow(5, 0.35f, projection.width);
  DrawRingLabels(extent, projection, &image);
  DrawBoxesInPicture(scan, projection, &image);
  DrawSensor(projection, &image);
  DrawLegend(scan, counts, text, &image);
  return image;
}

}  // namespace voxserve::client
