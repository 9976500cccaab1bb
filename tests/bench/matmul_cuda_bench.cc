// Times only the matrix products of MinkUNet's convolutions, for each way to group them, as table 2 of TorchSparse
// (Tang et al., MLSys 2022) does for SemanticKITTI and nuScenes. It times our groupings
// (kernels/conv/matmul_grouping.h), and cuBLAS's grouped GEMM, which needs no padding. Features are fp16, sums fp32.
//
//   matmul_cuda_bench [layers]     layers: prints one more table for each network, by convolution
//
// Tables are Markdown. The products of the grouped GEMM are compared with ours for convolutions with few products.

#include <cublas_v2.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "engine/runtime/cuda_devices.h"
#include "engine/tensor/point_cloud.h"
#include "kernels/conv/gather_gemm_scatter.h"
#include "kernels/conv/matmul_grouping.h"
#include "kernels/core/gemm_cuda.h"
#include "tests/bench/event_timer.h"
#include "tests/bench/or_die.h"
#include "tests/bench/scan_convolutions.h"
#include "tests/support/real_scans.h"
#include "tests/support/test_device.h"

namespace voxserve::bench {
namespace {

using kernels::DType;
using kernels::Grouping;
using kernels::GroupingOptions;
using kernels::MatmulGrouping;
using support::Device;
using support::DeviceArray;
using support::ExpectCudaSuccess;

constexpr int kNumRuns = 20;

struct NamedGrouping {
  const char* name;
  GroupingOptions options;
};

// Speed-ups are relative to the first grouping.
const std::vector<NamedGrouping>& Groupings() {
  static const std::vector<NamedGrouping> groupings = {
      {"separate", {.grouping = Grouping::kSeparate}},
      {"symmetric", {.grouping = Grouping::kSymmetric}},
      {"fixed", {.grouping = Grouping::kFixed}},
      {"adaptive, by default", {}},
      {"adaptive, epsilon 1: one batch", {.epsilon = 1, .bmm_max_rows = kernels::kNoLimit}},
  };
  return groupings;
}

struct Workload {
  std::string name;
  double width;
  PointCloud cloud;
  float voxel_size_m;
  std::vector<double> paper;  // the paper's speed-ups by grouping; without the groupings that the paper lacks
};

std::vector<Workload> Workloads() {
  const auto read = [](const support::RealScan& scan) { return OrDie(support::ReadScan(scan.format, scan.path())); };
  const PointCloud kitti = read(support::kSemanticKittiScan);
  const std::vector<double> kitti_paper = {1.00, 1.02, 0.87, 1.39};
  return {
      {"semantickitti-00/000000", 0.5, kitti, 0.05f, kitti_paper},
      {"semantickitti-00/000000", 1.0, kitti, 0.05f, kitti_paper},
      {"nuScenes, 1 frame", 1.0, read(support::kNuScenesKeyFrame), 0.1f, {}},
      {"nuScenes, 3 frames", 1.0, NewestSweeps(support::kNuScenesSweeps, 3), 0.1f, {1.00, 1.39, 1.50, 1.54}},
  };
}

MatmulGrouping Group(const ScanConvolution& conv, const GroupingOptions& options) {
  return kernels::GroupMatmuls({.num_offsets = conv.tables.num_offsets,
                                .offset_begin = conv.tables.offset_begin,
                                .is_symmetric = conv.layer.is_symmetric,
                                .identity_offset = conv.tables.identity_offset},
                               options);
}

// Returns the largest 1 - n_min / n_max of the groups, where n are the sizes of a group's maps.
double LargestSpread(const ScanConvolution& conv, const MatmulGrouping& grouping) {
  double largest = 0;
  for (const kernels::MatmulGroup& group : grouping.groups) {
    int64_t n_min = group.rows;
    for (int32_t position = group.first; position < group.first + group.count; ++position) {
      const int32_t k = kernels::OffsetAt(position, conv.tables.num_offsets, conv.layer.is_symmetric);
      n_min = std::min(n_min, conv.tables.offset_begin[k + 1] - conv.tables.offset_begin[k]);
    }
    largest = std::max(largest, 1 - static_cast<double>(n_min) / static_cast<double>(group.rows));
  }
  return largest;
}

// The memory that all products read and write, large enough for every convolution and grouping.
struct Buffers {
  explicit Buffers(const std::vector<ScanConvolution>& convs) {
    int64_t in_values = 0, weight_values = 0, gathered_values = 0, product_values = 0;
    for (const ScanConvolution& conv : convs) {
      in_values = std::max(in_values, conv.tables.num_in_rows * conv.layer.in_channels);
      weight_values =
          std::max(weight_values, int64_t{conv.tables.num_offsets} * conv.layer.in_channels * conv.layer.out_channels);
      for (const NamedGrouping& named : Groupings()) {
        const MatmulGrouping grouping = Group(conv, named.options);
        gathered_values = std::max(gathered_values, grouping.num_gathered_rows * conv.layer.in_channels);
        product_values = std::max(product_values, grouping.num_product_rows * conv.layer.out_channels);
      }
    }
    in = RandomHalves(in_values);
    weights = RandomHalves(weight_values);
    gathered = RandomHalves(gathered_values);
    products = std::make_unique<DeviceArray<__half>>(Device::kCuda, static_cast<size_t>(product_values));
  }

  // Returns values spread evenly over [-0.5, 0.5).
  static std::unique_ptr<DeviceArray<__half>> RandomHalves(int64_t count) {
    constexpr size_t kPeriod = 1000003;
    std::vector<__half> values(static_cast<size_t>(count));
    uint32_t state = 1;
    for (size_t i = 0; i < std::min(values.size(), kPeriod); ++i) {
      state = state * 1664525 + 1013904223;
      values[i] = __float2half(static_cast<float>(state >> 8) * 0x1p-24f - 0.5f);
    }
    for (size_t i = kPeriod; i < values.size(); ++i) values[i] = values[i - kPeriod];
    return std::make_unique<DeviceArray<__half>>(Device::kCuda, values);
  }

  std::unique_ptr<DeviceArray<__half>> in, weights, gathered, products;
};

// cuBLAS's grouped GEMM. One call computes all products of a convolution, each with its own size. The products'
// pointers are on the device before the call. The call reads and writes the buffers in the layout of
// Grouping::kSeparate.
class GroupedGemm {
 public:
  GroupedGemm(const ScanConvolution& conv, const Buffers& buffers)
      : grouping_(Group(conv, {.grouping = Grouping::kSeparate})) {
    const auto add = [&](int64_t rows, int32_t position, const __half* a, int64_t product_row) {
      rows_.push_back(static_cast<int>(rows));
      a_.push_back(a);
      b_.push_back(buffers.weights->data() + int64_t{position} * conv.layer.in_channels * conv.layer.out_channels);
      c_.push_back(buffers.products->data() + product_row * conv.layer.out_channels);
    };
    for (const kernels::MatmulGroup& group : grouping_.groups) {
      add(group.rows, group.first, buffers.gathered->data() + group.begin * conv.layer.in_channels, group.begin);
    }
    if (const int64_t rows = grouping_.num_product_rows - grouping_.num_gathered_rows; rows > 0) {
      const int32_t position = conv.layer.is_symmetric ? conv.tables.num_offsets - 1 : conv.tables.identity_offset;
      add(rows, position, buffers.in->data(), grouping_.num_gathered_rows);
    }
    const size_t count = rows_.size();
    no_transpose_.assign(count, CUBLAS_OP_N);
    in_channels_.assign(count, conv.layer.in_channels);
    out_channels_.assign(count, conv.layer.out_channels);
    one_.assign(count, 1);
    alpha_.assign(count, 1.0f);
    beta_.assign(count, 0.0f);
    device_a_ = std::make_unique<DeviceArray<const void*>>(Device::kCuda, a_);
    device_b_ = std::make_unique<DeviceArray<const void*>>(Device::kCuda, b_);
    device_c_ = std::make_unique<DeviceArray<void*>>(Device::kCuda, c_);
  }

  // cuBLAS's matrices are column-major, so this computes C^T = B^T A^T.
  cublasStatus_t Queue(cublasHandle_t cublas) const {
    return cublasGemmGroupedBatchedEx(cublas, no_transpose_.data(), no_transpose_.data(), out_channels_.data(),
                                      rows_.data(), in_channels_.data(), alpha_.data(), device_b_->data(), CUDA_R_16F,
                                      out_channels_.data(), device_a_->data(), CUDA_R_16F, in_channels_.data(),
                                      beta_.data(), device_c_->data(), CUDA_R_16F, out_channels_.data(),
                                      static_cast<int>(rows_.size()), one_.data(), CUBLAS_COMPUTE_32F);
  }

  const MatmulGrouping& grouping() const { return grouping_; }

 private:
  const MatmulGrouping grouping_;
  std::vector<cublasOperation_t> no_transpose_;
  std::vector<int> rows_, in_channels_, out_channels_, one_;
  std::vector<float> alpha_, beta_;
  std::vector<const void*> a_, b_;
  std::vector<void*> c_;
  std::unique_ptr<DeviceArray<const void*>> device_a_, device_b_;
  std::unique_ptr<DeviceArray<void*>> device_c_;
};

// The cost of a convolution's products with one grouping.
struct Products {
  double device_us = 0;    // the device's own time
  double launched_us = 0;  // from an idle stream, with the time of the host's launches
  double macs = 0;         // multiply-adds, with those of padding
  double spread = 0;       // LargestSpread
};

class Bench {
 public:
  Bench() : workspace_(Device::kCuda, kernels::cuda::Gemm::kWorkspaceBytes) {
    ExpectCudaSuccess(kernels::cuda::Gemm::Create(support::TestStream(), workspace_.data(), &gemm_));
    ExpectCublasSuccess(cublasCreate(&cublas_));
    ExpectCublasSuccess(cublasSetStream(cublas_, support::TestStream()));
    ExpectCublasSuccess(cublasSetWorkspace(cublas_, workspace_.data(), workspace_.size()));
  }
  ~Bench() {
    support::Synchronize();
    cublasDestroy(cublas_);
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  void Run(const Workload& workload, bool by_layer) {
    const ScanConvolutions convs(workload.width, workload.cloud, workload.voxel_size_m);
    const Buffers buffers(convs.all());
    std::vector<std::vector<Products>> ours(Groupings().size());  // by grouping and convolution
    std::vector<Products> grouped;
    num_stand_ins_ = 0;
    for (const ScanConvolution& conv : convs.all()) {
      for (size_t g = 0; g < Groupings().size(); ++g) {
        ours[g].push_back(Measure(conv, Group(conv, Groupings()[g].options), buffers));
      }
      grouped.push_back(MeasureGrouped(conv, ours.front().back(), buffers));
    }
    std::printf("\n### MinkUNet %.1fx, %s, %g cm, sums over its convolutions\n\n", workload.width,
                workload.name.c_str(), static_cast<double>(workload.voxel_size_m) * 100);
    std::printf("%llu points, %lld voxels.\n\n", static_cast<unsigned long long>(workload.cloud.num_points()),
                static_cast<long long>(convs.all().front().tables.num_in_rows));
    PrintSums(convs.all(), workload.paper, ours, grouped);
    if (by_layer) PrintLayers(convs.all(), ours, grouped);
    std::fflush(stdout);
  }

  // Returns true if all of the grouped GEMM's products that were compared were within kTolerance of ours.
  bool are_equal() const { return are_equal_; }

 private:
  static constexpr int64_t kMaxCompared = int64_t{1} << 21;  // larger results of a convolution are not compared
  // The values are sums of up to 512 terms below 1/4, rounded to fp16 once.
  static constexpr float kTolerance = 0.002f;

  static void ExpectCublasSuccess(cublasStatus_t status) {
    if (status == CUBLAS_STATUS_SUCCESS) return;
    std::fprintf(stderr, "cuBLAS: %s\n", cublasGetStatusName(status));
    std::exit(1);
  }

  static double TrueMacs(const ScanConvolution& conv) {
    return static_cast<double>(conv.num_pairs()) * conv.layer.in_channels * conv.layer.out_channels;
  }

  cudaError_t Queue(const ScanConvolution& conv, const MatmulGrouping& grouping, const Buffers& buffers) {
    return kernels::cuda::MultiplyGroups({.tables = conv.tables,
                                          .is_symmetric = conv.layer.is_symmetric,
                                          .grouping = &grouping,
                                          .operands = {.in = {.data = buffers.in->data(),
                                                              .dtype = DType::kFloat16,
                                                              .channels = conv.layer.in_channels,
                                                              .pitch = conv.layer.in_channels,
                                                              .capacity = conv.tables.num_in_rows},
                                                       .out = {.channels = conv.layer.out_channels},
                                                       .weights = buffers.weights->data()}},
                                         buffers.gathered->data(), buffers.products->data(), *gemm_);
  }

  // launch() queues the products on the stream.
  template <typename Launch>
  static Products Time(double macs, const Launch& launch) {
    const GpuTimes times = TimeOnGpu(
        support::TestStream(), /*num_steps=*/0, [&](const MarkStep&) { launch(); }, kNumRuns);
    return {.device_us = times.back_to_back_ms * 1e3, .launched_us = times.as_launched_ms * 1e3, .macs = macs};
  }

  Products Measure(const ScanConvolution& conv, const MatmulGrouping& grouping, const Buffers& buffers) {
    Products products =
        Time(static_cast<double>(grouping.num_product_rows) * conv.layer.in_channels * conv.layer.out_channels,
             [&] { ExpectCudaSuccess(Queue(conv, grouping, buffers)); });
    products.spread = LargestSpread(conv, grouping);
    return products;
  }

  // Measures the grouped GEMM. If cuBLAS refuses the convolution, returns `separate`, our time for it.
  Products MeasureGrouped(const ScanConvolution& conv, const Products& separate, const Buffers& buffers) {
    const GroupedGemm grouped(conv, buffers);
    if (const cublasStatus_t status = grouped.Queue(cublas_); status != CUBLAS_STATUS_SUCCESS) {
      std::fprintf(stderr, "%s: the grouped GEMM refuses (%s); separate products stand in\n", conv.layer.node.c_str(),
                   cublasGetStatusName(status));
      num_stand_ins_ += conv.count;
      return separate;
    }
    if (grouped.grouping().num_product_rows * conv.layer.out_channels <= kMaxCompared) Compare(conv, grouped, buffers);
    return Time(TrueMacs(conv), [&] { ExpectCublasSuccess(grouped.Queue(cublas_)); });
  }

  void Compare(const ScanConvolution& conv, const GroupedGemm& grouped, const Buffers& buffers) {
    const auto num_values = static_cast<size_t>(grouped.grouping().num_product_rows * conv.layer.out_channels);
    const auto take_products = [&] {
      std::vector<__half> values(num_values);
      support::CopyFromDevice(Device::kCuda, values.data(), buffers.products->data(), num_values * sizeof(__half));
      return values;
    };
    ExpectCudaSuccess(Queue(conv, grouped.grouping(), buffers));
    const std::vector<__half> expected = take_products();
    ExpectCudaSuccess(
        cudaMemsetAsync(buffers.products->data(), 0xFF, num_values * sizeof(__half), support::TestStream()));  // NaN
    ExpectCublasSuccess(grouped.Queue(cublas_));
    const std::vector<__half> found = take_products();
    for (size_t i = 0; i < num_values; ++i) {
      const float value = __half2float(found[i]), wanted = __half2float(expected[i]);
      if (std::abs(value - wanted) <= kTolerance * (1 + std::abs(wanted))) continue;
      std::fprintf(stderr, "%s: the grouped GEMM's value %zu is %g, ours %g\n", conv.layer.node.c_str(), i,
                   static_cast<double>(value), static_cast<double>(wanted));
      are_equal_ = false;
      return;
    }
  }

  void PrintSums(const std::vector<ScanConvolution>& convs, const std::vector<double>& paper,
                 const std::vector<std::vector<Products>>& ours, const std::vector<Products>& grouped) const {
    std::puts(
        "| grouping | device ms | TFLOP/s | speed-up | paper | with launches ms | speed-up | padding | "
        "1 - n_min/n_max |");
    std::puts("|---|--:|--:|--:|--:|--:|--:|--:|--:|");
    Products base;
    int num_convs = 0;
    for (const ScanConvolution& conv : convs) num_convs += conv.count;
    const auto print = [&](const std::string& name, const std::string& speed_up_in_paper,
                           const std::vector<Products>& products) {
      Products sum;
      double true_macs = 0, weighted_spread = 0;
      for (size_t i = 0; i < convs.size(); ++i) {
        sum.device_us += products[i].device_us * convs[i].count;
        sum.launched_us += products[i].launched_us * convs[i].count;
        sum.macs += products[i].macs * convs[i].count;
        true_macs += TrueMacs(convs[i]) * convs[i].count;
        weighted_spread += products[i].spread * products[i].macs * convs[i].count;
      }
      if (base.device_us == 0) base = sum;
      std::printf("| %s | %.3f | %.1f | %.2fx | %s | %.3f | %.2fx | %.1f%% | %.1f%% |\n", name.c_str(),
                  sum.device_us * 1e-3, 2 * true_macs / sum.device_us * 1e-6, base.device_us / sum.device_us,
                  speed_up_in_paper.c_str(), sum.launched_us * 1e-3, base.launched_us / sum.launched_us,
                  100 * (1 - true_macs / sum.macs), 100 * weighted_spread / sum.macs);
    };
    for (size_t g = 0; g < Groupings().size(); ++g) {
      print(Groupings()[g].name, g < paper.size() ? absl::StrFormat("%.2fx", paper[g]) : "", ours[g]);
    }
    print(absl::StrFormat("cuBLAS's grouped GEMM; it refuses %d of %d convolutions, where separate products stand in",
                          num_stand_ins_, num_convs),
          "", grouped);
    std::puts("\nPadding is 1 - theoretical / actual FLOPs. 1 - n_min/n_max is the largest of a convolution's groups,");
    std::puts(
        "averaged over convolutions by their actual FLOPs. Adaptive grouping bounds 1 - n_min/n_max by epsilon: it");
    std::puts(
        "never falls as a group grows, as padding may, and a group's padding, 1 - n_mean/n_max, is never above it.");
    if (!paper.empty()) std::puts("The paper's speed-ups are those of TorchSparse on this data set, on another GPU.");
  }

  static void PrintLayers(const std::vector<ScanConvolution>& convs, const std::vector<std::vector<Products>>& ours,
                          const std::vector<Products>& grouped) {
    std::string header = "| first of | times | offsets | pairs | in | out |", rule = "|---|--:|--:|--:|--:|--:|";
    for (const NamedGrouping& named : Groupings()) {
      absl::StrAppendFormat(&header, " %s us |", named.name);
      rule += "--:|";
    }
    std::printf("\nThe device alone, us:\n\n%s grouped GEMM us |\n%s--:|\n", header.c_str(), rule.c_str());
    for (size_t i = 0; i < convs.size(); ++i) {
      const ScanConvolution& conv = convs[i];
      std::string row =
          absl::StrFormat("| %s | %d | %d | %d | %d | %d |", conv.layer.node, conv.count, conv.tables.num_offsets,
                          conv.num_pairs(), conv.layer.in_channels, conv.layer.out_channels);
      for (const std::vector<Products>& products : ours) {
        absl::StrAppendFormat(&row, " %.1f |", products[i].device_us);
      }
      std::printf("%s %.1f |\n", row.c_str(), grouped[i].device_us);
    }
  }

  const DeviceArray<char> workspace_;  // shared by both libraries' handles, since their work runs in turn
  std::unique_ptr<kernels::cuda::Gemm> gemm_;
  bool are_equal_ = true;
  int num_stand_ins_ = 0;            // of the current network: the number of convolutions that the grouped GEMM refuses
  cublasHandle_t cublas_ = nullptr;  // with the default math mode, which lets it choose among more kernels
};

int Main(int argc, char** argv) {
  const bool by_layer = argc == 2 && std::strcmp(argv[1], "layers") == 0;
  if (argc > 1 && !by_layer) {
    std::fprintf(stderr, "usage: %s [layers]\n", argv[0]);
    return 2;
  }
  if (!support::HasDevice(Device::kCuda)) {
    std::puts("skipped: no CUDA device here");
    return 0;
  }
  std::printf("%s, CUDA %s, medians of %d runs, batch 1, fp16\n", ListCudaDevices().front().name.c_str(),
              CudaVersion().c_str(), kNumRuns);
  Bench bench;
  for (const Workload& workload : Workloads()) bench.Run(workload, by_layer);
  return bench.are_equal() ? 0 : 1;
}

}  // namespace
}  // namespace voxserve::bench

int main(int argc, char** argv) { return voxserve::bench::Main(argc, argv); }
