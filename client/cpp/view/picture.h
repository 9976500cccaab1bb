#pragma once

// DrawPicture draws a scan with its labels, boxes or both from above, as an image for people. Each class has a colour,
// rings show the range from the sensor, the driving direction is up, and a legend has counts. Rare classes are drawn
// over common ones, so that cars and people stand out from road and walls. A box is an outline in its class's colour
// with a line from its centre to its front; the lower its score, the fainter it is.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/cpp/view/annotated_scan.h"
#include "client/cpp/view/image.h"

namespace voxserve::client {

struct PictureText {
  std::string title = {};               // large, e.g. "minkunet v1"
  std::vector<std::string> lines = {};  // small, below the title
};

// Draws at most 2,200 x 1,500 pixels, whatever the scan's size.
Image DrawPicture(const AnnotatedScan& scan, const PictureText& text);

}  // namespace voxserve::client
