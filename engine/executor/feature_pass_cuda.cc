#include <algorithm>
#include <utility>

#include "engine/base/status_macros.h"
#include "engine/compiler/buffer_placement.h"
#include "engine/executor/feature_pass.h"
#include "engine/ops/batch_outputs.h"

namespace voxserve {

absl::Status FeaturePass::LayOut(const ProgramSegment& segment) {
  const Program& program = *options_.program;
  StepContext& context = *options_.context;
  DeviceGeometry& geometry = *options_.geometry;
  CudaContext& cuda = *context.cuda();
  const int64_t num_points = std::max(context.num_points(), geometry.room_points());
  const BufferPlaces places = PlaceBuffers(program, segment, geometry.num_sites(), context.num_samples(), num_points);
  size_t scratch_bytes = 0;
  int64_t output_bytes = 0;  // the network answers in the last segment alone
  for (int i = segment.first_step; i < segment.end_step; ++i) {
    const auto step = static_cast<size_t>(i);
    if (!IsNeeded(step)) continue;
    scratch_bytes = std::max(scratch_bytes, program.steps[step]->ScratchBytes(context));
    output_bytes += program.steps[step]->OutputBytes(context);
  }
  geometry.ReleaseScratch();
  ASSIGN_OR_RETURN(char* const block, cuda.features.Take(places.bytes));
  ASSIGN_OR_RETURN(context.scratch, cuda.features.Take(static_cast<int64_t>(scratch_bytes)));
  if (&segment == &program.segments.back()) {
    ASSIGN_OR_RETURN(char* const output_rows, cuda.features.Take(output_bytes));
    HostMemory& memory = *context.execution->memory;
    if (absl::Status status = cuda.download.Reserve(output_bytes, memory.budget()); !status.ok()) {
      memory.NoteRefusal(status);
      return status;
    }
    context.outputs->SetMemory(output_rows, cuda.download.data());
  }
  places.SetData(block, *options_.buffer_data);
  return absl::OkStatus();
}

absl::Status FeaturePass::Run(size_t begin, size_t end) {
  for (size_t i = begin; i < end; ++i) {
    if (i == first_head_step()) RETURN_IF_ERROR(EndFeatures());
    if (!IsNeeded(i)) continue;
    if (options_.step_ends != nullptr) RETURN_IF_ERROR(RecordStep(i));
    RETURN_IF_ERROR(options_.program->steps[i]->Run(*options_.context));
    if (options_.step_ends != nullptr) RETURN_IF_ERROR(RecordStep(i + 1));
  }
  return absl::OkStatus();
}

absl::Status FeaturePass::Launch(const StepRange& steps) {
  for (size_t i = steps.begin; i < steps.end; ++i) {
    if (IsNeeded(i)) RETURN_IF_ERROR(options_.program->steps[i]->Run(*options_.context));
  }
  return absl::OkStatus();
}

absl::Status FeaturePass::EnterHead(const StepRange& steps) {
  return steps.begin == first_head_step() ? EndFeatures() : absl::OkStatus();
}

absl::Status FeaturePass::EndFeatures() {
  CudaContext& cuda = *options_.context->cuda();
  return cuda.stage_ends[StageEnd(Stage::kFeatures)].Record(cuda.stream.view());
}

absl::Status FeaturePass::RecordStep(size_t index) {
  std::vector<Event>& ends = *options_.step_ends;
  while (ends.size() <= index) {
    ASSIGN_OR_RETURN(Event event, Event::Create());
    ends.push_back(std::move(event));
  }
  return ends[index].Record(options_.context->cuda()->stream.view());
}

std::vector<StepRange> FeaturePass::CapturableRanges() const {
  const Program& program = *options_.program;
  std::vector<StepUse> steps;
  for (size_t i = 0; i < program.steps.size(); ++i) {
    steps.push_back({.is_needed = IsNeeded(i), .is_capturable = program.steps[i]->IsCapturable(program.buffers)});
  }
  return voxserve::CapturableRanges(steps, first_head_step());
}

BatchShape FeaturePass::Shape(const PlanTable& plans) const {
  const Program& program = *options_.program;
  const StepContext& context = *options_.context;
  const DeviceGeometry& geometry = *options_.geometry;
  BatchShape shape{.program = program.id.value(),
                   .plans = plans.id(),
                   .plan = plans.IndexOf(*context.plans),
                   .num_samples = context.num_samples(),
                   .ignore_label = context.ignore_label,
                   .capacities = geometry.num_sites()};
  for (size_t i = 0; i < program.steps.size(); ++i) shape.needed_steps.push_back(IsNeeded(i));
  std::vector<const void*>& addresses = shape.addresses;
  addresses = {context.scratch,          context.points.data,    context.outputs->not_finite_points(),
               geometry.sorted_points(), geometry.voxel_begin(), geometry.point_to_voxel()};
  for (const char* const buffer : *options_.buffer_data) addresses.push_back(buffer);
  for (size_t i = 0; i < program.levels.size(); ++i) {
    const auto level = static_cast<int>(i);
    addresses.push_back(geometry.device_num_sites(level));
    addresses.push_back(geometry.keys(level));
    addresses.push_back(geometry.level_sample_begin(level));
  }
  for (size_t i = 0; i < program.rulebooks.size(); ++i) {
    const auto rulebook = static_cast<int>(i);
    addresses.push_back(geometry.neighbours(rulebook).rows);
    const kernels::TilesView tiles = geometry.tiles(rulebook);
    for (const void* const array : {static_cast<const void*>(tiles.out_rows), static_cast<const void*>(tiles.masks),
                                    static_cast<const void*>(tiles.in_rows), static_cast<const void*>(tiles.counters),
                                    static_cast<const void*>(tiles.by_weight)}) {
      addresses.push_back(array);
    }
  }
  return shape;
}

}  // namespace voxserve
