#pragma once

// What a person is told about the boxes of a scan, or of several.

#include <string>
#include <vector>

#include "client/cpp/api/detections.h"
#include "client/cpp/cli/command.h"
#include "client/cpp/view/boxes_from_above.h"

namespace voxserve::client {

// The table of classes.
std::string FormatBoxCounts(const std::vector<BoxCount>& counts, const Terminal& terminal);

// A line for each of the surest boxes, the best score first, and how many more there are.
std::string FormatBoxes(const std::vector<Box>& boxes, const std::vector<v1::ClassInfo>& classes,
                        const Terminal& terminal);

}  // namespace voxserve::client
