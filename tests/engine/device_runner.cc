#include "tests/engine/device_runner.h"

#include <utility>

#include "engine/base/status_macros.h"
#include "engine/ops/image/conv2d.h"
#include "engine/ops/rows/linear.h"
#include "kernels/conv/implicit_gemm/int8_implicit_gemm.h"
#include "kernels/image/int8/int8_im2col.h"
#include "kernels/rows/mlp/mlp.h"

namespace voxserve {

ConvPlan DefaultPlanOf(support::Device device, ModelConfig::Precision precision) {
  if (device == support::Device::kCpu) return {};
  return DefaultCudaConvPlan(ModelConfig{.precision = precision}.gpu_dtype(),
                             /*allow_tf32=*/precision == ModelConfig::Precision::kTfloat32);
}

bool MultipliesInInt8(support::Device device) {
  if (device == support::Device::kCpu) return true;
  if constexpr (kernels::kHasCuda) return !kernels::cuda::Int8ImplicitGemmBlocks(/*out_channels=*/32).empty();
  return false;
}

absl::StatusOr<std::unique_ptr<DeviceRunner>> DeviceRunner::Create(const Options& options) {
  auto runner = std::unique_ptr<DeviceRunner>(new DeviceRunner(options.num_threads));
  const char* const wanted = options.device == support::Device::kCpu ? "cpu" : "cuda:0";
  ASSIGN_OR_RETURN(std::vector<Device> devices,
                   OpenDevices(wanted, options.device_memory_limit, options.memory_budget));
  runner->device_ = std::move(devices.front());
  ASSIGN_OR_RETURN(ExecutionContext context, MakeContext(runner->device_, &runner->pool_));
  runner->context_.emplace(std::move(context));
  runner->executor_ = Executor::Create(&*runner->context_);
  return runner;
}

absl::StatusOr<Program> DeviceRunner::Compile(const Graph& graph, const Variant& variant, int bytes_per_label) const {
  const Plan plan{.fallback = variant.plan};
  if (!device_.is_cuda())
    return voxserve::Compile(graph, plan,
                             {.bytes_per_label = bytes_per_label,
                              .merges_products = variant.merges_products,
                              .is_int8 = variant.precision == ModelConfig::Precision::kInt8,
                              .float_nodes = variant.float_nodes});
  const ModelConfig config{.precision = variant.precision};
  bool fuses_mlps = false, has_int8_images = false;
  if constexpr (kernels::kHasCuda) {
    fuses_mlps = variant.fuses_mlps && kernels::cuda::SupportsMlp(config.gpu_dtype());
    has_int8_images = kernels::cuda::SupportsInt8Im2col();
  }
  Program program = voxserve::Compile(
      graph, plan,
      {.bytes_per_label = bytes_per_label,
       .on_cuda = true,
       .dtype = config.gpu_dtype(),
       .is_deterministic = variant.is_deterministic,
       .merges_products = variant.merges_products,
       .fuses_mlps = fuses_mlps,
       .rotates_products = variant.rotates_products && LinearStep::CanRotate(config.gpu_dtype()),
       .leaves_out_boxes = variant.leaves_out_boxes && Conv2dStep::CanLeaveOutBoxes(config.gpu_dtype()),
       .is_int8 = variant.precision == ModelConfig::Precision::kInt8,
       .float_nodes = variant.float_nodes,
       .has_int8_images = has_int8_images,
       .allow_tf32 = variant.precision == ModelConfig::Precision::kTfloat32});
  WeightUploader uploader(device_.pool.get(), device_.loading->view());
  RETURN_IF_ERROR(program.Upload(uploader));
  return program;
}

BatchReport DeviceRunner::Run(const Program& program, const std::vector<const PointCloud*>& clouds, bool return_scores,
                              const RunLimits& limits, const RunOptions& options) {
  std::vector<InferTask> tasks;
  for (const PointCloud* cloud : clouds) tasks.push_back({.cloud = *cloud, .return_scores = return_scores});
  return Run(program, tasks, limits, options);
}

BatchReport DeviceRunner::Run(const Program& program, const std::vector<InferTask>& tasks, const RunLimits& limits,
                              const RunOptions& options) {
  std::vector<const InferTask*> batch;
  for (const InferTask& task : tasks) batch.push_back(&task);
  return executor_->Run(program, batch, limits, options);
}

}  // namespace voxserve
