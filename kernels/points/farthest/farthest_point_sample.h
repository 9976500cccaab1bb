#pragma once

// FarthestPointSample selects points that cover each cloud evenly: a start point, and then repeatedly the point that is
// farthest from its nearest selected point.
//
// The selected indices are exactly those of the serial algorithm (Y. Eldar et al., "The farthest point strategy for
// progressive image sampling", IEEE Trans. Image Processing 6(9), 1997), on every device and in every batch:
//   distance[i] = +infinity for all i; select the start.
//   Repeat: distance[i] = min(distance[i], (dx * dx + dy * dy) + dz * dz), where (dx, dy, dz) is the difference between
//           point i and the point selected last, in metres. Every operation is rounded to float32.
//           Select the i with the largest distance, and the lowest such i if several distances are equal.
// If a cloud has fewer distinct points than are to be selected, all distances become 0, and from then on its first
// valid point is selected again and again.
//
// A point is valid if its three coordinates are finite and the caller's mask does not exclude it. Invalid points are
// never selected and have no effect.
//
// Both devices skip updates that cannot change a distance, as QuickFPS does (M. Han et al., IEEE TCAD 42(11), 2023).
// Points are sorted along a Morton curve into buckets. Each bucket knows its bounding box and the largest distance of
// its points. If the box is at least that distance away from a newly selected point, the bucket is skipped. The
// distance of the box uses the same float32 operations as the distances of points, and rounding is monotonic. So the
// test is also right for rounded distances.

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/core/cuda_stream.h"
#include "kernels/core/rows.h"
#include "kernels/core/thread_pool.h"

namespace voxserve::kernels {

// If nothing could be selected from a sample, `selected` has this value in all of the sample's places.
inline constexpr int32_t kNothingSelected = -1;

struct FarthestPointSampleParams {
  // Input.
  int64_t num_points = 0;                   // N, of all samples, below 2^31
  int64_t max_sample_points = 0;            // CUDA only: no sample has more points; only for speed; 0: not known
  int32_t num_samples = 0;                  // B, at most kMaxSamples
  const int64_t* point_begin = nullptr;     // [B + 1] first point of each sample; [0] is 0, [B] is N
  ConstRows points;                         // [N] float32, the first three columns are x, y, z
  const uint8_t* is_valid = nullptr;        // [N] the caller's mask, 0 for invalid points; null: no point is excluded
  const int64_t* selected_begin = nullptr;  // [B + 1] first selected point of each sample; [0] is 0
  // [B] the start of each sample, an index within the sample. Null: 0. If that point is invalid, the next valid point
  // is the start; the search wraps from the last point to the first.
  const int64_t* starts = nullptr;

  // Output. If a sample has fewer valid points than are to be selected, or its start is no index of a point, all of the
  // sample's entries in `selected` get kNothingSelected. num_valid shows the first of these cases.
  int64_t* num_valid = nullptr;  // [B]
  int32_t* selected = nullptr;   // [selected_begin[B]] indices within the sample, in the order of selection
  // The same shape as `selected`: the distance of each point when it was selected, in metres^2. It is +infinity for the
  // start, and -1 where `selected` has kNothingSelected. May be null.
  float* distances = nullptr;

  void* workspace = nullptr;  // the device's FarthestPointSampleWorkspaceBytes(*this), 256-byte aligned, contents free
};
static_assert(std::is_trivially_copyable_v<FarthestPointSampleParams>);

// Returns a pseudo-random start in [0, num_points) for a seed, the same on every machine. num_points must be above 0.
// The seed is hashed first (by the finalizer of SplitMix64: G. L. Steele et al., OOPSLA 2014), so that all of its bits
// matter even if num_points is a power of two.
constexpr int64_t FarthestPointStart(uint64_t seed, int64_t num_points) {
  uint64_t bits = seed + 0x9E3779B97F4A7C15u;
  bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9u;
  bits = (bits ^ bits >> 27) * 0x94D049BB133111EBu;
  bits ^= bits >> 31;
  return static_cast<int64_t>(bits % static_cast<uint64_t>(num_points));
}

namespace cpu {

// Returns the bytes of params.workspace. Reads only num_points and num_samples.
size_t FarthestPointSampleWorkspaceBytes(const FarthestPointSampleParams& params);

// All threads of the pool sort the points. After that, one thread handles one sample, even if there is only one sample:
// each selection depends on the selection before and takes only microseconds, less than threads need to synchronise.
void FarthestPointSample(const FarthestPointSampleParams& params, ThreadPool& pool);

}  // namespace cpu

namespace cuda {

// Says how many blocks and warps work on a sample. For a member that is 0, FarthestPointSample chooses the value. Only
// tests and benchmarks set other values. Results do not depend on the layout.
struct FarthestPointLayout {
  int32_t num_blocks = 0;  // blocks per sample: 1, or a cluster of 2, 4, 8 or 16 if the device supports it
  int32_t num_warps = 0;   // warps per block, at most kMaxFarthestPointWarps
};
inline constexpr int32_t kMaxFarthestPointWarps = 32;

// Finds the most blocks per sample that the current device supports with this build's code: 1, 2, 4, 8 or 16.
cudaError_t MaxFarthestPointBlocks(int32_t* num_blocks);

// Returns the bytes of params.workspace. This function calls CUB, so it needs a device. Reads only num_points and
// num_samples.
size_t FarthestPointSampleWorkspaceBytes(const FarthestPointSampleParams& params);

// Returns cudaErrorInvalidValue for a layout that this device does not support.
cudaError_t FarthestPointSample(const FarthestPointSampleParams& params, cudaStream_t stream,
                                const FarthestPointLayout& layout = {});

}  // namespace cuda
}  // namespace voxserve::kernels
