#include "engine/ops/conv/implicit_gemm.h"

#include <utility>

#include "engine/base/status_macros.h"
#include "engine/runtime/cuda_status.h"
#include "kernels/conv/implicit_gemm/implicit_gemm.h"
#include "kernels/conv/implicit_gemm/int8_implicit_gemm.h"
#include "kernels/conv/implicit_gemm/normed_implicit_gemm.h"

namespace voxserve {
namespace {

// Returns the blocks in 8 bits; none where the GPU cannot multiply in 8 bits, whose programs are not made.
std::vector<kernels::ConvBlock> Int8Blocks([[maybe_unused]] int32_t out_channels) {
  if constexpr (kernels::kHasCuda) return kernels::cuda::Int8ImplicitGemmBlocks(out_channels);
  return {};
}

}  // namespace

std::optional<ServedDataflow> ImplicitGemmDataflow::Serves(const ProgramConv& conv) const {
  if (!conv.is_on_cuda || (conv.dtype == DType::kFloat32 && !conv.allow_tf32)) return std::nullopt;
  if (conv.dtype == DType::kInt8) return ServedDataflow{.dataflow = id(), .blocks = Int8Blocks(conv.out_channels)};
  if constexpr (kernels::kHasCuda) {
    std::vector<kernels::ConvBlock> blocks = kernels::cuda::ImplicitGemmBlocks(conv.dtype, conv.out_channels);
    if (!blocks.empty()) return ServedDataflow{.dataflow = id(), .blocks = std::move(blocks)};
  }
  return std::nullopt;
}

RulebookForms ImplicitGemmDataflow::Forms(bool is_swapped) const {
  return {.tiles = !is_swapped, .swapped_tiles = is_swapped};
}

std::vector<ConvPlan> ImplicitGemmDataflow::Candidates(const ServedDataflow& served, const ConvPlan& base,
                                                       const kernels::MatmulGroupingParams&) const {
  std::vector<ConvPlan> candidates = {base};
  candidates.back().block = {};
  for (const kernels::ConvBlock& block : *served.blocks) {
    candidates.push_back(base);
    candidates.back().block = block;
  }
  return candidates;
}

std::vector<float> ImplicitGemmDataflow::PackWeights(const ProgramConv& conv, const std::vector<float>& weights) const {
  return kernels::PackImplicitGemmWeights(conv.num_offsets, conv.in_channels, conv.out_channels, conv.dtype,
                                          weights.data());
}

namespace {

// Inline, so that an unoptimised build without CUDA, which never calls it, leaves it and its references out.
inline kernels::ImplicitGemmParams ParamsOf(const ConvRun& run) {
  return {.tiles = run.context.device_geometry->tiles(run.conv.rulebook),
          .operands = run.operands,
          .block = run.plan.block,
          .workspace = run.context.scratch};
}

}  // namespace

size_t ImplicitGemmDataflow::WorkspaceBytes(const ConvRun& run) const {
  if constexpr (kernels::kHasCuda) return kernels::cuda::ImplicitGemmWorkspaceBytes(ParamsOf(run));
  return 0;
}

bool ImplicitGemmDataflow::AddsShortcut(const ConvRun& run) const {
  if constexpr (kernels::kHasCuda) return kernels::cuda::ImplicitGemmAddsShortcut(ParamsOf(run));
  return false;
}

bool ImplicitGemmDataflow::Norms(const ConvRun& run) const {
  if constexpr (kernels::kHasCuda) return kernels::cuda::ImplicitGemmNorms(ParamsOf(run), *run.norm);
  return false;
}

absl::Status ImplicitGemmDataflow::Launch(const ConvRun& run) const {
  if constexpr (kernels::kHasCuda) {
    RETURN_IF_CUDA_ERROR(run.norm ? kernels::cuda::NormedImplicitGemm(ParamsOf(run), *run.norm, run.context.stream())
                                  : kernels::cuda::ImplicitGemm(ParamsOf(run), run.context.stream()));
    return absl::OkStatus();
  }
  return absl::InternalError("the implicit GEMM runs on a GPU alone");
}

}  // namespace voxserve
