#pragma once

// A row of a table for each row, by a number that stands in one channel of the input. On a GPU that computes in 16 bits
// the table has no more rows than numbers are exact there.

#include <cstdint>
#include <utility>

#include "engine/ops/step.h"

namespace voxserve {

// The most rows of a table whose numbers, and the next, are exact in a type.
constexpr int64_t MaxEmbeddings(DType dtype) {
  if (dtype == DType::kFloat16) return int64_t{1} << 11;
  if (dtype == DType::kBfloat16) return int64_t{1} << 8;
  return int64_t{1} << 24;
}

class EmbeddingStep final : public Step {
 public:
  struct Options {
    BufferSlice index;  // one channel
    BufferSlice out;    // on its level; does not overlap with it
    Weights table;      // [num_embeddings, out channels]
    int64_t num_embeddings = 0;
    DType index_dtype = DType::kFloat32;
    DType out_dtype = DType::kFloat32;  // index_dtype, or float32
  };

  explicit EmbeddingStep(Options options) : options_(std::move(options)) {}

  absl::Status Run(const StepContext& context) const override;
  // INVALID_ARGUMENT (BAD_MODEL) where the table has rows whose numbers the index's type does not hold.
  absl::Status Upload(WeightUploader& uploader) override;

 private:
  Options options_;
};

}  // namespace voxserve
