#include "engine/runtime/staged_copy.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/runtime/streaming_copy.h"

namespace voxserve {
namespace {

// What a thread copies at a time. Threads take 50 microseconds and more to wake up, and until then the calling thread
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
