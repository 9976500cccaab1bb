#pragma once

// DrawPreview draws a scan with its labels or boxes from above, as text for a terminal. With colours each character
// shows two pixels in the classes' colours; without colours each class has a letter. The driving direction is up, or to
// the right if the scan is longer than wide. Boxes are outlines with a line from the centre to the front, over the
// scan's points.

#include <string>

#include "client/cpp/view/annotated_scan.h"

namespace voxserve::client {

struct PreviewOptions {
  int columns = 72;
  int rows = 24;
  bool color = true;  // 24-bit colour and Unicode half blocks; else plain ASCII with a legend
};

// Returns lines, each ending with a newline.
std::string DrawPreview(const AnnotatedScan& scan, const PreviewOptions& options);

}  // namespace voxserve::client
