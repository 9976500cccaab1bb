#include "engine/runtime/streaming_copy.h"

#include <cstdint>
#include <cstring>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace voxserve {

#if defined(__SSE2__)

namespace {

constexpr size_t kLineBytes = 64;
constexpr size_t kMinBytes = 4 * kLineBytes;

}  // namespace

void StreamingCopy(char* to, const char* from, size_t bytes) {
  if (bytes < kMinBytes) {
    if (bytes > 0) std::memcpy(to, from, bytes);
    return;
  }
  // Streams whole cache lines only: the processor holds back a line that is written in part.
  const size_t head = (kLineBytes - reinterpret_cast<uintptr_t>(to) % kLineBytes) % kLineBytes;
  std::memcpy(to, from, head);
  to += head;
  from += head;
  const size_t tail = (bytes - head) % kLineBytes;
  const char* const end = from + (bytes - head - tail);
  for (; from != end; from += kLineBytes, to += kLineBytes) {
    const auto* const in = reinterpret_cast<const __m128i*>(from);
    auto* const out = reinterpret_cast<__m128i*>(to);
    const __m128i a = _mm_loadu_si128(in);
    const __m128i b = _mm_loadu_si128(in + 1);
    const __m128i c = _mm_loadu_si128(in + 2);
    const __m128i d = _mm_loadu_si128(in + 3);
    _mm_stream_si128(out, a);
    _mm_stream_si128(out + 1, b);
    _mm_stream_si128(out + 2, c);
    _mm_stream_si128(out + 3, d);
  }
  std::memcpy(to, from, tail);
}

void FinishStreaming() { _mm_sfence(); }

#else

void StreamingCopy(char* to, const char* from, size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

void FinishStreaming() {}

#endif

}  // namespace voxserve
