#include "engine/runtime/streaming_copy.h"

#include <atomic>
#include <cstdint>
#include <cstring>
#include <vector>
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

namespace {

// What a thread copies at a time. Threads take some 50 microseconds to wake up, and until then the calling thread
// copies alone, so its pieces must be small. With pieces of 32 KiB times differ more from run to run.
constexpr size_t kPieceBytes = size_t{64} << 10;
// What is reported at a time: to start a transfer costs the calling thread 3 microseconds.
constexpr size_t kPiecesAReport = 4;

struct Piece {
  StagedRange range;
  std::atomic<bool> is_copied{false};

  explicit Piece(StagedRange part) : range(part) {}
};

}  // namespace

void StagedCopy(kernels::ThreadPool& pool, absl::Span<const StagedRange> ranges,
                const std::function<void(const char* end)>& is_ready) {
  std::vector<StagedRange> parts;
  for (const StagedRange& range : ranges) {
    for (size_t begin = 0; begin < range.from.size(); begin += kPieceBytes) {
      parts.push_back({.to = range.to + begin, .from = range.from.substr(begin, kPieceBytes)});
    }
  }
  std::vector<Piece> pieces(parts.begin(), parts.end());
  size_t num_ready = 0, num_reported = 0;
  const auto copy = [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      const StagedRange& range = pieces[i].range;
      StreamingCopy(range.to, range.from.data(), range.from.size());
      FinishStreaming();
      pieces[i].is_copied.store(true, std::memory_order_release);
    }
  };
  const auto report = [&] {
    while (num_ready < pieces.size() && pieces[num_ready].is_copied.load(std::memory_order_acquire)) ++num_ready;
    if (num_ready == num_reported) return;
    if (num_ready < pieces.size() && num_ready - num_reported < kPiecesAReport) return;
    num_reported = num_ready;
    const StagedRange& last = pieces[num_ready - 1].range;
    is_ready(last.to + last.from.size());
  };
  pool.ParallelFor(static_cast<int64_t>(pieces.size()), /*grain=*/1, copy, report);
}

}  // namespace voxserve
