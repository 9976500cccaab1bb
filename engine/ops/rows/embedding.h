#pragma once

// EmbeddingStep looks up a row of a table for each row of the input: out[r] = table[index[r]]. The index is a number in
// one channel of the input (kernels/rows/embedding.h). Only on a GPU may that channel have a 16-bit type; the table
// then has few rows (MaxEmbeddings), so that every index is exact.

#include <cstdint>
#include <utility>

#include "engine/ops/step.h"

namespace voxserve {

// Returns the most rows of a table whose index has this type. All whole numbers from 0 to the returned number are exact
// in the type, so an index just after the table is not rounded to a valid one.
constexpr int64_t MaxEmbeddings(DType dtype) {
  if (dtype == DType::kFloat16) return int64_t{1} << 11;
  if (dtype == DType::kBfloat16) return int64_t{1} << 8;
  return int64_t{1} << 24;
}

class EmbeddingStep final : public Step {
 public:
  struct Options {
    BufferSlice index;  // one channel
    BufferSlice out;    // on the index's level; does not overlap with it
    Weights table;      // [num_embeddings, out channels]
    int64_t num_embeddings = 0;
    DType index_dtype = DType::kFloat32;
    DType out_dtype = DType::kFloat32;  // index_dtype, or float32
  };

  explicit EmbeddingStep(Options options) : options_(std::move(options)) {}

  absl::Status Run(const StepContext& context) const override;
  // Returns INVALID_ARGUMENT (BAD_MODEL) if the table has more rows than MaxEmbeddings(index_dtype).
  absl::Status Upload(WeightUploader& uploader) override;

 private:
  Options options_;
};

}  // namespace voxserve
