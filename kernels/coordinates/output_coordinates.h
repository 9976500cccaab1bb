#pragma once

// Computes the output sites of a strided or transposed convolution from its input sites: sorted, unique, separately for
// each sample.
//
//  kFloor       floor(c / stride) per axis (MinkowskiEngine; TorchSparse if kernel == stride).
//  kPadded      every o with c = stride * o + Delta(k) for an input c and a cell k, and 0 <= o < out_shape (spconv).
//  kExpand      as kFloor if stride is 1 or kernel_size on every axis. Otherwise every o with stride * o =
//               c - Delta(k) for an input c and a cell k, and lower <= stride * o <= upper (TorchSparse, MLSys 2022,
//               Algorithm 3).
//  kTransposed  every stride * c + Delta(k) for an input c and a cell k, within 0 and out_shape (spconv's
//               SparseConvTranspose).
//  kGenerative  every stride * c + Delta(k), without bounds (MinkowskiEngine's generative transposed convolution).
//
// Each level counts in its own units: outputs are o, not stride * o.
//
// Keys are CoordinateKeys on the CPU and MortonKeys on the GPU: the same sites in different orders.

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>

#include "kernels/coordinates/conv_geometry.h"
#include "kernels/core/cuda_stream.h"
#include "kernels/core/thread_pool.h"

namespace voxserve::kernels {

struct OutputCoordinatesParams {
  CoordinateRule rule = CoordinateRule::kFloor;
  ConvGeometry geometry;          // |Delta| <= kCoordinateMargin; a box under kPadded and kExpand
  Axes out_shape = {0, 0, 0, 0};  // kPadded: OutputShape(geometry, shape); kTransposed: TransposedShape
  bool has_lower = false;         // kExpand: if false, the sample's smallest input coordinate per axis is the bound
  bool has_upper = false;         // kExpand: if false, there is no upper bound
  Axes lower = {0, 0, 0, 0};      // in units of the input's sites
  Axes upper = {0, 0, 0, 0};

  int32_t num_samples = 0;            // B
  const uint64_t* in_keys = nullptr;  // [num_in] ascending, unique
  int64_t num_in = 0;
  // cuda only: the number of in_keys, in device memory; num_in is then the capacity of in_keys. Null: num_in is the
  // number of in_keys.
  const int64_t* device_num_in = nullptr;

  // A limit on the number of outputs that the caller knows (OutputReach), for use where it is lower than the limit that
  // follows from the rule. There must not be more outputs, since no more memory is reserved.
  int64_t most_outputs = std::numeric_limits<int64_t>::max();

  // Output.
  int64_t out_capacity = 0;      // OutputCoordinatesCapacity(*this) or more
  uint64_t* out_keys = nullptr;  // [num_out of out_capacity]
  int64_t* num_out = nullptr;    // [1]
  // [B] the number of outputs of a sample whose coordinates are outside CoordinateKey's limits. An output counts once
  // for every pair of an input and a kernel cell that produces it. Such outputs are not made; if a sample has any, the
  // caller must refuse the cloud. The number is always 0 under kFloor, and under kPadded and kTransposed if out_shape
  // is within the limits.
  int64_t* num_beyond_limits = nullptr;
  // cuda only, and only if CanBeChained({this, 1}); may be null. Receives, for each output, the input row of its first
  // input. The output's inputs are this row and the following ones, up to the first input of the next output.
  int32_t* first_in_rows = nullptr;  // [out_capacity]

  void* workspace = nullptr;  // OutputCoordinatesWorkspaceBytes(*this) in device memory, 16-byte aligned, any contents
};
static_assert(std::is_trivially_copyable_v<OutputCoordinatesParams>);

// Returns (shape + 2 * padding - dilation * (kernel_size - 1) - 1) / stride + 1 per axis, 0 if nothing fits.
Axes OutputShape(const ConvGeometry& geometry, const Axes& shape);

// Returns (shape - 1) * stride - 2 * padding + dilation * (kernel_size - 1) + 1 + output_padding per axis, as PyTorch
// does, in 64 bits. The caller refuses results outside 1 to the key's limit.
std::array<int64_t, kMaxDimension> TransposedShape(const ConvGeometry& geometry, const Axes& shape,
                                                   const Axes& output_padding);

// Returns true if every input c has exactly one output, floor(c / stride): under kFloor, and under kExpand where it
// equals kFloor.
bool OutputsAreQuotients(const OutputCoordinatesParams& params);

// Returns the largest number of kernel cells of one axis through which outputs reach the same input. These are every
// stride / gcd(stride, dilation)-th cell.
int64_t CandidatesAnAxis(const ConvGeometry& geometry, int axis);

// Returns the largest number of pairs of an input and a kernel cell that produce an output. Outputs that several pairs
// produce are counted several times. It is num_in times the product of CandidatesAnAxis over all axes; under
// kTransposed and kGenerative it is num_in times all cells. Depends only on rule, geometry and num_in. The caller must
// check that it is below 2^31 before the caller allocates memory.
int64_t NumOutputCandidates(const OutputCoordinatesParams& params);

// Returns the largest number of outputs that num_in inputs can have: the candidates, limited by the volume under
// kPadded and kTransposed, and by most_outputs. Depends only on rule, geometry, out_shape, num_samples, num_in and
// most_outputs.
int64_t OutputCoordinatesCapacity(const OutputCoordinatesParams& params);

// Bounds how many sites of a level one site of another level can ask for, through all strided levels between them. The
// kernels' extents overlap from level to level, so this is far less than the product of each level's maximum. On one
// axis the sites that reach an input are stride * site + Delta, with the combined Deltas of all levels in [0, extent):
// at most ceil(extent / stride) sites.
class OutputReach {
 public:
  // Adds one more level, by a rule that makes coarser sites or equally many.
  OutputReach Then(const OutputCoordinatesParams& rule) const;
  int64_t OutputsAnInput() const;

 private:
  std::array<int64_t, kMaxDimension> extent_ = {1, 1, 1, 1};
  std::array<int64_t, kMaxDimension> stride_ = {1, 1, 1, 1};
  bool is_far_ = false;  // beyond all coordinates: there is no bound
};

size_t OutputCoordinatesWorkspaceBytes(const OutputCoordinatesParams& params);

namespace cpu {

void OutputCoordinates(const OutputCoordinatesParams& params, ThreadPool& pool);

}  // namespace cpu

namespace cuda {

// If candidates are sorted, this asks CUB and so needs a device. Otherwise the result depends only on rule, geometry,
// out_shape, bounds, num_samples and num_in.
size_t OutputCoordinatesWorkspaceBytes(const OutputCoordinatesParams& params);

// Makes the output sites. Returns cudaErrorInvalidValue if out_capacity is below OutputCoordinatesCapacity.
//
// It sorts only if it must:
// - If the rule keeps Morton order (CanBeChained of one level), outputs are the first of each run of equal keys.
// - If outputs are within a shape with few enough cells for one bit each (kPadded, kTransposed), every candidate sets
//   its cell's bit, and the set bits are read in Morton order (kernels/coordinates/output_bitmap.cuh).
// - Otherwise candidates are sorted. This includes kExpand: without an upper bound, only the device knows how far the
//   sites of a level reach, once the levels before it are made. A bitmap would need its memory earlier, when the host
//   adds the level.
cudaError_t OutputCoordinates(const OutputCoordinatesParams& params, cudaStream_t stream);

// Returns true if these levels of a U-Net can be made in two launches: each level's in_keys are the out_keys of the
// level before, all keep Morton order, there are few of them, and their combined stride fits a coordinate. Only the
// first level's workspace is used: OutputCoordinatesChainWorkspaceBytes.
bool CanBeChained(std::span<const OutputCoordinatesParams> chain);
size_t OutputCoordinatesChainWorkspaceBytes(std::span<const OutputCoordinatesParams> chain);
// Makes the output sites of all levels. Returns cudaErrorInvalidValue unless CanBeChained is true, all levels have the
// same dimension and number of samples, each num_in is the out_capacity of the level before, and every out_capacity is
// at least the first num_in.
cudaError_t OutputCoordinatesChain(std::span<const OutputCoordinatesParams> chain, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
