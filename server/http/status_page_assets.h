#pragma once

// The CSS and the JavaScript that RenderHtml embeds in the status page (status_page.h).

namespace voxserve {

extern const char kStatusPageStyle[];
extern const char kStatusPageScript[];

}  // namespace voxserve
