#include "kernels/conv/implicit_gemm/implicit_gemm.h"

#include "kernels/conv/implicit_gemm/slices.h"

namespace voxserve::kernels {

std::vector<float> PackImplicitGemmWeights(int32_t num_offsets, int32_t in_channels, int32_t out_channels, DType dtype,
                                           const float* weights) {
  const SliceAxis axis(num_offsets, in_channels, dtype);
  const int32_t padded_out = PaddedOutChannels(out_channels);
  const int32_t vector_values = kSliceVectorBytes / SizeOf(dtype);
  std::vector<float> packed(static_cast<size_t>(axis.num_slices) * static_cast<size_t>(padded_out) *
                            static_cast<size_t>(axis.slice_values));
  for (int32_t k = 0; k < num_offsets; ++k) {
    for (int32_t channel = 0; channel < in_channels; ++channel) {
      const int64_t slice = axis.SliceOf(k, channel);
      const int32_t value = axis.PlaceInSlice(k, channel);
      const float* const row = weights + (int64_t{k} * in_channels + channel) * out_channels;
      for (int32_t column = 0; column < out_channels; ++column) {
        const int64_t place =
            SwizzledSliceVector(PackedColumn(column), value / vector_values) * vector_values + value % vector_values;
        packed[static_cast<size_t>(slice * padded_out * axis.slice_values + place)] = row[column];
      }
    }
  }
  return packed;
}

}  // namespace voxserve::kernels
