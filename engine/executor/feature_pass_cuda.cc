#include <algorithm>
#include <utility>

#include "engine/base/status_macros.h"
#include "engine/compiler/buffer_placement.h"
#include "engine/executor/feature_pass.h"

namespace voxserve {

FeaturePass::FeaturePass(const Options& options)
    : options_(options),
      wanted_(WantedBy(*options.program, options.tasks)),
      buffer_data_(options.program->buffers.size()),
      outputs_(options.tasks, *options.point_begin, options.results, options.execution->memory.get()),
      context_{.execution = options.execution,
               .device_geometry = options.geometry,
               .groupings = &groupings_,
               .plans = options.plans,
               .num_sites = &options.geometry->num_sites(),
               .buffers = &options.program->buffers,
               .buffer_data = &buffer_data_,
               .points = options.points,
               .point_begin = options.point_begin,
               .device_point_begin = options.device_point_begin,
               .ignore_label = options.ignore_label,
               .cuda_outputs = &outputs_} {
  outputs_.SetTensors(options.program->tensors, TensorsByTask(*options.program, options.tasks),
                      options.program->dimension);
}

absl::Status FeaturePass::Begin() {
  const Program& program = *options_.program;
  CudaContext& cuda = *context_.cuda();
  RETURN_IF_ERROR(cuda.not_finite.Reserve(outputs_.NotFiniteBytes()));
  outputs_.SetNotFinite(cuda.not_finite.data());
  cuda.gemm->set_allow_tf32(program.allow_tf32);
  cuda.gemm->set_deterministic(program.is_deterministic);
  return absl::OkStatus();
}

absl::Status FeaturePass::LayOut(const ProgramSegment& segment) {
  const Program& program = *options_.program;
  DeviceGeometry& geometry = *options_.geometry;
  CudaContext& cuda = *context_.cuda();
  const BufferPlaces places =
      PlaceBuffers(program, segment, geometry.num_sites(), context_.num_samples(), context_.point_capacity());
  size_t scratch_bytes = 0;
  int64_t output_bytes = 0;  // the network answers in the last segment alone
  for (int i = segment.first_step; i < segment.end_step; ++i) {
    const auto step = static_cast<size_t>(i);
    if (!IsNeeded(step)) continue;
    scratch_bytes = std::max(scratch_bytes, program.steps[step]->ScratchBytes(context_));
    output_bytes += program.steps[step]->OutputBytes(context_);
  }
  geometry.ReleaseScratch();
  ASSIGN_OR_RETURN(char* const block, cuda.features.Take(places.bytes));
  ASSIGN_OR_RETURN(context_.scratch, cuda.features.Take(static_cast<int64_t>(scratch_bytes)));
  if (&segment == &program.segments.back()) {
    ASSIGN_OR_RETURN(char* const output_rows, cuda.features.Take(output_bytes));
    HostMemory& memory = *options_.execution->memory;
    if (absl::Status status = cuda.download.Reserve(output_bytes, memory.budget()); !status.ok()) {
      memory.NoteRefusal(status);
      return status;
    }
    outputs_.SetMemory(output_rows, cuda.download.data());
  }
  places.SetData(block, buffer_data_);
  return absl::OkStatus();
}

absl::Status FeaturePass::Run(const ProgramSegment& segment) {
  const Program& program = *options_.program;
  CudaContext& cuda = *context_.cuda();
  RETURN_IF_ERROR(LayOut(segment));
  for (int i = segment.first_step; i < segment.end_step; ++i) {
    const auto step = static_cast<size_t>(i);
    if (i == program.first_head_step) {
      RETURN_IF_ERROR(cuda.stage_ends[StageEnd(Stage::kFeatures)].Record(cuda.stream.view()));
    }
    if (!IsNeeded(step)) continue;
    if (options_.step_ends != nullptr) RETURN_IF_ERROR(RecordStep(step));
    RETURN_IF_ERROR(program.steps[step]->Run(context_));
    if (options_.step_ends != nullptr) RETURN_IF_ERROR(RecordStep(step + 1));
  }
  return absl::OkStatus();
}

absl::Status FeaturePass::RecordStep(size_t index) {
  std::vector<Event>& ends = *options_.step_ends;
  while (ends.size() <= index) {
    ASSIGN_OR_RETURN(Event event, Event::Create());
    ends.push_back(std::move(event));
  }
  return ends[index].Record(context_.cuda()->stream.view());
}

std::vector<bool> FeaturePass::NeededSteps() const {
  std::vector<bool> needed;
  for (size_t i = 0; i < options_.program->steps.size(); ++i) needed.push_back(IsNeeded(i));
  return needed;
}

}  // namespace voxserve
