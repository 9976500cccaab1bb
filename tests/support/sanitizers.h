#pragma once

// kIsSanitized: the test is compiled with AddressSanitizer or ThreadSanitizer, so it takes several times as long, and
// the sanitizer has an allocator of its own. GCC says so by macros, Clang by features.

namespace voxserve::support {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kIsSanitized = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
inline constexpr bool kIsSanitized = true;
#else
inline constexpr bool kIsSanitized = false;
#endif
#else
inline constexpr bool kIsSanitized = false;
#endif

}  // namespace voxserve::support
