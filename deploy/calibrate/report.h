#pragma once

// These functions format the result of voxserve-calibrate for people.

#include <map>
#include <string>
#include <vector>

#include "deploy/calibrate/agreement.h"
#include "deploy/calibrate/layer_choice.h"
#include "deploy/calibrate/scales.h"

namespace voxserve::calibrate {

// Returns a table of the layers: what each costs alone in 8 bits, the range that its value keeps in 8 bits and the
// largest magnitude of its value in the scans, and whether it multiplies in 8 bits or why it does not.
// ranges, largest: by the name of the value's node. largest is empty if the scales come from a file.
std::string FormatLayers(const std::vector<LayerChoice>& layers, const std::map<std::string, float>& ranges,
                         const std::map<std::string, float>& largest);

// Returns a text such as "99.87% of 246,778 labels and 98.5% of 312 boxes in 2 scans", with each part's own share.
std::string FormatAgreement(const Agreement& agreement, size_t num_scans);

}  // namespace voxserve::calibrate
