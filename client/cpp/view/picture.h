#pragma once

// A scan with its labels or boxes from above, as a PNG that a person enjoys looking at: a colour per class, range rings
// around the sensor, driving direction up, and a legend with counts. Rare classes are drawn over common ones, so that
// cars and people stand out from road and walls. Boxes are outlines in their class's colour, with a line from the
// middle to the front; the less sure the network is, the fainter.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/cpp/view/annotated_scan.h"
#include "client/cpp/view/image.h"

namespace voxserve::client {

struct PictureText {
  std::string title = {};               // large, e.g. "minkunet v1"
  std::vector<std::string> lines = {};  // small, below it
};

// At most 2,200 x 1,500 pixels, whatever the scan's size.
Image DrawPicture(const AnnotatedScan& scan, const PictureText& text);

}  // namespace voxserve::client
