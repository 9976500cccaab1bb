#include "engine/serving/models/device_program.h"

#include <fstream>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error_reason.h"
#include "engine/base/quoted.h"
#include "engine/base/status_macros.h"
#include "engine/compiler/compiler.h"
#include "engine/compiler/int8_values.h"
#include "engine/ops/image/conv2d.h"
#include "engine/ops/rows/linear.h"
#include "engine/runtime/cuda_devices.h"
#include "engine/tuner/plan_file.h"
#include "kernels/conv/fetch_on_demand.h"
#include "kernels/conv/implicit_gemm/int8_implicit_gemm.h"
#include "kernels/image/int8/int8_im2col.h"
#include "kernels/rows/mlp/mlp.h"

namespace voxserve {
namespace {

bool AllowsTf32(const ModelConfig& config) { return config.precision == ModelConfig::Precision::kTfloat32; }

std::string PrecisionName(ModelConfig::Precision precision) {
  switch (precision) {
    case ModelConfig::Precision::kFloat16:
      return "float16";
    case ModelConfig::Precision::kTfloat32:
      return "tf32";
    case ModelConfig::Precision::kBfloat16:
      return "bfloat16";
    case ModelConfig::Precision::kInt8:
      return "int8";
    case ModelConfig::Precision::kFloat32:
      break;
  }
  return "float32";
}

// Returns a name such as "AMD EPYC 7763 64-Core Processor"; "CPU" if /proc/cpuinfo has none.
std::string CpuModelName() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    constexpr std::string_view kName = "model name";
    if (line.compare(0, kName.size(), kName) != 0) continue;
    const size_t value = line.find_first_not_of(" \t", line.find(':') + 1);
    if (value != std::string::npos) return line.substr(value);
  }
  return "CPU";
}

}  // namespace

absl::Status CheckInt8Device(const Graph& graph, const ModelConfig& config, const Device& gpu,
                             bool multiplies_in_int8) {
  if (config.precision != ModelConfig::Precision::kInt8 || multiplies_in_int8) return absl::OkStatus();
  return WithReason(
      absl::InvalidArgumentError(absl::StrCat(
          "model ", Quoted(graph.name), ": PRECISION_INT8 needs a GPU of compute capability 8.0 or ",
          "higher, or a CPU, and ", gpu.id, " (", gpu.name, ") has compute capability ", gpu.compute_capability,
          "; set precision to PRECISION_FLOAT16 in ", config.file, ", or serve on the CPU")),
      error_reason::kBadModel);
}

absl::StatusOr<Program> MakeProgram(const Graph& graph, const ModelConfig& config, const Device& device,
                                    bool is_deterministic, const std::stop_token& stop) {
  const Plan plan{.fallback = DefaultConvPlan(MakePlanKey(graph, config, device, ""))};
  const bool is_int8 = config.precision == ModelConfig::Precision::kInt8;
  if (is_int8) RETURN_IF_ERROR(CheckInt8(graph, config.float_nodes, config.file));
  if (!device.is_cuda()) {
    Program program = Compile(graph, plan,
                              {.bytes_per_label = config.bytes_per_label(),
                               .is_int8 = is_int8,
                               .float_nodes = config.float_nodes,
                               .stop = stop});
    if (stop.stop_requested()) return DrainingError();
    RETURN_IF_ERROR(program.Check());
    return program;
  }
  bool fuses_mlps = false, has_int8_images = false;
  if constexpr (kernels::kHasCuda) {
    RETURN_IF_ERROR(device.pool->MakeCurrent());  // since the compiler asks CUDA for the device's properties
    RETURN_IF_ERROR(
        CheckInt8Device(graph, config, device, !kernels::cuda::Int8ImplicitGemmBlocks(/*out_channels=*/32).empty()));
    fuses_mlps = kernels::cuda::SupportsMlp(config.gpu_dtype());
    has_int8_images = kernels::cuda::SupportsInt8Im2col();
  }
  Program program = Compile(graph, plan,
                            {.bytes_per_label = config.bytes_per_label(),
                             .on_cuda = true,
                             .dtype = config.gpu_dtype(),
                             .is_deterministic = is_deterministic,
                             .merges_products = true,
                             .fuses_mlps = fuses_mlps,
                             .rotates_products = LinearStep::CanRotate(config.gpu_dtype()),
                             .leaves_out_boxes = Conv2dStep::CanLeaveOutBoxes(config.gpu_dtype()),
                             .is_int8 = is_int8,
                             .float_nodes = config.float_nodes,
                             .has_int8_images = has_int8_images,
                             .allow_tf32 = AllowsTf32(config),
                             .stop = stop});
  if (stop.stop_requested()) return DrainingError();
  WeightUploader uploader(device.pool.get(), device.loading->view());
  RETURN_IF_ERROR(program.Upload(uploader));
  return program;
}

PlanKey MakePlanKey(const Graph& graph, const ModelConfig& config, const Device& device,
                    const std::string& engine_version) {
  PlanKey key{.model_digest = graph.digest, .engine_version = engine_version};
  if (device.is_cuda()) {
    key.device = device.name;
    key.compute_capability = device.compute_capability;
    key.cuda_version = CudaVersion();
    key.dtype = PrecisionName(config.precision);
  } else {
    key.device = CpuModelName();
    key.compute_capability = kernels::cpu::VectorInstructionSet();
    const bool is_int8 = config.precision == ModelConfig::Precision::kInt8;
    key.dtype = PrecisionName(is_int8 ? config.precision : ModelConfig::Precision::kFloat32);
  }
  return key;
}

}  // namespace voxserve
