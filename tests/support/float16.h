#pragma once

// The compiler's float16 (IEEE 754 binary16), whose conversions round to nearest even. Tests take it as the oracle of
// our own conversions.

namespace voxserve {

#if defined(__aarch64__)
using Float16 = __fp16;  // GCC 12 has no _Float16 in C++ there
#else
using Float16 = _Float16;
#endif

}  // namespace voxserve
