#pragma once

// Formats the progress and the result of a search for people.

#include <string>

#include "absl/time/time.h"
#include "engine/tuner/plan_search.h"

namespace voxserve::tune {

// Returns each convolution's gain for every size of scans, then the whole network's, and the notes.
std::string FormatResult(const SearchResult& result, const std::string& device);

// Returns a line such as "[#####.....]  50%  0:12  size 1 of 2: candidates".
std::string FormatProgress(const SearchProgress& progress, absl::Duration elapsed);

}  // namespace voxserve::tune
