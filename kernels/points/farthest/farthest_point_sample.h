#pragma once

// FarthestPointSample selects points that cover each cloud evenly: a start point, and then repeatedly the point with
// the largest distance to the nearest point selected before.
//
// The indices are exactly those of the serial algorithm (Y. Eldar et al., "The farthest point strategy for progressive
// image sampling", IEEE Trans. Image Processing 6(9), 1997), on every device and in every batch:
//   distance[i] = +infinity for all i; select the start
//   repeat: distance[i] = min(distance[i], (dx * dx + dy * dy) + dz * dz) with the point selected last, in metres^2,
//           each operation rounded to float32 for itself;
//           select the i of the largest distance, of several the lowest.
// So where a cloud has fewer distinct points than are selected, all distances are 0 in the end and its first valid
// point is selected again.
//
// A point is valid where its three coordinates are finite and the caller's mask does not exclude it. Invalid points are
// never selected and have no effect.
//
// Both devices skip distances that cannot change. Points are sorted along a Morton curve into buckets; each bucket has
// its bounding box and its largest distance. A bucket is skipped where its box is at least that far from the point
// selected last, as in QuickFPS (M. Han et al., IEEE TCAD 42(11), 2023). The bound uses the same roundings as the
// distances, and each is monotonic, so the bound also holds for the rounded distances.

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
  int64_t max_sample_points = 0;            // CUDA only, a hint: no sample has more points; 0: not known
  int32_t num_samples = 0;                  // B, at most kMaxSamples
  const int64_t* point_begin = nullptr;     // [B + 1] first point of each sample; [0] is 0, [B] is N
  ConstRows points;                         // [N] float32, the first three columns are x, y, z
  const uint8_t* is_valid = nullptr;        // [N], 0 if the caller declares a point invalid; may be null
  const int64_t* selected_begin = nullptr;  // [B + 1] first selected point of each sample; [0] is 0
  // [B] the start of each sample, an index within it. Null: 0. If that point is invalid, the next valid point is the
  // start; the first point follows the last one.
  const int64_t* starts = nullptr;

  // Output. If a sample has fewer valid points than are to be selected, or its start is not one of its points, all its
  // places get kNothingSelected. Callers that cannot exclude this look at num_valid.
  int64_t* num_valid = nullptr;  // [B]
  int32_t* selected = nullptr;   // [selected_begin[B]] indices within the sample, in the order of selection
  float* distances = nullptr;    // the same shape: the distance of each at its selection, m^2, +infinity for the start;
                                 // -1 beside kNothingSelected; may be null

  void* workspace = nullptr;  // the device's FarthestPointSampleWorkspaceBytes(*this), 256-byte aligned, contents free
};
static_assert(std::is_trivially_copyable_v<FarthestPointSampleParams>);

// Returns a sample's start point for a seed, the same on every machine. The seed is mixed first, so that all of its
// bits matter also where num_points is a power of two. num_points > 0. (The finalizer of SplitMix64: G. L. Steele et
// al., OOPSLA 2014.)
constexpr int64_t FarthestPointStart(uint64_t seed, int64_t num_points) {
  uint64_t bits = seed + 0x9E3779B97F4A7C15u;
  bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9u;
  bits = (bits ^ bits >> 27) * 0x94D049BB133111EBu;
  bits ^= bits >> 31;
  return static_cast<int64_t>(bits % static_cast<uint64_t>(num_points));
}

namespace cpu {

// Reads only num_points and num_samples.
size_t FarthestPointSampleWorkspaceBytes(const FarthestPointSampleParams& params);

// All threads take part in the sort. After that one thread handles one sample, even if there is only one sample: each
// selection depends on the one before and takes only microseconds, less than threads would need to synchronise.
void FarthestPointSample(const FarthestPointSampleParams& params, ThreadPool& pool);

}  // namespace cpu

namespace cuda {

// Says how a sample is spread over the device. With zeros the launcher decides; only tests and benchmarks set other
// values. Results do not depend on it.
struct FarthestPointLayout {
  int32_t num_blocks = 0;  // blocks per sample: 1, or a cluster of 2, 4, 8 or 16 if the device supports it
  int32_t num_warps = 0;   // warps per block, at most kMaxFarthestPointWarps
};
inline constexpr int32_t kMaxFarthestPointWarps = 32;

// Finds the largest cluster that a sample can have on the current device with this build's code: 1, 2, 4, 8 or 16.
cudaError_t MaxFarthestPointBlocks(int32_t* num_blocks);

// Calls CUB, so it needs a device. Reads only num_points and num_samples.
size_t FarthestPointSampleWorkspaceBytes(const FarthestPointSampleParams& params);

// cudaErrorInvalidValue for a layout that this device does not support.
cudaError_t FarthestPointSample(const FarthestPointSampleParams& params, cudaStream_t stream,
                                const FarthestPointLayout& layout = {});

}  // namespace cuda
}  // namespace voxserve::kernels
