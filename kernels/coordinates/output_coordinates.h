#pragma once

// The output sites of a strided or transposed convolution, from its input sites: sorted, unique, each sample's own.
//
//   kFloor       floor(c / stride) per axis (MinkowskiEngine; TorchSparse where kernel == stride).
//   kPadded      every o with c = stride * o + Delta(k) for an input c and a cell k, and 0 <= o < out_shape (spconv).
//   kExpand      where stride is 1 or kernel_size on every axis: as kFloor. Else every o with stride * o = c - Delta(k)
//                for an input c and a cell k, and lower <= stride * o <= upper (TorchSparse, MLSys 2022, Algorithm 3).
//   kTransposed  every stride * c + Delta(k) of an input c and a cell k within 0 and out_shape (spconv's
//                SparseConvTranspose).
//   kGenerative  every stride * c + Delta(k), wherever it lies (MinkowskiEngine's generative transposed convolution).
//
// Levels count in their own units: outputs are o, not stride * o.
//
// Keys are CoordinateKeys on the CPU and MortonKeys on the GPU: the same sites in another order.

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
  bool has_lower = false;         // kExpand: else the smallest input coordinate of the sample, per axis
  bool has_upper = false;         // kExpand: else no upper bound
  Axes lower = {0, 0, 0, 0};      // in units of the input's sites
  Axes upper = {0, 0, 0, 0};

  int32_t num_samples = 0;            // B
  const uint64_t* in_keys = nullptr;  // [num_in] ascending, unique
  int64_t num_in = 0;
  // cuda: the number of in_keys, on the device; num_in is then their capacity. Null: num_in.
  const int64_t* device_num_in = nullptr;

  // The most outputs, where the caller knows of fewer than the rule alone can tell (OutputReach). A true bound: memory
  // is taken for no more.
  int64_t most_outputs = std::numeric_limits<int64_t>::max();

  // Output.
  int64_t out_capacity = 0;      // OutputCoordinatesCapacity(*this) or more
  uint64_t* out_keys = nullptr;  // [num_out of out_capacity]
  int64_t* num_out = nullptr;    // [1]
  // [B] above 0 where outputs of the sample would lie outside CoordinateKey's limits, each counted once for every pair
  // of input and cell that asks for it. Such outputs are not made, and the caller refuses the cloud. Always 0 under
  // kFloor, and under kPadded and kTransposed where out_shape is within the limits.
  int64_t* num_beyond_limits = nullptr;
  // cuda, CanBeChained({this, 1}) alone: null, or the row of each output's first input. Its inputs are the rows from
  // there to the next output's.
  int32_t* first_in_rows = nullptr;  // [out_capacity]

  void* workspace = nullptr;  // OutputCoordinatesWorkspaceBytes(*this) of the device, 16-byte aligned, contents free
};
static_assert(std::is_trivially_copyable_v<OutputCoordinatesParams>);

// (shape + 2 * padding - dilation * (kernel_size - 1) - 1) / stride + 1 per axis, 0 where nothing fits.
Axes OutputShape(const ConvGeometry& geometry, const Axes& shape);

// (shape - 1) * stride - 2 * padding + dilation * (kernel_size - 1) + 1 + output_padding per axis, as PyTorch has it,
// in 64 bits: the caller refuses what is not 1 to the key's limit.
std::array<int64_t, kMaxDimension> TransposedShape(const ConvGeometry& geometry, const Axes& shape,
                                                   const Axes& output_padding);

// True where an output is the quotient of its input and the stride, and every input has one: FLOOR, and EXPAND like it.
bool OutputsAreQuotients(const OutputCoordinatesParams& params);

// The most cells of an axis through which an output reaches one input: every stride / gcd(stride, dilation)-th.
int64_t CandidatesAnAxis(const ConvGeometry& geometry, int axis);

// The outputs that num_in inputs ask for at most, each counted once for every pair that asks for it: num_in times the
// cells that reach one residue, per axis, or under kTransposed and kGenerative times all cells. Of rule, geometry and
// num_in alone. Must stay below 2^31, which the caller checks before it allocates.
int64_t NumOutputCandidates(const OutputCoordinatesParams& params);

// The most outputs that num_in inputs can have: the candidates, clipped by the volume under kPadded and kTransposed,
// and by most_outputs. Of rule, geometry, out_shape, num_samples, num_in and most_outputs alone.
int64_t OutputCoordinatesCapacity(const OutputCoordinatesParams& params);

// How many sites of a level one site of another can have asked for, through all strided levels between them: from level
// to level the kernels' extents overlap, so that it is far less than the product of what each level can make. Those of
// one axis that reach an input are stride * site + Delta with the Deltas of all levels in [0, extent): at most
// ceil(extent / stride).
class OutputReach {
 public:
  // With one more level, of a rule that makes coarser sites or as many.
  OutputReach Then(const OutputCoordinatesParams& rule) const;
  int64_t OutputsAnInput() const;

 private:
  std::array<int64_t, kMaxDimension> extent_ = {1, 1, 1, 1};
  std::array<int64_t, kMaxDimension> stride_ = {1, 1, 1, 1};
  bool is_far_ = false;  // beyond all coordinates: no bound
};

size_t OutputCoordinatesWorkspaceBytes(const OutputCoordinatesParams& params);

namespace cpu {

void OutputCoordinates(const OutputCoordinatesParams& params, ThreadPool& pool);

}  // namespace cpu

namespace cuda {

// Asks CUB where candidates are sorted, and so needs a device. Else of rule, geometry, out_shape, bounds, num_samples
// and num_in alone.
size_t OutputCoordinatesWorkspaceBytes(const OutputCoordinatesParams& params);

// cudaErrorInvalidValue where out_capacity is below OutputCoordinatesCapacity.
//
// Only what must be sorted is. Where Morton order survives the rule (CanBeChained of one), outputs are the first ones
// of equal keys. Where they lie within a shape whose cells are few enough for a bit each (kPadded, kTransposed), every
// candidate sets its cell's bit, and the bits are read in Morton order (kernels/coordinates/output_bitmap.cuh). Else
// candidates are sorted. kExpand's are: by default it has no upper bound, so that how far the sites of a level reach is
// known on the device alone, once the levels before it are made, while the host takes a bitmap's memory when it adds
// the level.
cudaError_t OutputCoordinates(const OutputCoordinatesParams& params, cudaStream_t stream);

// The levels of a U-Net in two launches: each one's in_keys are the out_keys of the one before, all keep Morton order,
// they are not many, and all strides together stay within a coordinate. Of the workspaces only the first one's is used:
// OutputCoordinatesChainWorkspaceBytes.
bool CanBeChained(std::span<const OutputCoordinatesParams> chain);
size_t OutputCoordinatesChainWorkspaceBytes(std::span<const OutputCoordinatesParams> chain);
// cudaErrorInvalidValue unless it CanBeChained, all are of one dimension and of as many samples, a num_in is the
// out_capacity before it, and every out_capacity takes the first one's num_in.
cudaError_t OutputCoordinatesChain(std::span<const OutputCoordinatesParams> chain, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
