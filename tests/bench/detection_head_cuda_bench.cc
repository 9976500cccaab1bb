// Times box decoding and rotated non-maximum suppression on a GPU: whole heads of CenterPoint for nuScenes and Waymo,
// and SECOND's head for KITTI. The images are like those of a trained network (objects of a few cells each) and of an
// untrained one (half of the cells above the threshold). Every result is compared with the CPU's, and the program fails
// if one differs. The table is Markdown.

#include <cuda_runtime_api.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/boxes/anchor_head.h"
#include "kernels/boxes/center_head.h"
#include "kernels/boxes/rotated_nms.h"
#include "tests/bench/event_timer.h"
#include "tests/kernels/boxes/detection_testing.h"

namespace voxserve::bench {
namespace {

using kernels::AnchorHeadParams;
using kernels::CenterHead;
using kernels::CenterHeadConvention;
using kernels::CenterHeadParams;
using kernels::DeviceValues;
using kernels::DType;
using kernels::ImageChannels;
using kernels::RotatedNmsParams;
using support::Device;
using support::DeviceArray;
using support::ExpectCudaSuccess;

[[noreturn]] void Fail(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  std::exit(1);
}

// An image with the same values on the GPU in float16 and on the CPU in float32.
struct TwinImage {
  TwinImage(std::vector<float> values, int64_t num_channels) : channels(num_channels) {
    pitch = (channels + 7) / 8 * 8;
    for (size_t i = 0; i < values.size(); ++i) {
      if (i % static_cast<size_t>(channels) == 0) rows.resize(rows.size() + static_cast<size_t>(pitch), 0.0f);
      rows[rows.size() - static_cast<size_t>(pitch) + i % static_cast<size_t>(channels)] =
          kernels::Rounded(DType::kFloat16, values[i]);
    }
    gpu = std::make_unique<DeviceValues>(Device::kCuda, DType::kFloat16, rows);
  }
  ImageChannels On(Device device) const {
    return {.data = device == Device::kCpu ? rows.data() : gpu->data(), .pitch = pitch};
  }

  int64_t channels;
  int64_t pitch = 0;
  std::vector<float> rows;
  std::unique_ptr<DeviceValues> gpu;
};

struct Task {
  CenterHead head;
  std::unique_ptr<TwinImage> heatmap, center, height, dim, rot, vel;
};

struct CenterCase {
  std::string name;
  int32_t size;  // rows and columns of the images
  std::vector<int32_t> classes_of_tasks;
  float voxel_size;
  bool has_velocity;
  CenterHeadConvention convention;
  int32_t max_boxes;
  float iou_threshold;
  int32_t max_boxes_out;
  int num_objects;  // per task; 0 stands for an untrained network
};

Task TaskOf(const CenterCase& c, int32_t num_samples, int32_t num_classes, std::mt19937& random) {
  const int64_t sample_cells = int64_t{c.size} * c.size, cells = num_samples * sample_cells;
  std::normal_distribution<float> normal;
  const auto noise = [&](int64_t channels, float mean, float deviation) {
    std::vector<float> values(static_cast<size_t>(cells * channels));
    for (float& value : values) value = mean + deviation * normal(random);
    return values;
  };
  const bool is_trained = c.num_objects > 0;
  std::vector<float> heatmap = noise(num_classes, is_trained ? -6.0f : -2.19f, is_trained ? 0.5f : 1.0f);
  std::vector<float> center = noise(2, 0.5f, 0.1f), dim = noise(3, 0.5f, 0.3f);
  std::uniform_real_distribution<float> place(2, static_cast<float>(c.size) - 3), peak(-1.5f, 3);
  for (int32_t sample = 0; sample < num_samples; ++sample) {
    for (int object = 0; object < c.num_objects; ++object) {
      const float x = place(random), y = place(random), top = peak(random);
      const auto k = std::uniform_int_distribution<int64_t>(0, num_classes - 1)(random);
      for (int dr = -2; dr <= 2; ++dr) {
        for (int dc = -2; dc <= 2; ++dc) {
          const auto row = static_cast<int64_t>(y) + dr, column = static_cast<int64_t>(x) + dc;
          const int64_t cell = sample * sample_cells + row * c.size + column;
          heatmap[static_cast<size_t>(cell * num_classes + k)] = top - 0.5f * static_cast<float>(dr * dr + dc * dc);
          center[static_cast<size_t>(2 * cell)] = x - static_cast<float>(column) + 0.1f * normal(random);
          center[static_cast<size_t>(2 * cell + 1)] = y - static_cast<float>(row) + 0.1f * normal(random);
        }
      }
    }
  }
  Task task{.heatmap = std::make_unique<TwinImage>(std::move(heatmap), num_classes),
            .center = std::make_unique<TwinImage>(std::move(center), 2),
            .height = std::make_unique<TwinImage>(noise(1, -1, 0.3f), 1),
            .dim = std::make_unique<TwinImage>(std::move(dim), 3),
            .rot = std::make_unique<TwinImage>(noise(2, 0, 1), 2)};
  if (c.has_velocity) task.vel = std::make_unique<TwinImage>(noise(2, 0, 1), 2);
  const float reach = 0.5f * static_cast<float>(c.size) * 8 * c.voxel_size;
  task.head = {.convention = c.convention,
               .num_rows = c.size,
               .num_columns = c.size,
               .num_classes = num_classes,
               .stride = 8,
               .voxel_size = {c.voxel_size, c.voxel_size},
               .range_min = {-reach, -reach},
               .score_threshold = 0.1f,
               .center_min = {-reach - 7, -reach - 7, -10},
               .center_max = {reach + 7, reach + 7, 10},
               .max_boxes = c.max_boxes};
  return task;
}

// The decoded boxes of each input on one device, and the boxes that suppression keeps.
struct Boxes {
  Boxes(Device device, int32_t num_samples, int64_t num_inputs, int32_t max_boxes, float iou_threshold,
        int32_t max_boxes_out) {
    nms = {.num_samples = num_samples,
           .num_inputs = static_cast<int32_t>(num_inputs),
           .iou_threshold = iou_threshold,
           .max_boxes_out = max_boxes_out};
    for (size_t i = 0; i < static_cast<size_t>(num_inputs); ++i) {
      decoded.push_back(std::make_unique<DeviceArray<float>>(
          device, static_cast<size_t>(num_samples * max_boxes) * kernels::kBoxPitch));
      nms.inputs[i] = {.boxes = decoded.back()->data(), .max_boxes = max_boxes};
    }
    kept = std::make_unique<DeviceArray<float>>(
        device, static_cast<size_t>(num_samples * kernels::NmsRows(nms)) * kernels::kBoxPitch);
    nms.boxes = kept->data();
    if (device == Device::kCpu) return;
    workspace = std::make_unique<DeviceArray<char>>(device, kernels::cuda::RotatedNmsWorkspaceBytes(nms));
    nms.workspace = workspace->data();
  }

  RotatedNmsParams nms;
  std::vector<std::unique_ptr<DeviceArray<float>>> decoded;
  std::unique_ptr<DeviceArray<float>> kept;
  std::unique_ptr<DeviceArray<char>> workspace;
};

int64_t CountBoxes(const std::vector<kernels::BoxRow>& rows) {
  int64_t count = 0;
  for (const kernels::BoxRow& row : rows) count += kernels::IsBox(row) ? 1 : 0;
  return count;
}

// Expects that the GPU's decoded boxes are near the CPU's, and that the GPU keeps the boxes that the CPU keeps of the
// GPU's decoded boxes.
void Compare(const std::string& name, const Boxes& gpu, Boxes& cpu, kernels::ThreadPool& pool) {
  for (size_t i = 0; i < gpu.decoded.size(); ++i) {
    const std::vector<float> ours = gpu.decoded[i]->ToHost();
    const auto rows = kernels::BoxRowsOf(ours), expected = kernels::BoxRowsOf(cpu.decoded[i]->ToHost());
    for (size_t row = 0; row < rows.size(); ++row) {
      for (size_t column = 0; column < kernels::kBoxColumns; ++column) {
        if (std::abs(rows[row][column] - expected[row][column]) > 1e-4f * (1 + std::abs(expected[row][column]))) {
          Fail("the boxes are not the CPU's: " + name);
        }
      }
    }
    support::CopyToDevice(Device::kCpu, cpu.decoded[i]->data(), ours.data(), ours.size() * sizeof(float));
  }
  kernels::cpu::RotatedNms(cpu.nms, pool);
  if (kernels::BoxRowsOf(gpu.kept->ToHost()) != kernels::BoxRowsOf(cpu.kept->ToHost())) {
    Fail("the boxes that stay are not the CPU's: " + name);
  }
}

template <typename Decode>
void TimeCase(const std::string& name, int32_t num_samples, const Boxes& gpu, Boxes& cpu, kernels::ThreadPool& pool,
              const Decode& decode) {
  const GpuTimes times = TimeOnGpu(support::TestStream(), 2, [&](const MarkStep& mark) {
    decode();
    mark(0);
    ExpectCudaSuccess(kernels::cuda::RotatedNms(gpu.nms, support::TestStream()));
    mark(1);
  });
  Compare(name, gpu, cpu, pool);
  int64_t num_decoded = 0;
  for (const auto& boxes : gpu.decoded) num_decoded += CountBoxes(kernels::BoxRowsOf(boxes->ToHost()));
  std::printf("| %s | %d | %lld | %lld | %.1f | %.1f | %.1f | %.1f |\n", name.c_str(), num_samples,
              static_cast<long long>(num_decoded),
              static_cast<long long>(CountBoxes(kernels::BoxRowsOf(gpu.kept->ToHost()))), 1e3 * times.step_ms[0],
              1e3 * times.step_ms[1], 1e3 * times.back_to_back_ms, 1e3 * times.as_launched_ms);
  std::fflush(stdout);
}

void RunCenterCase(const CenterCase& c, int32_t num_samples, kernels::ThreadPool& pool) {
  std::mt19937 random(1);
  std::vector<Task> tasks;
  for (const int32_t classes : c.classes_of_tasks) tasks.push_back(TaskOf(c, num_samples, classes, random));
  const auto num_tasks = static_cast<int64_t>(tasks.size());
  Boxes gpu(Device::kCuda, num_samples, num_tasks, c.max_boxes, c.iou_threshold, c.max_boxes_out);
  Boxes cpu(Device::kCpu, num_samples, num_tasks, c.max_boxes, c.iou_threshold, c.max_boxes_out);
  const auto params_on = [&](Device device, const Boxes& boxes) {
    CenterHeadParams params{.num_samples = num_samples,
                            .dtype = device == Device::kCpu ? DType::kFloat32 : DType::kFloat16,
                            .num_heads = static_cast<int32_t>(tasks.size())};
    for (size_t t = 0; t < tasks.size(); ++t) {
      CenterHead& head = params.heads[t];
      head = tasks[t].head;
      head.heatmap = tasks[t].heatmap->On(device);
      head.center = tasks[t].center->On(device);
      head.height = tasks[t].height->On(device);
      head.dim = tasks[t].dim->On(device);
      head.rot = tasks[t].rot->On(device);
      if (tasks[t].vel != nullptr) head.vel = tasks[t].vel->On(device);
      head.boxes = boxes.decoded[t]->data();
    }
    return params;
  };
  CenterHeadParams params = params_on(Device::kCuda, gpu);
  const DeviceArray<char> workspace(Device::kCuda, kernels::cuda::CenterHeadWorkspaceBytes(params));
  params.workspace = workspace.data();
  kernels::cpu::DecodeCenterHeads(params_on(Device::kCpu, cpu), pool);
  TimeCase(c.name, num_samples, gpu, cpu, pool,
           [&] { ExpectCudaSuccess(kernels::cuda::DecodeCenterHeads(params, support::TestStream())); });
}

void RunAnchorCase(int32_t num_samples, bool is_trained, kernels::ThreadPool& pool) {
  constexpr int32_t kRows = 200, kColumns = 176, kAnchors = 6, kClasses = 3, kMaxBoxes = 4096;
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  const auto image = [&](int64_t channels, float mean, float deviation) {
    std::vector<float> values(static_cast<size_t>(int64_t{num_samples} * kRows * kColumns * channels));
    for (float& value : values) value = mean + deviation * normal(random);
    return TwinImage(std::move(values), channels);
  };
  const TwinImage scores = image(kAnchors * kClasses, is_trained ? -5.5f : -4.6f, is_trained ? 1.0f : 2.0f);
  const TwinImage residuals = image(kAnchors * 7, 0, 0.2f), directions = image(kAnchors * 2, 0, 1);
  Boxes gpu(Device::kCuda, num_samples, 1, kMaxBoxes, 0.01f, 500),
      cpu(Device::kCpu, num_samples, 1, kMaxBoxes, 0.01f, 500);
  const auto params_on = [&](Device device, const Boxes& boxes) {
    AnchorHeadParams params{.num_samples = num_samples,
                            .dtype = device == Device::kCpu ? DType::kFloat32 : DType::kFloat16,
                            .num_rows = kRows,
                            .num_columns = kColumns,
                            .num_classes = kClasses,
                            .class_ids = {0, 1, 2},
                            .num_anchors = kAnchors,
                            .scores = scores.On(device),
                            .residuals = residuals.On(device),
                            .directions = directions.On(device),
                            .range_min = {0, -40},
                            .range_max = {70.4f, 40},
                            .direction_offset = 0.78539f,
                            .score_threshold = 0.1f,
                            .max_boxes = kMaxBoxes,
                            .boxes = boxes.decoded[0]->data()};
    for (size_t a = 0; a < kAnchors; ++a) {
      params.anchors[a] = {
          .size = {a < 2 ? 3.9f : 1.2f, a < 2 ? 1.6f : 0.6f, 1.6f}, .bottom = -1.78f, .yaw = a % 2 == 0 ? 0.0f : 1.57f};
    }
    return params;
  };
  AnchorHeadParams params = params_on(Device::kCuda, gpu);
  const DeviceArray<char> workspace(Device::kCuda, kernels::cuda::AnchorHeadWorkspaceBytes(params));
  params.workspace = workspace.data();
  kernels::cpu::DecodeAnchorHead(params_on(Device::kCpu, cpu), pool);
  TimeCase(is_trained ? "SECOND, KITTI" : "SECOND, KITTI, untrained", num_samples, gpu, cpu, pool,
           [&] { ExpectCudaSuccess(kernels::cuda::DecodeAnchorHead(params, support::TestStream())); });
}

int Main() {
  if (!support::HasDevice(Device::kCuda)) {
    std::puts("skipped: no CUDA device here");
    return 0;
  }
  cudaDeviceProp properties;
  ExpectCudaSuccess(cudaGetDeviceProperties(&properties, 0));
  std::printf("#### Box decoding and rotated NMS on %s: float16, medians of 50, microseconds\n\n", properties.name);
  std::puts("| head | samples | boxes decoded | boxes kept | decode | NMS | both | with launches |");
  std::puts("|---|--:|--:|--:|--:|--:|--:|--:|");
  kernels::ThreadPool pool(kernels::ThreadPool::AvailableCpus());
  const std::vector<int32_t> nuscenes_tasks = {1, 2, 2, 1, 2, 2};
  constexpr auto kOpenPcdet = CenterHeadConvention::kOpenPcdet, kDet3d = CenterHeadConvention::kDet3d;
  const std::vector<CenterCase> cases = {
      {"CenterPoint, nuScenes, OpenPCDet", 180, nuscenes_tasks, 0.075f, true, kOpenPcdet, 500, 0.2f, 83, 30},
      {"CenterPoint, nuScenes, det3d", 180, nuscenes_tasks, 0.075f, true, kDet3d, 1000, 0.2f, 83, 30},
      {"CenterPoint, nuScenes, OpenPCDet, untrained", 180, nuscenes_tasks, 0.075f, true, kOpenPcdet, 500, 0.2f, 83, 0},
      {"CenterPoint, nuScenes, det3d, untrained", 180, nuscenes_tasks, 0.075f, true, kDet3d, 1000, 0.2f, 83, 0},
      {"CenterPoint, Waymo, OpenPCDet", 188, {3}, 0.1f, false, kOpenPcdet, 500, 0.7f, 500, 100},
      {"CenterPoint, Waymo, det3d", 188, {3}, 0.1f, false, kDet3d, 4096, 0.7f, 500, 100},
      {"CenterPoint, Waymo, OpenPCDet, untrained", 188, {3}, 0.1f, false, kOpenPcdet, 500, 0.7f, 500, 0},
      {"CenterPoint, Waymo, det3d, untrained", 188, {3}, 0.1f, false, kDet3d, 4096, 0.7f, 500, 0},
      {"DSVT, Waymo", 468, {3}, 0.04f, false, kOpenPcdet, 500, 0.7f, 500, 100},
      {"DSVT, Waymo, untrained", 468, {3}, 0.04f, false, kOpenPcdet, 500, 0.7f, 500, 0},
  };
  for (const CenterCase& c : cases) {
    for (const int32_t num_samples : {1, 4}) RunCenterCase(c, num_samples, pool);
  }
  for (const bool is_trained : {true, false}) {
    for (const int32_t num_samples : {1, 4}) RunAnchorCase(num_samples, is_trained, pool);
  }
  return 0;
}

}  // namespace
}  // namespace voxserve::bench

int main() { return voxserve::bench::Main(); }
