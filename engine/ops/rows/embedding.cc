#include "engine/ops/rows/embedding.h"

#include "absl/strings/str_cat.h"
#include "engine/base/error_reason.h"
#include "engine/ops/launch.h"
#include "kernels/rows/embedding.h"

namespace voxserve {

absl::Status EmbeddingStep::Run(const StepContext& context) const {
  const kernels::EmbeddingParams params{.index = context.At(options_.index),
                                        .table = options_.table.data(),
                                        .num_embeddings = options_.num_embeddings,
                                        .out = context.At(options_.out)};
  return LAUNCH(context, params, Embedding);
}

absl::Status EmbeddingStep::Upload(WeightUploader& uploader) {
  const int64_t limit = MaxEmbeddings(options_.index_dtype);
  if (options_.num_embeddings > limit) {
    const bool fits_float16 = options_.num_embeddings <= MaxEmbeddings(DType::kFloat16);
    return WithReason(absl::InvalidArgumentError(
                          absl::StrCat("the embedding has ", options_.num_embeddings, " rows; numbers above ", limit,
                                       " are not exact in ", kernels::NameOf(options_.index_dtype),
                                       "; set the model's precision to FLOAT32", fits_float16 ? " or FLOAT16" : "")),
                      error_reason::kBadModel);
  }
  return uploader.Upload(options_.table, options_.out_dtype);
}

}  // namespace voxserve
