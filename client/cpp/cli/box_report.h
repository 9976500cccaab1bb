#pragma once

// These functions format the boxes of one or several scans for people.

#include <string>
#include <vector>

#include "client/cpp/api/detections.h"
#include "client/cpp/cli/command.h"
#include "client/cpp/view/boxes_from_above.h"

namespace voxserve::client {

// Returns a table with a row for each class: its number of boxes and best score.
std::string FormatBoxCounts(const std::vector<BoxCount>& counts, const Terminal& terminal);

// Returns a line for each of the boxes with the best scores, best first, then the number of the other boxes.
std::string FormatBoxes(const std::vector<Box>& boxes, const std::vector<v1::ClassInfo>& classes,
                        const Terminal& terminal);

}  // namespace voxserve::client
