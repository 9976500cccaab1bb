#pragma once

// The status page's style and script, which are embedded in the page.

namespace voxserve {

extern const char kStatusPageStyle[];
extern const char kStatusPageScript[];

}  // namespace voxserve
