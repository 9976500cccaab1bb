#pragma once

// OutputCoordinates computes the output sites of a strided or transposed convolution from its input sites. The result
// is a sorted list of unique keys. A site's outputs are always in the same sample as the site. The rule
// (CoordinateRule) says which sites o are outputs, where c is an input and k is a cell of the kernel:
//
//  kFloor       floor(c / stride) per axis (MinkowskiEngine; TorchSparse if kernel == stride).
//  kPadded      every o with c = stride * o + Delta(k) for an input c and a cell k, and 0 <= o < out_shape (spconv).
//  kExpand      the same as kFloor if stride is 1 or kernel_size on every axis. Otherwise every o with stride * o =
//               c - Delta(k) for an input c and a cell k, and lower <= stride * o <= upper (TorchSparse, MLSys 2022,
//               Algorithm 3).
//  kTransposed  every stride * c + Delta(k) for an input c and a cell k, in [0, out_shape) (spconv's
//               SparseConvTranspose).
//  kGenerative  every stride * c + Delta(k), without bounds (MinkowskiEngine's generative transposed convolution).
//
// A level is the list of the sites of all samples of a batch at one place of the network. Each level counts coordinates
// in its own unit: an output's coordinate is o, not stride * o.
//
// Keys are CoordinateKeys on the CPU and MortonKeys on the GPU. So both devices have the same sites, in different
// orders.

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
  bool has_lower = false;         // kExpand: if false, `lower` is the sample's smallest input coordinate per axis
  bool has_upper = false;         // kExpand: if false, there is no upper bound
  Axes lower = {0, 0, 0, 0};      // in units of the input's sites
  Axes upper = {0, 0, 0, 0};
  // CUDA only: the caller expects all input coordinates of an axis in [0, in_extent); 0: not known. If some are
  // elsewhere, outputs outside OutputExtent's box are left out and not counted, unless CanBeChained({this, 1}).
  Axes in_extent = {0, 0, 0, 0};

  int32_t num_samples = 0;            // B
  const uint64_t* in_keys = nullptr;  // [num_in] ascending, unique
  int64_t num_in = 0;
  // CUDA only: the number of in_keys, in device memory; num_in is then the capacity of in_keys. Null: num_in is the
  // number of in_keys.
  const int64_t* device_num_in = nullptr;

  // A limit on the number of outputs that the caller knows, for example from OutputReach. OutputCoordinatesCapacity
  // uses it if it is lower than the limit that follows from the rule. There must not be more outputs: kernels do not
  // check, and no memory is reserved for more.
  int64_t most_outputs = std::numeric_limits<int64_t>::max();

  // Output.
  int64_t out_capacity = 0;      // at least OutputCoordinatesCapacity(*this); on CUDA at least num_in too, if
                                 // CanBeChained({this, 1})
  uint64_t* out_keys = nullptr;  // [out_capacity]; the first num_out are written
  int64_t* num_out = nullptr;    // [1]
  // [B] the number of outputs of each sample that are not made because their coordinates are outside CoordinateKey's
  // limits. Such an output counts once for every pair of an input and a kernel cell that produces it. If the number is
  // not 0, the caller must refuse the sample's cloud. The number is always 0 under kFloor, and under kPadded and
  // kTransposed if out_shape is within the limits.
  int64_t* num_beyond_limits = nullptr;
  // CUDA only, and only if CanBeChained({this, 1}); may be null. Entry o is the row of the first input of output o. The
  // inputs of output o are the rows from first_in_rows[o] to first_in_rows[o + 1] - 1 (for the last output, to the last
  // row).
  int32_t* first_in_rows = nullptr;  // [out_capacity]

  // OutputCoordinatesWorkspaceBytes(*this) of the device's namespace, 16-byte aligned, with any contents. It lies in
  // host memory on the CPU and in device memory on CUDA.
  void* workspace = nullptr;
};
static_assert(std::is_trivially_copyable_v<OutputCoordinatesParams>);

// Returns (shape + 2 * padding - dilation * (kernel_size - 1) - 1) / stride + 1 per axis; 0 if the kernel is larger
// than the padded shape.
Axes OutputShape(const ConvGeometry& geometry, const Axes& shape);

// Returns (shape - 1) * stride - 2 * padding + dilation * (kernel_size - 1) + 1 + output_padding per axis, as PyTorch
// does, in 64 bits. The caller refuses results outside 1 to the key's limit.
std::array<int64_t, kMaxDimension> TransposedShape(const ConvGeometry& geometry, const Axes& shape,
                                                   const Axes& output_padding);

// Returns true if every input c has exactly one output, floor(c / stride). This is so under kFloor, and under kExpand
// if the stride is 1 or kernel_size on every axis.
bool OutputsAreQuotients(const OutputCoordinatesParams& params);

// Returns the largest number of kernel cells of one axis through which outputs reach the same input. If a cell reaches
// the input, so do the cells that are a multiple of stride / gcd(stride, dilation) away, and no others.
int64_t CandidatesAnAxis(const ConvGeometry& geometry, int axis);

// Returns the largest number of pairs of an input and a kernel cell that produce an output. Outputs that several pairs
// produce are counted several times. The result is num_in if OutputsAreQuotients, num_in times the kernel's cells under
// kTransposed and kGenerative, and else num_in times the product of CandidatesAnAxis over all axes. It depends only on
// rule, geometry and num_in. The caller must check that it is below 2^31 before the caller allocates memory.
int64_t NumOutputCandidates(const OutputCoordinatesParams& params);

// Returns the largest number of outputs that num_in inputs can have: NumOutputCandidates, limited by most_outputs and,
// under kPadded and kTransposed, by the number of cells of out_shape in all samples. Depends only on rule, geometry,
// out_shape, num_samples, num_in and most_outputs.
int64_t OutputCoordinatesCapacity(const OutputCoordinatesParams& params);

// Returns a box [0, extent) that contains all outputs if inputs are as in_extent says: out_shape if the rule has one,
// else what follows from in_extent and the rule's bounds. All extents are 0 under kGenerative, if an end is not known,
// if outputs may be below 0, or if the bounds allow none.
Axes OutputExtent(const OutputCoordinatesParams& params);

// OutputReach bounds the number of sites that one input site can produce through a chain of strided levels, each made
// from the level before. Callers use it for most_outputs. A chain's bound is far less than the product of its levels'
// bounds, since the outputs of neighbouring sites coincide.
//
// The bound: a chain acts like one convolution whose stride is the product of the strides. On one axis, output o reads
// inputs stride * o + Delta, with Delta in a range of `extent` values. So at most ceil(extent / stride) outputs read
// the same input.
class OutputReach {
 public:
  // Returns the reach with one more level at the end. `rule` makes that level; MakesFinerSites(rule.rule) is false.
  OutputReach Then(const OutputCoordinatesParams& rule) const;
  // Returns the bound; the largest int64 if there is none.
  int64_t OutputsAnInput() const;

 private:
  std::array<int64_t, kMaxDimension> extent_ = {1, 1, 1, 1};
  std::array<int64_t, kMaxDimension> stride_ = {1, 1, 1, 1};
  bool is_far_ = false;  // true if extent or stride is beyond all coordinates: there is no bound
};

// Returns the bytes of the CPU's workspace.
size_t OutputCoordinatesWorkspaceBytes(const OutputCoordinatesParams& params);

namespace cpu {

void OutputCoordinates(const OutputCoordinatesParams& params, ThreadPool& pool);

}  // namespace cpu

namespace cuda {

// Returns the bytes of the workspace in device memory. If OutputCoordinates sorts candidates (see there), this function
// asks CUB, so it needs a device. Otherwise the result depends only on rule, geometry, the rule's bounds, out_shape,
// in_extent, num_samples and num_in.
size_t OutputCoordinatesWorkspaceBytes(const OutputCoordinatesParams& params);

// Makes the output sites. Returns cudaErrorInvalidValue if out_capacity is too small.
//
// Candidates are the outputs of all pairs of an input and a cell. Several pairs can produce the same output; the
// function finds the unique ones in one of three ways:
// - If the rule keeps Morton order (CanBeChained of one level), the candidates are already sorted: the first of each
//   run of equal keys is an output.
// - If the host knows a box around the outputs (OutputExtent), and a bitmap of its cells is not too large, every
//   candidate sets its cell's bit, and the set bits are read in Morton order (kernels/coordinates/output_bitmap.cuh).
// - Otherwise candidates are sorted. This includes kGenerative, and kExpand where the host does not know how far the
//   sites reach.
cudaError_t OutputCoordinates(const OutputCoordinatesParams& params, cudaStream_t stream);

// Returns true if OutputCoordinatesChain can make these levels of a U-Net in two launches, where each level's in_keys
// are the out_keys of the level before:
// - each output is floor(c / stride), with the same power of two as stride on all axes, which keeps Morton order;
// - there are at most 8 levels;
// - the product of their strides is below 2^axis_bits of a coordinate.
bool CanBeChained(std::span<const OutputCoordinatesParams> chain);
// Returns the bytes of the first level's workspace. The workspaces of the other levels are not used.
size_t OutputCoordinatesChainWorkspaceBytes(std::span<const OutputCoordinatesParams> chain);
// Makes the output sites of all levels. Returns cudaErrorInvalidValue unless
// - CanBeChained is true;
// - all levels have the same dimension and number of samples;
// - each num_in is the out_capacity of the level before;
// - every out_capacity is at least the first level's num_in and the level's own OutputCoordinatesCapacity.
cudaError_t OutputCoordinatesChain(std::span<const OutputCoordinatesParams> chain, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
