#pragma once

// The status page's style and script, which stand in the page itself.

namespace voxserve {

extern const char kStatusPageStyle[];
extern const char kStatusPageScript[];

}  // namespace voxserve
