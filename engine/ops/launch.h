#pragma once

// LAUNCH runs a kernel on the device of the current batch: kernels::cuda::KERNEL on the context's stream, or
// kernels::cpu::KERNEL on the threads of the context's pool. Both take the same params.
//
// - Errors: those of CudaStatus (runtime/cuda_status.h), whose message names the kernel and its params; hence a macro.
//   Kernels of the CPU give no errors.
// - A step whose kernels take different params on the devices, or return an error on the CPU, picks the device itself.

#include <type_traits>

#include "absl/status/status.h"
#include "engine/ops/step.h"
#include "engine/runtime/cuda_status.h"
#include "kernels/core/cuda_stream.h"

namespace voxserve {

// The function behind LAUNCH. The kernels are template arguments, so that a build without CUDA, which does not define
// kOnCuda, makes no reference to it.
template <auto kOnCuda, auto kOnCpu, typename Params>
absl::Status LaunchEither(const StepContext& context, const Params& params, const char* expression) {
  if constexpr (kernels::kHasCuda) {
    if (context.cuda() != nullptr) return CudaStatus(kOnCuda(params, context.stream()), expression);
  }
  ExecutionContext& execution = *context.execution;
  if constexpr (std::is_invocable_v<decltype(kOnCpu), Params>) {
    kOnCpu(params);
  } else if constexpr (std::is_invocable_v<decltype(kOnCpu), Params, decltype(*execution.pool)>) {
    kOnCpu(params, *execution.pool);
  } else {
    kOnCpu(params, *execution.pool, execution.memory.get());
  }
  return absl::OkStatus();
}

}  // namespace voxserve

#define LAUNCH(context, params, KERNEL)                                  \
  ::voxserve::LaunchEither<kernels::cuda::KERNEL, kernels::cpu::KERNEL>( \
      context, params, "kernels::cuda::" #KERNEL "(" #params ", context.stream())")
