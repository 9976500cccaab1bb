#include "engine/serving/models/model_builder.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/logging.h"
#include "engine/base/status_macros.h"
#include "engine/serving/models/device_program.h"
#include "engine/serving/models/warm_up.h"
#include "engine/tuner/plan_file.h"

namespace voxserve {

absl::StatusOr<std::unique_ptr<ServedModel>> ModelBuilder::Make(const std::string& name, int64_t version,
                                                                const LoadedModel& loaded,
                                                                const std::stop_token& stop) const {
  const Graph& graph = loaded.graph;
  const ModelConfig& config = loaded.config;
  auto model = std::make_unique<ServedModel>();
  for (const Device& device : *options_.devices) {
    ServedModel::OnDevice& on_device = model->on_device.emplace_back();
    ASSIGN_OR_RETURN(on_device.program, MakeProgram(graph, config, device, options_.is_deterministic, stop));
    on_device.plan_key = MakePlanKey(graph, config, device, options_.engine_version);
    on_device.memory = std::make_unique<MemoryModel>(on_device.program.sample_bytes);
  }
  model->plans = std::make_unique<ModelPlans>(options_.devices->size());
  model->kernels = absl::StrCat(graph.network_digest, " ", static_cast<int>(config.precision), " ",
                                config.bytes_per_label(), " ", config.max_points, " ", config.max_voxels);
  model->batching = config.batching;
  // Gives each request a batch of its own on a CPU, since the CPU's matrix products depend on the number of rows.
  const auto is_cpu = [](const Device& device) { return !device.is_cuda(); };
  if (options_.is_deterministic && std::any_of(options_.devices->begin(), options_.devices->end(), is_cpu)) {
    model->batching.max_batch_requests = 1;
  }
  model->limits = {.ignore_label = config.ignore_label,
                   .max_voxels = config.max_voxels,
                   .voxel_overflow = config.voxel_overflow,
                   .max_batch_voxels = config.batching.max_batch_voxels,
                   .max_grid_bytes = options_.max_grid_bytes};
  ModelVersionInfo& info = model->info;
  info.name = name;
  info.version = version;
  info.state = ModelState::kReady;
  info.description = graph.description;
  for (size_t id = 0; id < config.classes.size(); ++id) {
    info.classes.push_back(
        {.id = static_cast<int>(id), .name = config.classes[id].name, .color_rgb = config.classes[id].color_rgb});
  }
  info.ignore_label = config.ignore_label;
  info.axes = graph.voxelize_op().axes;
  for (const InputFeature& feature : graph.voxelize_op().features) {
    info.features.push_back({.name = feature.name,
                             .unit = feature.unit,
                             .has_default = feature.default_value.has_value(),
                             .default_value = feature.default_value.value_or(0.0f),
                             .range = feature.range});
  }
  info.max_points = config.max_points;
  info.max_voxels = config.max_voxels;
  info.voxel_overflow = config.voxel_overflow;
  info.reach = ReachOf(graph);
  const auto& voxel_size = graph.voxelize_op().voxel_size;
  info.voxel_size.assign(voxel_size.begin(), voxel_size.begin() + graph.dimension);
  info.num_parameters = graph.num_parameters;
  info.priority_levels = model->batching.priority_levels;
  info.has_scores = model->program().has_scores;
  info.has_labels = model->program().has_labels;
  info.has_boxes = model->program().has_boxes;
  info.has_velocities = model->program().has_velocities;
  info.tensors = model->program().tensors;
  info.device = JoinIds(*options_.devices);
  info.digest = graph.digest;
  return model;
}

bool ModelBuilder::FindPlans(const ServedModel& model, const std::filesystem::path& version_folder) const {
  if (options_.is_deterministic) return true;  // one plan for all sizes: the default
  bool has_all = true;
  for (size_t i = 0; i < options_.devices->size(); ++i) {
    const ServedModel::OnDevice& on_device = model.on_device[i];
    std::vector<std::string> problems;
    auto found = options_.plan_store->Find(on_device.plan_key, version_folder, problems);
    if (found) {
      const std::vector<std::string> more = PlanProblems(*found->plan, on_device.program).Lines();
      problems.insert(problems.end(), more.begin(), more.end());
      if (!more.empty()) found.reset();
    }
    for (const std::string& problem : problems) {
      Log(LogLevel::kWarning, "tuned plan passed over", {{"model", model.info.name}, {"problem", problem}});
    }
    if (found) {
      model.plans->Set(i, std::make_shared<const PlanTable>(on_device.program, BucketsOf(*found->plan)), found->source);
    }
    has_all = has_all && found.has_value();
    if (options_.observer == nullptr) continue;
    options_.observer->OnPlanLookup(found.has_value());
    options_.observer->OnPlan(model.info.name, model.info.version, (*options_.devices)[i].id, model.plans->source(i));
  }
  return has_all;
}

absl::Status ModelBuilder::WarmUpOn(size_t device, const ServedModel& model, bool is_first) const {
  ASSIGN_OR_RETURN(ExecutionContext context,
                   MakeContext((*options_.devices)[device], options_.pool, StreamPriority::kLow));
  // Warms up even if loading failed: there may be memory for one and not for the other.
  absl::Status status = LoadKernels(model.on_device[device].program, context);
  if (is_first) {
    if constexpr (kernels::kHasCuda) context.cuda->ReleaseMemory();
    status.Update(options_.warm_up_workers(device, model));
    return status;
  }
  DeviceArbiter& arbiter = *(*options_.arbiters)[device];
  const ContextRegistration registration(arbiter, context.cuda.get());
  const std::shared_ptr<const PlanTable> plans = model.plans->Get(device);
  // Captures nothing: this context does not serve requests.
  status.Update(voxserve::WarmUp(model.on_device[device].program, {.plans = plans.get()}, model.limits,
                                 model.info.max_points, arbiter, *Executor::Create(&context),
                                 *model.on_device[device].memory, nullptr));
  return status;
}

void ModelBuilder::WarmUp(const ServedModel& model, const std::stop_token& stop) {
  const bool is_first = std::exchange(is_first_, false);
  for (size_t i = 0; i < options_.devices->size(); ++i) {
    const Device& device = (*options_.devices)[i];
    if (!device.is_cuda() || stop.stop_requested()) continue;
    const bool has_default_plan = model.plans->Get(i) == nullptr;
    if (has_default_plan && warm_[i].count(model.kernels) > 0) continue;
    const absl::Status status = WarmUpOn(i, model, is_first);
    if (status.ok()) {
      if (has_default_plan) warm_[i].insert(model.kernels);
    } else {
      Log(LogLevel::kWarning, "a model's first requests will be slow: it could not be warmed up",
          {{"model", model.info.name}, {"device", device.id}, {"error", std::string(status.message())}});
    }
  }
}

void ModelBuilder::ReturnMemory() const {
  if constexpr (kernels::kHasCuda) {
    for (const Device& device : *options_.devices) {
      if (!device.is_cuda()) continue;
      absl::Status status = device.pool->MakeCurrent();
      // Weights are freed in the order of this stream; waiting for it makes the pool return them to the device.
      if (status.ok()) status = device.loading->view().Synchronize();
      if (!status.ok()) {
        Log(LogLevel::kError, "memory of a model could not be returned",
            {{"device", device.id}, {"error", std::string(status.message())}});
      }
    }
  }
}

}  // namespace voxserve
