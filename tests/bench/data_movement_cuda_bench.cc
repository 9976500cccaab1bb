// Times the data movement (gather and scatter) of MinkUNet 1.0x's submanifold convolutions on semantickitti-00/000000.
// It prints Table 3 of TorchSparse (Tang et al., MLSys 2022), measured with our own kernels: the speed-up of each
// variant over the first. Every variant's result is compared with ours before it is timed, and the program fails if
// they differ. The tables are Markdown.
//
// All variants move the same pairs. The identity offset (the kernel's centre, which maps each row to itself) has no
// gather. In the paper's dataflow the product of the identity offset is written into the output, and scatter adds the
// other offsets to it. Our scatter reads that product as one more pair, so it has more work.
//
// Convolutions run one by one on the same buffers. The buffers of small levels therefore stay in the second-level
// cache, as they do in the network.

#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "engine/runtime/cuda_devices.h"
#include "kernels/conv/pair_tables.h"
#include "tests/bench/event_timer.h"
#include "tests/bench/plain_data_movement.h"
#include "tests/bench/scan_convolutions.h"
#include "tests/support/test_device.h"

namespace voxserve::bench {
namespace {

using kernels::DType;
using kernels::OffsetShifts;
using support::Device;
using support::DeviceArray;
using support::ExpectCudaSuccess;

constexpr int kNumRuns = 20;

enum class Direction { kGather, kScatter };
constexpr std::array<const char*, 2> kDirectionNames = {"gather", "scatter"};

struct Variant {
  const char* name;
  DType dtype;
  bool is_ours;
  PlainMovement movement;       // not used if is_ours
  std::array<double, 3> paper;  // the paper's speed-ups of gather, scatter and both
};

// Speed-ups are relative to the first variant.
constexpr std::array<Variant, 5> kVariants = {{
    {"fp32, scalar, a launch per offset", DType::kFloat32, false, PlainMovement::kScalar, {1, 1, 1}},
    {"fp16, scalar, a launch per offset", DType::kFloat16, false, PlainMovement::kScalar, {1.17, 1.48, 1.32}},
    {"fp16, vectorized, a launch per offset", DType::kFloat16, false, PlainMovement::kVectorized, {1.91, 1.95, 1.93}},
    {"fp16, vectorized, fused", DType::kFloat16, false, PlainMovement::kFused, {1.91, 2.12, 2.02}},
    {"fp16, vectorized, fused, locality-aware (ours)", DType::kFloat16, true, {}, {2.86, 2.61, 2.72}},
}};

// One gather or scatter of the network.
struct Move {
  ScanConvolution conv;
  Direction direction = Direction::kGather;
  int32_t channels = 0;
  int count = 0;  // how often it occurs in the network
  std::array<GpuTimes, kVariants.size()> times;

  int64_t num_rows() const {
    return direction == Direction::kGather ? conv.tables.num_in_rows : conv.tables.num_out_rows;
  }
  // Returns the number of pairs that our kernel moves: all pairs in a scatter, all but the identity offset's in a
  // gather.
  int64_t num_moved_pairs() const {
    return direction == Direction::kGather ? conv.num_pairs() - conv.tables.num_out_rows : conv.num_pairs();
  }
  // Returns the bytes that our kernel has to read and write in fp16: each row and its mask once, and for each pair a
  // row of the dense buffer and the pair's number.
  double Bytes() const {
    const double row_bytes = 2.0 * channels;
    return static_cast<double>(num_rows()) * (row_bytes + 4) + static_cast<double>(num_moved_pairs()) * (row_bytes + 4);
  }
};

std::vector<Move> SubmanifoldMoves(const std::vector<ScanConvolution>& convs) {
  std::vector<Move> moves;
  for (const Direction direction : {Direction::kGather, Direction::kScatter}) {
    for (const ScanConvolution& conv : convs) {
      if (!conv.is_submanifold()) continue;
      const int32_t channels = direction == Direction::kGather ? conv.layer.in_channels : conv.layer.out_channels;
      const auto same = std::find_if(moves.begin(), moves.end(), [&](const Move& other) {
        return other.direction == direction && other.conv.layer.rulebook == conv.layer.rulebook &&
               other.channels == channels;
      });
      if (same != moves.end()) {
        same->count += conv.count;
      } else {
        moves.push_back({.conv = conv, .direction = direction, .channels = channels, .count = conv.count, .times = {}});
      }
    }
  }
  return moves;
}

// Lists of the input rows and output rows of a rulebook's pairs, which the plain variants read.
struct PairLists {
  explicit PairLists(const kernels::PairTablesView& tables)
      : in_rows(Device::kCuda, Rows(tables, tables.in_pairs, tables.in_capacity, tables.num_in_rows)),
        out_rows(Device::kCuda, Rows(tables, tables.out_pairs, tables.out_capacity, tables.num_out_rows)) {}

  static std::vector<int32_t> Rows(const kernels::PairTablesView& tables, const int32_t* device_pairs, int64_t capacity,
                                   int64_t num_rows) {
    std::vector<int32_t> pairs(static_cast<size_t>(tables.num_offsets * capacity));
    support::CopyFromDevice(Device::kCuda, pairs.data(), device_pairs, pairs.size() * sizeof(int32_t));
    std::vector<int32_t> rows(static_cast<size_t>(tables.offset_begin[tables.num_offsets]), -1);
    for (int64_t k = 0; k < tables.num_offsets; ++k) {
      for (int64_t row = 0; row < num_rows; ++row) {
        const int32_t pair = pairs[static_cast<size_t>(k * capacity + row)];
        if (pair >= 0) rows.at(static_cast<size_t>(pair)) = static_cast<int32_t>(row);
      }
    }
    if (std::find(rows.begin(), rows.end(), -1) != rows.end()) {
      std::fprintf(stderr, "a pair stands in no row of the tables\n");
      std::exit(1);
    }
    return rows;
  }

  DeviceArray<int32_t> in_rows;
  DeviceArray<int32_t> out_rows;
};

// Returns multiples of 1/8 from -4 to below 4. Sums of 27 such values are exact in fp16 in any order.
std::vector<char> ExactValues(DType dtype, int64_t count) {
  std::vector<char> bytes(static_cast<size_t>(count * SizeOf(dtype)));
  auto* const floats = reinterpret_cast<float*>(bytes.data());
  auto* const halves = reinterpret_cast<__half*>(bytes.data());
  std::array<__half, 64> half_of;
  for (size_t i = 0; i < half_of.size(); ++i) half_of[i] = __float2half(static_cast<float>(i) / 8 - 4);
  uint32_t state = 1;
  for (int64_t i = 0; i < count; ++i) {
    state = state * 1664525 + 1013904223;
    const uint32_t value = state >> 26;
    if (dtype == DType::kFloat32) {
      floats[i] = static_cast<float>(value) / 8 - 4;
    } else {
      halves[i] = half_of[value];
    }
  }
  return bytes;
}

class Bench {
 public:
  Bench() : convs_(/*width=*/1.0), moves_(SubmanifoldMoves(convs_.all())) {
    int64_t sparse_values = 0, dense_values = 0;
    for (const Move& move : moves_) {
      sparse_values = std::max(sparse_values, move.num_rows() * move.channels);
      dense_values = std::max(dense_values, move.conv.num_pairs() * move.channels);
      if (!lists_.contains(move.conv.layer.rulebook)) {
        lists_[move.conv.layer.rulebook] = std::make_unique<PairLists>(move.conv.tables);
      }
    }
    constexpr int64_t kMaxValueBytes = 4;
    for (Direction direction : {Direction::kGather, Direction::kScatter}) {
      const bool is_gather = direction == Direction::kGather;
      const auto from_values = is_gather ? sparse_values : dense_values;
      const auto to_values = is_gather ? dense_values : sparse_values;
      Buffers& buffers = buffers_[static_cast<size_t>(direction)];
      for (const DType dtype : {DType::kFloat32, DType::kFloat16}) {
        buffers.from[dtype] = std::make_unique<DeviceArray<char>>(Device::kCuda, ExactValues(dtype, from_values));
      }
      buffers.to = std::make_unique<DeviceArray<char>>(Device::kCuda, static_cast<size_t>(to_values * kMaxValueBytes));
    }
  }

  // Returns false if a variant's result differs from ours.
  bool Run() {
    for (Move& move : moves_) {
      std::map<DType, std::vector<char>> ours;
      for (const Variant& variant : kVariants) {
        if (ours.contains(variant.dtype)) continue;
        ours[variant.dtype] = ResultOf(move, {.name = "ours", .dtype = variant.dtype, .is_ours = true});
      }
      for (size_t v = 0; v < kVariants.size(); ++v) {
        const Variant& variant = kVariants[v];
        if (!variant.is_ours && ResultOf(move, variant) != ours[variant.dtype]) {
          std::fprintf(stderr, "%s: the %s of %s (%d channels) differs from ours\n", variant.name, NameOf(move),
                       move.conv.layer.node.c_str(), move.channels);
          return false;
        }
        move.times[v] = Time([&] { return Queue(move, variant); });
      }
    }
    return true;
  }

  void Print() const {
    const double copy_gbps = CopyGbps();
    std::printf("Copy on the device: %.0f GB/s (read and written).\n", copy_gbps);
    std::puts("\n### The device alone\n");
    PrintTable([](const GpuTimes& times) { return times.back_to_back_ms * 1e3; });
    std::puts("\n### With the host's launches, each convolution from an idle stream\n");
    PrintTable([](const GpuTimes& times) { return times.as_launched_ms * 1e3; });
    PrintNotes();
    std::puts("\n### Ours by layer, the device alone\n");
    std::puts("| movement | first of | times | rows | pairs | channels | us | GB/s | of a copy |");
    std::puts("|---|---|--:|--:|--:|--:|--:|--:|--:|");
    std::array<double, 2> bytes = {}, us = {};
    for (const Move& move : moves_) {
      const double move_us = move.times.back().back_to_back_ms * 1e3;
      bytes[static_cast<size_t>(move.direction)] += move.Bytes() * move.count;
      us[static_cast<size_t>(move.direction)] += move_us * move.count;
      std::printf("| %s | %s | %d | %lld | %lld | %d | %.1f | %s |\n", NameOf(move), move.conv.layer.node.c_str(),
                  move.count, static_cast<long long>(move.num_rows()), static_cast<long long>(move.num_moved_pairs()),
                  move.channels, move_us, Speed(move.Bytes(), move_us, copy_gbps).c_str());
    }
    for (size_t d = 0; d < kDirectionNames.size(); ++d) {
      std::printf("| %s | all | | | | | %.1f | %s |\n", kDirectionNames[d], us[d],
                  Speed(bytes[d], us[d], copy_gbps).c_str());
    }
    std::puts(
        "\nThe copy goes through the device's memory. What a movement finds in the second-level cache does not, so "
        "that it can pass 100% of the copy.");
  }

 private:
  struct Buffers {
    std::map<DType, std::unique_ptr<DeviceArray<char>>> from;
    std::unique_ptr<DeviceArray<char>> to;
  };

  static const char* NameOf(const Move& move) { return kDirectionNames[static_cast<size_t>(move.direction)]; }

  // launch() queues the work on the stream.
  template <typename Launch>
  static GpuTimes Time(const Launch& launch) {
    return TimeOnGpu(
        support::TestStream(), /*num_steps=*/0, [&](const MarkStep&) { ExpectCudaSuccess(launch()); }, kNumRuns);
  }

  static std::string Speed(double bytes, double us, double copy_gbps) {
    const double gbps = bytes / us * 1e-3;
    return absl::StrFormat("%.0f | %.0f%%", gbps, 100 * gbps / copy_gbps);
  }

  cudaError_t Queue(const Move& move, const Variant& variant) const {
    const kernels::PairTablesView& tables = move.conv.tables;
    const Buffers& buffers = buffers_[static_cast<size_t>(move.direction)];
    const bool is_gather = move.direction == Direction::kGather;
    const void* const from = buffers.from.at(variant.dtype)->data();
    if (!variant.is_ours) {
      const PairLists& lists = *lists_.at(move.conv.layer.rulebook);
      const PairListParams params{.num_offsets = tables.num_offsets,
                                  .offset_begin = tables.offset_begin,
                                  .identity_offset = tables.identity_offset,
                                  .rows = (is_gather ? lists.in_rows : lists.out_rows).data(),
                                  .dtype = variant.dtype,
                                  .channels = move.channels,
                                  .from = from,
                                  .to = buffers.to->data()};
      return is_gather ? PlainGather(params, variant.movement, support::TestStream())
                       : PlainScatter(params, variant.movement, support::TestStream());
    }
    OffsetShifts shifts;
    if (is_gather) {
      shifts.shift[tables.identity_offset] = OffsetShifts::kNotMoved;
      return kernels::cuda::GatherAllOffsets({.tables = tables,
                                              .shifts = shifts,
                                              .from = {.data = from,
                                                       .dtype = variant.dtype,
                                                       .channels = move.channels,
                                                       .pitch = move.channels,
                                                       .capacity = tables.num_in_rows},
                                              .to = buffers.to->data()},
                                             support::TestStream());
    }
    return kernels::cuda::ScatterAllOffsets({.tables = tables,
                                             .shifts = shifts,
                                             .dtype = variant.dtype,
                                             .from = from,
                                             .to = {.data = buffers.to->data(),
                                                    .dtype = variant.dtype,
                                                    .channels = move.channels,
                                                    .pitch = move.channels,
                                                    .capacity = tables.num_out_rows},
                                             .epilogue = {}},
                                            support::TestStream());
  }

  // Returns the contents of `to` after one movement. `to` is filled with zeros first; for a plain scatter, with the
  // products of the identity offset.
  std::vector<char> ResultOf(const Move& move, const Variant& variant) const {
    const Buffers& buffers = buffers_[static_cast<size_t>(move.direction)];
    const bool is_gather = move.direction == Direction::kGather;
    const int64_t row_bytes = move.channels * SizeOf(variant.dtype);
    const auto bytes = static_cast<size_t>((is_gather ? move.conv.num_pairs() : move.num_rows()) * row_bytes);
    const cudaStream_t stream = support::TestStream();
    if (is_gather || variant.is_ours) {
      ExpectCudaSuccess(cudaMemsetAsync(buffers.to->data(), 0, bytes, stream));
    } else {
      // The pairs of the identity offset are (row, row) in ascending order, so one copy places all its products.
      const int64_t identity_begin = move.conv.tables.offset_begin[move.conv.tables.identity_offset];
      ExpectCudaSuccess(cudaMemcpyAsync(buffers.to->data(),
                                        buffers.from.at(variant.dtype)->data() + identity_begin * row_bytes, bytes,
                                        cudaMemcpyDeviceToDevice, stream));
    }
    ExpectCudaSuccess(Queue(move, variant));
    std::vector<char> result(bytes);
    support::CopyFromDevice(Device::kCuda, result.data(), buffers.to->data(), bytes);
    return result;
  }

  static void PrintNotes() {
    int cache_bytes = 0;
    ExpectCudaSuccess(cudaDeviceGetAttribute(&cache_bytes, cudaDevAttrL2CacheSize, 0));
    std::printf("\nBuffers stay in the second-level cache (%d MiB) between repetitions, as far as they fit.\n",
                cache_bytes >> 20);
    std::puts(
        "Pair tables and masks, which the locality-aware variant needs, are made in the geometry pass; that is not in "
        "these times, nor is making the others' lists. The paper's columns are from another GPU.");
  }

  // Measures the speed of a copy that is much larger than the second-level cache.
  double CopyGbps() const {
    constexpr size_t kBytes = size_t{1} << 29;
    const DeviceArray<char> from(Device::kCuda, kBytes), to(Device::kCuda, kBytes);
    const GpuTimes times = Time([&] {
      return cudaMemcpyAsync(to.data(), from.data(), kBytes, cudaMemcpyDeviceToDevice, support::TestStream());
    });
    return 2.0 * kBytes / times.back_to_back_ms * 1e-6;
  }

  // Prints the times of each variant, summed over the network.
  template <typename TimeOf>
  void PrintTable(const TimeOf& time_of) const {
    std::puts("| variant | gather us | ratio | paper | scatter us | ratio | paper | both us | ratio | paper |");
    std::puts("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|");
    std::array<double, 3> base = {};
    for (size_t v = 0; v < kVariants.size(); ++v) {
      std::array<double, 3> us = {};
      for (const Move& move : moves_) us[static_cast<size_t>(move.direction)] += time_of(move.times[v]) * move.count;
      us[2] = us[0] + us[1];
      if (v == 0) base = us;
      std::string row = absl::StrFormat("| %s |", kVariants[v].name);
      for (size_t i = 0; i < us.size(); ++i) {
        absl::StrAppendFormat(&row, " %.0f | %.2f | %.2f |", us[i], base[i] / us[i], kVariants[v].paper[i]);
      }
      std::puts(row.c_str());
    }
  }

  const ScanConvolutions convs_;
  std::vector<Move> moves_;
  std::map<int, std::unique_ptr<PairLists>> lists_;  // by rulebook
  std::array<Buffers, 2> buffers_;                   // by direction
};

int Main() {
  if (!support::HasDevice(Device::kCuda)) {
    std::puts("skipped: no CUDA device here");
    return 0;
  }
  std::printf("%s, CUDA %s, medians of %d runs, MinkUNet 1.0x, semantickitti-00/000000, 5 cm, batch 1\n\n",
              ListCudaDevices().front().name.c_str(), CudaVersion().c_str(), kNumRuns);
  Bench bench;
  if (!bench.Run()) return 1;
  bench.Print();
  return 0;
}

}  // namespace
}  // namespace voxserve::bench

int main() { return voxserve::bench::Main(); }
