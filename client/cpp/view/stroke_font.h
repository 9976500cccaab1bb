#pragma once

// DrawText draws text in pictures with a round pen. Every printable ASCII character is a few strokes on a small grid,
// so text is smooth at any size. Other characters are drawn as '?'.

#include "absl/strings/string_view.h"
#include "client/cpp/view/image.h"

namespace voxserve::client {

// Returns the width of the text in pixels, from the first to the last character's outer edge. `size` is a capital's
// height in pixels.
float TextWidth(absl::string_view text, float size);

// Draws the text, which begins at the point left_baseline: x is its left edge, y its baseline.
void DrawText(absl::string_view text, PixelPoint left_baseline, float size, const Color& color, float alpha,
              Image* image);

}  // namespace voxserve::client
