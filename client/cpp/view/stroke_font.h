#pragma once

// Draws text in pictures with a round pen. Every printable ASCII character is a few strokes on a small grid, so it is
// smooth at any size. Other characters are drawn as '?'.

#include "absl/strings/string_view.h"
#include "client/cpp/view/image.h"

namespace voxserve::client {

// Returns the width in pixels, from the first to the last character's edge. `size` is a capital's height in pixels.
float TextWidth(absl::string_view text, float size);

// The text begins at (left, baseline).
void DrawText(absl::string_view text, PixelPoint left_baseline, float size, const Color& color, float alpha,
              Image* image);

}  // namespace voxserve::client
