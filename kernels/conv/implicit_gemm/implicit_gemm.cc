#include "kernels/conv/implicit_gemm/implicit_gemm.h"

#include "kernels/conv/implicit_gemm/int8_implicit_gemm.h"
#include "kernels/conv/implicit_gemm/slices.h"

namespace voxserve::kernels {
namespace {

// Value: the type of the weights here, on the host; dtype: the type in which they are stored.
template <typename Value>
std::vector<Value> Pack(int32_t num_offsets, int32_t in_channels, int32_t out_channels, DType dtype,
                        const Value* weights) {
  const SliceAxis axis(num_offsets, in_channels, dtype);
  const int32_t padded_out = PaddedOutChannels(out_channels);
  const int32_t vector_values = kSliceVectorBytes / static_cast<int32_t>(SizeOf(dtype));
  const auto place_of = SizeOf(dtype) == 1 ? &SwizzledInt8SliceVector : &SwizzledSliceVector;
  std::vector<Value> packed(static_cast<size_t>(axis.num_slices) * static_cast<size_t>(padded_out) *
                            static_cast<size_t>(axis.slice_values));
  for (int32_t k = 0; k < num_offsets; ++k) {
    for (int32_t channel = 0; channel < in_channels; ++channel) {
      const int64_t slice = axis.SliceOf(k, channel);
      const int32_t value = axis.PlaceInSlice(k, channel);
      const Value* const row = weights + (int64_t{k} * in_channels + channel) * out_channels;
      for (int32_t column = 0; column < out_channels; ++column) {
        const int64_t place =
            int64_t{place_of(PackedColumn(column), value / vector_values)} * vector_values + value % vector_values;
        packed[static_cast<size_t>(slice * padded_out * axis.slice_values + place)] = row[column];
      }
    }
  }
  return packed;
}

}  // namespace

std::vector<float> PackImplicitGemmWeights(int32_t num_offsets, int32_t in_channels, int32_t out_channels, DType dtype,
                                           const float* weights) {
  return Pack(num_offsets, in_channels, out_channels, dtype, weights);
}

std::vector<int8_t> PackInt8ImplicitGemmWeights(int32_t num_offsets, int32_t in_channels, int32_t out_channels,
                                                const int8_t* weights) {
  return Pack(num_offsets, in_channels, out_channels, DType::kInt8, weights);
}

}  // namespace voxserve::kernels
