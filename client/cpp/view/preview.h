#pragma once

// A scan with its labels or boxes from above in a terminal: two pixels a character in the classes' colours, or, without
// colours, a letter per class. Driving direction up, or to the right where the scan is longer than it is wide. Boxes
// are outlines, with a line from the middle to the front, over points that have no label.

#include <string>

#include "client/cpp/view/annotated_scan.h"

namespace voxserve::client {

struct PreviewOptions {
  int columns = 72;
  int rows = 24;
  bool color = true;  // 24-bit colour and Unicode half blocks; else plain ASCII with a legend
};

// Lines, each ended by a newline.
std::string DrawPreview(const AnnotatedScan& scan, const PreviewOptions& options);

}  // namespace voxserve::client
