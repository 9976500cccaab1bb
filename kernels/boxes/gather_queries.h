#pragma once

// GatherQueries writes a row for each query of a selection (selection.h): the channels of an image at the query's cell,
// or what the selection itself says about the query.

#include <cstdint>
#include <type_traits>

#include "kernels/boxes/selection.h"
#include "kernels/core/cuda_stream.h"
#include "kernels/core/rows.h"

namespace voxserve::kernels {

enum class GatherOf : int32_t {
  kFeatures,  // the image's channels at the query's cell
  kClass,     // [1] kSelectedClass
  kScore,     // [1] kSelectedScore
  kPosition,  // [2] column + 0.5, row + 0.5
};

struct GatherQueriesParams {
  GatherOf of = GatherOf::kFeatures;
  int32_t k = 1;                     // queries of a sample
  const float* selection = nullptr;  // [out.capacity, kSelectionColumns]
  // Images, one row per cell; for kFeatures alone.
  ConstRows cells;
  int32_t num_rows = 0;  // of an image
  int32_t num_columns = 0;
  // [num_samples * k, channels], in the type of `cells` or float32; must not overlap it. The CPU only supports float32.
  Rows out;
};
static_assert(std::is_trivially_copyable_v<GatherQueriesParams>);

namespace cpu {

void GatherQueries(const GatherQueriesParams& params);

}  // namespace cpu

namespace cuda {

cudaError_t GatherQueries(const GatherQueriesParams& params, cudaStream_t stream);

}  // namespace cuda

// Returns the row of `cells` that a query reads. row: the query's in the selection.
constexpr int64_t CellRowOf(const GatherQueriesParams& params, int64_t row) {
  const float* const selected = params.selection + row * kSelectionColumns;
  return (row / params.k * params.num_rows + static_cast<int64_t>(selected[kSelectedRow])) * params.num_columns +
         static_cast<int64_t>(selected[kSelectedColumn]);
}

// Returns a value of kClass, kScore or kPosition. selected: the query's row in the selection.
constexpr float SelectedValue(GatherOf of, const float* selected, int32_t channel) {
  if (of == GatherOf::kClass) return selected[kSelectedClass];
  if (of == GatherOf::kScore) return selected[kSelectedScore];
  return selected[channel == 0 ? kSelectedColumn : kSelectedRow] + 0.5f;
}

}  // namespace voxserve::kernels
