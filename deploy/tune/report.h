#pragma once

// What a person is told about a search.

#include <string>

#include "absl/time/time.h"
#include "engine/tuner/plan_search.h"

namespace voxserve::tune {

// Of every size of scans what each convolution won, then the whole network, and what was left out.
std::string FormatResult(const SearchResult& result, const std::string& device);

// [#####.....]  50%  0:12  size 1 of 2: candidates
std::string FormatProgress(const SearchProgress& progress, absl::Duration elapsed);

}  // namespace voxserve::tune
