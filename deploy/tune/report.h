#pragma once

// FormatResult formats the result of voxserve-tune's search for people.

#include <string>

#include "engine/tuner/plan_search.h"

namespace voxserve::tune {

// Returns the gain of each convolution, then of the whole network, for every size of scans, and the search's notes.
std::string FormatResult(const SearchResult& result, const std::string& device);

}  // namespace voxserve::tune
