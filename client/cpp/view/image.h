#pragma once

// Image is an image in memory: RGB floats, 0 to 1 in sRGB. x goes to the right and y down, in pixels; pixel centres are
// at half integers. Parts of shapes outside the image are clipped. Not thread-safe.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace voxserve::client {

using Color = std::array<float, 3>;

// Converts a colour 0xRRGGBB.
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

  // Blends the colour over the pixel; alpha 1 replaces the pixel.
  void Blend(int x, int y, const Color& color, float alpha);
  // These shapes have smooth edges. `radius` rounds the rectangle's corners.
  void FillRectangle(float left, float top, float right, float bottom, float radius, const Color& color, float alpha);
  void DrawRing(PixelPoint centre, float radius, float thickness, const Color& color, float alpha);
  void DrawLine(PixelPoint from, PixelPoint to, float thickness, const Color& color, float alpha);

  // Blurs a copy of the image by about `radius` pixels and adds `share` of the copy, so that bright spots glow. Only
  // columns below `right` change.
  void Glow(int radius, float share, int right);

  // Writes an 8-bit RGB PNG, and overwrites an existing file.
  absl::Status WritePng(const std::string& path) const;

 private:
  const int width_;
  const int height_;
  std::vector<Color> pixels_;
};

// Returns the distance of p from the segment.
float DistanceToSegment(PixelPoint p, PixelPoint from, PixelPoint to);

// Returns the share (0 to 1) of a pixel that a shape covers, if the pixel's centre lies `inside` pixels within the
// shape's edge (negative: outside).
float Coverage(float inside);

}  // namespace voxserve::client
