#pragma once

// Included before everything else under ThreadSanitizer. There protobuf's header gives each map field two more members,
// which the system's libprotobuf, compiled without ThreadSanitizer, does not have: it would read others in their place.

#include <cstddef>  // The standard library must still know of ThreadSanitizer.

#pragma push_macro("__SANITIZE_THREAD__")
#undef __SANITIZE_THREAD__
#include <google/protobuf/map_field.h>
#pragma pop_macro("__SANITIZE_THREAD__")
