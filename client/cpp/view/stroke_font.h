#pragma once

// Text in pictures, drawn with a round pen: every printable ASCII character is a few strokes on a small grid, so that
// it is smooth at any size. Other characters show as '?'.

#include "absl/strings/string_view.h"
#include "client/cpp/view/image.h"

namespace voxserve::client {

// Pixels from the first to the last character's edge. `size` is the height of a capital in pixels.
float TextWidth(absl::string_view text, float size);

// (left, baseline) is where the text begins.
void DrawText(absl::string_view text, PixelPoint left_baseline, float size, const Color& color, float alpha,
              Image* image);

}  // namespace voxserve::client
