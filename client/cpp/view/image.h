#pragma once

// A picture in memory: RGB floats, 0 to 1 in the display's own (sRGB) space, x to the right and y down, pixel centres
// at half integers. What lies outside is clipped.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace voxserve::client {

using Color = std::array<float, 3>;

// 0xRRGGBB.
Color ColorOf(uint32_t rgb);
Color Mix(const Color& from, const Color& to, float share);

struct PixelPoint {
  float x = 0;
  float y = 0;
};

class Image {
 public:
  Image(int width, int height, const Color& background);

  int width() const { return width_; }
  int height() const { return height_; }
  Color& at(int x, int y) { return pixels_[static_cast<size_t>(y) * width_ + x]; }
  const Color& at(int x, int y) const { return pixels_[static_cast<size_t>(y) * width_ + x]; }

  // Lays the colour over the pixel.
  void Blend(int x, int y, const Color& color, float alpha);
  // All with smooth edges. Corners of the rectangle are rounded by `radius`.
  void FillRectangle(float left, float top, float right, float bottom, float radius, const Color& color, float alpha);
  void DrawRing(PixelPoint centre, float radius, float thickness, const Color& color, float alpha);
  void DrawLine(PixelPoint from, PixelPoint to, float thickness, const Color& color, float alpha);

  // Adds `share` of itself blurred over about `radius` pixels, so that bright spots glow. Only columns below `right`.
  void Glow(int radius, float share, int right);

  // 8-bit RGB PNG. Overwrites.
  absl::Status WritePng(const std::string& path) const;

 private:
  const int width_;
  const int height_;
  std::vector<Color> pixels_;
};

// Distance of p from the segment.
float DistanceToSegment(PixelPoint p, PixelPoint from, PixelPoint to);

// How much of a pixel a shape covers whose edge lies `inside` pixels beyond the pixel's centre.
float Coverage(float inside);

}  // namespace voxserve::client
