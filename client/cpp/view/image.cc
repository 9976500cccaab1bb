#include "client/cpp/view/image.h"

#include <png.h>

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "client/cpp/io/file.h"

namespace voxserve::client {
namespace {

struct Bounds {
  int left, top, right, bottom;  // right and bottom are exclusive
};

Bounds Clip(float left, float top, float right, float bottom, int width, int height) {
  const auto clip = [](float value, int limit) {
    return static_cast<int>(std::clamp(value, 0.0f, static_cast<float>(limit)));
  };
  return {clip(std::floor(left), width), clip(std::floor(top), height), clip(std::ceil(right), width),
          clip(std::ceil(bottom), height)};
}

// Computes the running mean over 2 * radius + 1 values; the end values are repeated. Neighbours are `stride` apart.
void BlurLine(const Color* in, Color* out, int count, size_t stride, int radius) {
  const float scale = 1.0f / static_cast<float>(2 * radius + 1);
  const auto value = [&](int i) -> const Color& {
    return in[static_cast<size_t>(std::clamp(i, 0, count - 1)) * stride];
  };
  Color sum = {0, 0, 0};
  for (int i = -radius; i <= radius; ++i) {
    for (int c = 0; c < 3; ++c) sum[c] += value(i)[c];
  }
  for (int i = 0; i < count; ++i) {
    for (int c = 0; c < 3; ++c) {
      out[static_cast<size_t>(i) * stride][c] = sum[c] * scale;
      sum[c] += value(i + radius + 1)[c] - value(i - radius)[c];
    }
  }
}

}  // namespace

Color ColorOf(uint32_t rgb) {
  return {static_cast<float>(rgb >> 16 & 0xff) / 255, static_cast<float>(rgb >> 8 & 0xff) / 255,
          static_cast<float>(rgb & 0xff) / 255};
}

Color Mix(const Color& from, const Color& to, float share) {
  Color mixed;
  for (int c = 0; c < 3; ++c) mixed[c] = from[c] + (to[c] - from[c]) * share;
  return mixed;
}

float DistanceToSegment(PixelPoint p, PixelPoint from, PixelPoint to) {
  const float dx = to.x - from.x, dy = to.y - from.y;
  const float length_squared = dx * dx + dy * dy;
  const float along = length_squared > 0 ? ((p.x - from.x) * dx + (p.y - from.y) * dy) / length_squared : 0.0f;
  const float t = std::clamp(along, 0.0f, 1.0f);
  return std::hypot(p.x - from.x - t * dx, p.y - from.y - t * dy);
}

float Coverage(float inside) { return std::clamp(inside + 0.5f, 0.0f, 1.0f); }

Image::Image(int width, int height, const Color& background)
    : width_(width), height_(height), pixels_(static_cast<size_t>(width) * height, background) {}

void Image::Blend(int x, int y, const Color& color, float alpha) {
  if (x < 0 || y < 0 || x >= width_ || y >= height_) return;
  at(x, y) = Mix(at(x, y), color, alpha);
}

void Image::FillRectangle(float left, float top, float right, float bottom, float radius, const Color& color,
                          float alpha) {
  const Bounds bounds = Clip(left - 1, top - 1, right + 1, bottom + 1, width_, height_);
  const float middle_x = (left + right) / 2, middle_y = (top + bottom) / 2;
  const float half_x = (right - left) / 2 - radius, half_y = (bottom - top) / 2 - radius;
  for (int y = bounds.top; y < bounds.bottom; ++y) {
    for (int x = bounds.left; x < bounds.right; ++x) {
      const float dx = std::abs(static_cast<float>(x) + 0.5f - middle_x) - half_x;
      const float dy = std::abs(static_cast<float>(y) + 0.5f - middle_y) - half_y;
      const float outside = std::hypot(std::max(dx, 0.0f), std::max(dy, 0.0f)) + std::min(std::max(dx, dy), 0.0f);
      Blend(x, y, color, alpha * Coverage(radius - outside));
    }
  }
}

void Image::DrawRing(PixelPoint centre, float radius, float thickness, const Color& color, float alpha) {
  const float reach = radius + thickness;
  const Bounds bounds = Clip(centre.x - reach, centre.y - reach, centre.x + reach, centre.y + reach, width_, height_);
  for (int y = bounds.top; y < bounds.bottom; ++y) {
    for (int x = bounds.left; x < bounds.right; ++x) {
      const float distance =
          std::hypot(static_cast<float>(x) + 0.5f - centre.x, static_cast<float>(y) + 0.5f - centre.y);
      const float coverage = Coverage(thickness / 2 - std::abs(distance - radius));
      if (coverage > 0) Blend(x, y, color, alpha * coverage);
    }
  }
}

void Image::DrawLine(PixelPoint from, PixelPoint to, float thickness, const Color& color, float alpha) {
  const Bounds bounds = Clip(std::min(from.x, to.x) - thickness, std::min(from.y, to.y) - thickness,
                             std::max(from.x, to.x) + thickness, std::max(from.y, to.y) + thickness, width_, height_);
  for (int y = bounds.top; y < bounds.bottom; ++y) {
    for (int x = bounds.left; x < bounds.right; ++x) {
      const PixelPoint centre = {static_cast<float>(x) + 0.5f, static_cast<float>(y) + 0.5f};
      const float coverage = Coverage(thickness / 2 - DistanceToSegment(centre, from, to));
      if (coverage > 0) Blend(x, y, color, alpha * coverage);
    }
  }
}

void Image::Glow(int radius, float share, int right) {
  // Two box blurs per direction approximate a Gaussian blur.
  std::vector<Color> first(pixels_), second(pixels_.size());
  for (int y = 0; y < height_; ++y) {
    const size_t row = static_cast<size_t>(y) * width_;
    BlurLine(&first[row], &second[row], right, 1, radius);
    BlurLine(&second[row], &first[row], right, 1, radius);
  }
  for (int x = 0; x < right; ++x) {
    BlurLine(&first[x], &second[x], height_, width_, radius);
    BlurLine(&second[x], &first[x], height_, width_, radius);
  }
  for (int y = 0; y < height_; ++y) {
    for (int x = 0; x < right; ++x) {
      const Color& blurred = first[static_cast<size_t>(y) * width_ + x];
      for (int c = 0; c < 3; ++c) at(x, y)[c] += (1 - at(x, y)[c]) * share * blurred[c];
    }
  }
}

absl::Status Image::WritePng(const std::string& path) const {
  std::vector<uint8_t> bytes(pixels_.size() * 3);
  for (size_t i = 0; i < pixels_.size(); ++i) {
    for (int c = 0; c < 3; ++c) {
      bytes[3 * i + c] = static_cast<uint8_t>(std::lround(std::clamp(pixels_[i][c], 0.0f, 1.0f) * 255));
    }
  }
  png_image png = {};
  png.version = PNG_IMAGE_VERSION;
  png.width = static_cast<png_uint_32>(width_);
  png.height = static_cast<png_uint_32>(height_);
  png.format = PNG_FORMAT_RGB;
  png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(png);
  std::string encoded(size, '\0');
  if (!png_image_write_to_memory(&png, encoded.data(), &size, 0, bytes.data(), 0, nullptr)) {
    return absl::InternalError(absl::StrCat(path, ": the picture could not be encoded: ", png.message));
  }
  encoded.resize(size);
  return WriteFile(path, encoded);
}

}  // namespace voxserve::client
