#pragma once

// These functions format the progress and the result of voxserve-tune's search for people.

#include <string>

#include "absl/time/time.h"
#include "engine/tuner/plan_search.h"

namespace voxserve::tune {

// Returns the gain of each convolution, then of the whole network, for every size of scans, and the search's notes.
std::string FormatResult(const SearchResult& result, const std::string& device);

// Returns a line such as "[#####.....]  50%  0:12  size 1 of 2: candidates".
std::string FormatProgress(const SearchProgress& progress, absl::Duration elapsed);

}  // namespace voxserve::tune
