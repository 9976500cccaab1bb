#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "kernels/core/floats.h"
#include "kernels/core/scratch.h"
#include "kernels/int8/int8_dispatch.h"

namespace voxserve::kernels::cpu {
namespace {

// The part of a core's L2 cache that the sums of a block may fill.
constexpr int64_t kBlockBytes = 128 << 10;
constexpr int32_t kMinBlockRows = 64;
constexpr int32_t kMaxBlockRows = 1024;

const Int8Isa& FastestIsa() { return *SupportedInt8Isas().front(); }

int32_t NumVectors(const Int8Isa& isa, int32_t channels) { return (channels + isa.lanes - 1) / isa.lanes; }

int64_t WordsOf(const Int8Isa& isa, int32_t in_channels) {
  return (in_channels + isa.inputs_of_step - 1) / isa.inputs_of_step * (isa.inputs_of_step / isa.inputs_of_word);
}

// Returns the bytes of an offset's panels, with the vectors that are subtracted, in whole lines.
int64_t BytesOfOffset(const Int8Isa& isa, int32_t in_channels, int32_t out_channels) {
  const int64_t bytes = (1 + WordsOf(isa, in_channels)) * NumVectors(isa, out_channels) * isa.lanes * 4;
  constexpr int64_t kLine = sizeof(Int8Line);
  return (bytes + kLine - 1) / kLine * kLine;
}

int32_t BlockRows(int32_t out_channels) {
  const int64_t rows = kBlockBytes / (PaddedInt8Channels(out_channels) * int64_t{sizeof(int32_t)});
  return std::clamp(static_cast<int32_t>(rows / kRulebookTileRows * kRulebookTileRows), kMinBlockRows, kMaxBlockRows);
}

void ActivateFloats(const void* activation, float* row, int32_t channels) {
  ActivateRow(*static_cast<const Activation*>(activation), row, channels);
}

// The sums of blocks, one after the other.
class BlockSums {
 public:
  BlockSums(const Int8Isa& isa, int32_t channels, int64_t max_rows, std::pmr::memory_resource* memory)
      : isa_(isa), pitch_(NumVectors(isa, channels) * isa.lanes), lines_(memory) {
    const int64_t bytes = max_rows * pitch_ * int64_t{sizeof(int32_t)};
    lines_.resize(static_cast<size_t>((bytes + int64_t{sizeof(Int8Line)} - 1) / int64_t{sizeof(Int8Line)}));
  }

  int32_t* sums() { return reinterpret_cast<int32_t*>(lines_.data()); }
  void Clear(int64_t rows) { std::memset(sums(), 0, static_cast<size_t>(rows * pitch_) * sizeof(int32_t)); }

  // Writes rows [begin, begin + num_rows) of out.
  void Finish(const Int8Epilogue& epilogue, const Rows& out, int64_t begin, int64_t num_rows) {
    const bool has_relu = epilogue.activation == Activation(ActivationFunction::kRelu);
    const bool has_other = !has_relu && epilogue.activation.function != ActivationFunction::kNone;
    isa_.finish({.num_rows = num_rows,
                 .channels = out.channels,
                 .sums = sums(),
                 .sums_pitch = pitch_,
                 .multiplier = epilogue.multiplier,
                 .bias = epilogue.bias,
                 .residual = ValuesOf(epilogue.residual, begin),
                 .residual_scale = epilogue.residual_scale,
                 .has_relu = has_relu,
                 .activate = has_other ? &ActivateFloats : nullptr,
                 .activation = &epilogue.activation,
                 .inverse_scale = epilogue.inverse_scale,
                 .out = ValuesOf(out, begin)});
  }

 private:
  const Int8Isa& isa_;
  const int32_t pitch_;
  ScratchVector<Int8Line> lines_;
};

// Returns the bytes of all lines from this one on.
const uint8_t* BytesOf(const Int8Line* lines) { return reinterpret_cast<const uint8_t*>(lines); }

// Returns 0, 1, ... num_rows - 1.
std::vector<int32_t> FirstRows(int64_t num_rows) {
  std::vector<int32_t> rows(static_cast<size_t>(num_rows));
  std::iota(rows.begin(), rows.end(), 0);
  return rows;
}

// Adds the products of rows [begin, begin + num_rows) with one matrix to a block's sums, row by row. every_row: of
// FirstRows, at least num_rows.
void AccumulateRows(const Int8Isa& isa, const ConstRows& in, int64_t begin, int64_t num_rows,
                    const std::vector<int32_t>& every_row, const Int8Line* weights, int32_t out_channels,
                    int32_t* sums) {
  isa.accumulate({.num_pairs = num_rows,
                  .in_rows = every_row.data(),
                  .out_rows = every_row.data(),
                  .in = static_cast<const uint8_t*>(in.data) + begin * in.pitch,
                  .is_signed = in.dtype == DType::kInt8,
                  .in_pitch = in.pitch,
                  .in_channels = in.channels,
                  .weights = BytesOf(weights),
                  .sums = sums,
                  .first_out_row = 0,
                  .num_vectors = NumVectors(isa, out_channels)});
}

// The input places along one axis of an image: [cells, output places], -1 for a place outside of the input.
std::vector<int32_t> InputPlaces(const Conv2dGeometry& geometry, size_t axis, int32_t in_size, int32_t out_size) {
  std::vector<int32_t> places;
  for (int32_t cell = 0; cell < geometry.kernel_size[axis]; ++cell) {
    for (int32_t out = 0; out < out_size; ++out) {
      int32_t in = out * geometry.stride[axis] - geometry.padding[axis] + geometry.dilation[axis] * cell;
      if (geometry.is_transposed) {
        const int32_t moved = out + geometry.padding[axis] - cell;
        in = moved % geometry.stride[axis] == 0 ? moved / geometry.stride[axis] : -1;
      }
      places.push_back(in >= 0 && in < in_size ? in : -1);
    }
  }
  return places;
}

// The pairs of one cell of an image's kernel whose output positions are in one block.
struct ImagePairs {
  ScratchVector<int32_t> in_rows, out_rows;  // out_rows count from the block's first position
  int64_t size = 0;

  ImagePairs(int64_t capacity, std::pmr::memory_resource* memory) : in_rows(memory), out_rows(memory) {
    in_rows.resize(static_cast<size_t>(capacity));
    out_rows.resize(static_cast<size_t>(capacity));
  }
  void Add(int64_t in_row, int64_t out_row) {
    in_rows[static_cast<size_t>(size)] = static_cast<int32_t>(in_row);
    out_rows[static_cast<size_t>(size++)] = static_cast<int32_t>(out_row);
  }
};

#if defined(__x86_64__)
// Returns true if the processor has tiles for numbers of 8 bits and Linux lets this process use them. Linux must be
// asked, since a thread's state then takes 8 KiB more (kernel.org, "Using XSTATE features in user space applications").
bool MayUseAmx() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  constexpr unsigned kAmxTile = 1u << 24, kAmxInt8 = 1u << 25;
  if ((edx & kAmxTile) == 0 || (edx & kAmxInt8) == 0) return false;
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#endif

}  // namespace

const std::vector<const Int8Isa*>& SupportedInt8Isas() {
  static const std::vector<const Int8Isa*> kSupported = [] {
    std::vector<const Int8Isa*> isas;
#if defined(__x86_64__)
    const bool has_vnni = __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw");
    if (has_vnni) isas.push_back(&vnni::kInt8Isa);
    if (has_vnni && MayUseAmx()) isas.push_back(&amx::kInt8Isa);  // second, until it was timed beside VNNI
    if (__builtin_cpu_supports("avx2")) isas.push_back(&avx2::kInt8Isa);
#endif
    isas.push_back(&baseline::kInt8Isa);
    return isas;
  }();
  return kSupported;
}

const char* Int8InstructionSet() { return FastestIsa().name; }

std::vector<Int8Line> PackInt8Weights(const int8_t* weights, int32_t num_offsets, int32_t in_channels,
                                      int32_t out_channels) {
  return PackInt8Weights(FastestIsa(), weights, num_offsets, in_channels, out_channels);
}
void Int8Conv(const Int8ConvParams& params, ThreadPool& pool, std::pmr::memory_resource* memory) {
  Int8Conv(FastestIsa(), params, pool, memory);
}
void Int8Linear(const Int8LinearParams& params, ThreadPool& pool, std::pmr::memory_resource* memory) {
  Int8Linear(FastestIsa(), params, pool, memory);
}

void Int8Conv2d(const Int8Conv2dParams& params, ThreadPool& pool, std::pmr::memory_resource* memory) {
  Int8Conv2d(FastestIsa(), params, pool, memory);
}

std::vector<Int8Line> PackInt8Weights(const Int8Isa& isa, const int8_t* weights, int32_t num_offsets,
                                      int32_t in_channels, int32_t out_channels) {
  const int64_t bytes_of_offset = BytesOfOffset(isa, in_channels, out_channels);
  std::vector<Int8Line> packed(static_cast<size_t>(num_offsets * bytes_of_offset) / sizeof(Int8Line), Int8Line{});
  const int64_t words = WordsOf(isa, in_channels);
  for (int32_t k = 0; k < num_offsets; ++k) {
    uint8_t* panel = reinterpret_cast<uint8_t*>(packed.data()) + k * bytes_of_offset;
    const auto weight = [&](int64_t i, int64_t column) -> int8_t {
      if (i >= in_channels || column >= out_channels) return 0;
      return weights[(int64_t{k} * in_channels + i) * out_channels + column];
    };
    int64_t first = 0;
    for (int32_t left = NumVectors(isa, out_channels); left > 0;) {
      const int32_t vectors = VectorsOfPanel(left, isa.max_vectors);
      const int64_t width = int64_t{vectors} * isa.lanes;
      for (int64_t column = 0; column < width; ++column) {
        int32_t sum = 0;
        for (int64_t i = 0; i < in_channels; ++i) sum += weight(i, first + column);
        const int32_t subtracted = isa.adds_128 ? 128 * sum : 0;
        std::memcpy(panel + column * 4, &subtracted, 4);
        for (int64_t word = 0; word < words; ++word) {
          uint8_t* const to = panel + ((1 + word) * width + column) * 4;
          for (int32_t j = 0; j < isa.inputs_of_word; ++j) {
            const int8_t value = weight(word * isa.inputs_of_word + j, first + column);
            if (isa.inputs_of_word == 4) {
              to[j] = static_cast<uint8_t>(value);
            } else {
              const int16_t wide = value;
              std::memcpy(to + j * 2, &wide, 2);
            }
          }
        }
      }
      panel += (1 + words) * width * 4;
      first += width;
      left -= vectors;
    }
  }
  return packed;
}

void Int8Conv(const Int8Isa& isa, const Int8ConvParams& params, ThreadPool& pool, std::pmr::memory_resource* memory) {
  const RulebookView& rulebook = params.rulebook;
  const ConstRows& in = params.in;
  const Rows& out = params.out;
  const int32_t block_rows = params.block_rows > 0 ? params.block_rows : BlockRows(out.channels);
  const int64_t tiles_per_block = std::max<int64_t>(1, block_rows / kRulebookTileRows);
  const int64_t bytes_of_offset = BytesOfOffset(isa, in.channels, out.channels);
  const std::vector<int32_t> every_row =
      FirstRows(params.shortcut_in.data == nullptr ? 0 : tiles_per_block * kRulebookTileRows);
  pool.ParallelFor(rulebook.num_tiles(), tiles_per_block, [&](int64_t tile_begin, int64_t tile_end) {
    const int64_t row_begin = tile_begin * kRulebookTileRows;
    const int64_t num_rows = std::min(tile_end * kRulebookTileRows, rulebook.num_out_rows) - row_begin;
    BlockSums block(isa, out.channels, num_rows, memory);
    block.Clear(num_rows);
    const int64_t* first = rulebook.tile_begin + tile_begin * rulebook.num_offsets;
    const int64_t* last = rulebook.tile_begin + tile_end * rulebook.num_offsets;
    for (int32_t k = 0; k < rulebook.num_offsets; ++k) {
      if (first[k] == last[k]) continue;
      isa.accumulate({.num_pairs = last[k] - first[k],
                      .in_rows = rulebook.in_rows + first[k],
                      .out_rows = rulebook.out_rows + first[k],
                      .in = static_cast<const uint8_t*>(in.data),
                      .is_signed = in.dtype == DType::kInt8,
                      .in_pitch = in.pitch,
                      .in_channels = in.channels,
                      .weights = BytesOf(params.weights) + k * bytes_of_offset,
                      .sums = block.sums(),
                      .first_out_row = static_cast<int32_t>(row_begin),
                      .num_vectors = NumVectors(isa, out.channels)});
    }
    if (params.shortcut_in.data != nullptr) {
      AccumulateRows(isa, params.shortcut_in, row_begin, num_rows, every_row, params.shortcut_weights, out.channels,
                     block.sums());
    }
    block.Finish(params.epilogue, out, row_begin, num_rows);
  });
}

void Int8Linear(const Int8Isa& isa, const Int8LinearParams& params, ThreadPool& pool,
                std::pmr::memory_resource* memory) {
  const Rows& out = params.out;
  const int64_t block_rows = BlockRows(out.channels);
  const std::vector<int32_t> every_row = FirstRows(block_rows);
  pool.ParallelFor(out.capacity, block_rows, [&](int64_t begin, int64_t end) {
    BlockSums block(isa, out.channels, end - begin, memory);
    block.Clear(end - begin);
    AccumulateRows(isa, params.in, begin, end - begin, every_row, params.weights, out.channels, block.sums());
    block.Finish(params.epilogue, out, begin, end - begin);
  });
}

void Int8Conv2d(const Int8Isa& isa, const Int8Conv2dParams& params, ThreadPool& pool,
                std::pmr::memory_resource* memory) {
  const ConstRows& in = params.in;
  const Rows& out = params.out;
  const Conv2dGeometry& geometry = params.geometry;
  const int64_t out_rows = geometry.OutSize(0, params.in_rows), out_columns = geometry.OutSize(1, params.in_columns);
  if (out_rows <= 0 || out_columns <= 0) return;
  const std::vector<int32_t> row_of = InputPlaces(geometry, 0, params.in_rows, static_cast<int32_t>(out_rows));
  const std::vector<int32_t> column_of = InputPlaces(geometry, 1, params.in_columns, static_cast<int32_t>(out_columns));
  const int64_t bytes_of_offset = BytesOfOffset(isa, in.channels, out.channels);
  pool.ParallelFor(params.num_images * out_rows * out_columns, BlockRows(out.channels),
                   [&](int64_t begin, int64_t end) {
                     BlockSums block(isa, out.channels, end - begin, memory);
                     block.Clear(end - begin);
                     ImagePairs pairs(end - begin, memory);
                     for (int32_t cell = 0; cell < geometry.kernel_size[0] * geometry.kernel_size[1]; ++cell) {
                       const int32_t* const rows = row_of.data() + cell / geometry.kernel_size[1] * out_rows;
                       const int32_t* const columns = column_of.data() + cell % geometry.kernel_size[1] * out_columns;
                       pairs.size = 0;
                       // Goes through the block's positions, one row of an image after the other.
                       for (int64_t position = begin; position < end;) {
                         const int64_t row = position / out_columns, first = position % out_columns;
                         const int64_t last = std::min(out_columns, first + end - position);
                         const int32_t in_row = rows[row % out_rows];
                         const int64_t in_begin = (row / out_rows * params.in_rows + in_row) * params.in_columns;
                         for (int64_t column = first; in_row >= 0 && column < last; ++column) {
                           if (columns[column] >= 0)
                             pairs.Add(in_begin + columns[column], position - begin + column - first);
                         }
                         position += last - first;
                       }
                       if (pairs.size == 0) continue;
                       isa.accumulate({.num_pairs = pairs.size,
                                       .in_rows = pairs.in_rows.data(),
                                       .out_rows = pairs.out_rows.data(),
                                       .in = static_cast<const uint8_t*>(in.data),
                                       .is_signed = in.dtype == DType::kInt8,
                                       .in_pitch = in.pitch,
                                       .in_channels = in.channels,
                                       .weights = BytesOf(params.weights) + cell * bytes_of_offset,
                                       .sums = block.sums(),
                                       .first_out_row = 0,
                                       .num_vectors = NumVectors(isa, out.channels)});
                     }
                     block.Finish(params.epilogue, out, begin, end - begin);
                   });
}

}  // namespace voxserve::kernels::cpu

namespace voxserve::kernels {
namespace {

// The scales that are tried for an output channel: its largest weight / 127, and less in steps, so that the largest
// weights are clipped and all others rounded less.
constexpr int kNumClips = 11;
constexpr float kClipStep = 0.025f;

std::vector<float> LargestOf(const std::vector<float>& weights, size_t channels) {
  std::vector<float> largest(channels, 0.0f);
  for (size_t i = 0; i < weights.size(); ++i) {
    largest[i % channels] = std::max(largest[i % channels], std::fabs(weights[i]));
  }
  return largest;
}

// Returns a weight in units of a scale, rounded and limited to -127 to 127; 0 if that is no number.
float WholeNumber(float weight, float scale) {
  const float units = weight / scale;
  return units == units ? RoundHalfEven(std::min(std::max(units, -127.0f), 127.0f)) : 0.0f;
}

}  // namespace

QuantisedWeights QuantiseWeights(const std::vector<float>& weights, int32_t out_channels) {
  const auto channels = static_cast<size_t>(out_channels);
  const std::vector<float> largest = LargestOf(weights, channels);
  // The scales with the least error so far, and their errors.
  std::vector<float> scale(channels), error(channels, std::numeric_limits<float>::infinity());
  std::vector<float> tried(channels), error_of_tried(channels);
  for (int step = 0; step < kNumClips; ++step) {
    for (size_t c = 0; c < channels; ++c) tried[c] = largest[c] / 127.0f * (1 - kClipStep * static_cast<float>(step));
    std::fill(error_of_tried.begin(), error_of_tried.end(), 0.0f);
    for (size_t begin = 0; begin < weights.size(); begin += channels) {
      for (size_t c = 0; c < channels; ++c) {
        const float weight = weights[begin + c];
        const float difference = weight - WholeNumber(weight, tried[c]) * tried[c];
        error_of_tried[c] += difference * difference;
      }
    }
    for (size_t c = 0; c < channels; ++c) {
      if (error_of_tried[c] >= error[c]) continue;
      error[c] = error_of_tried[c];
      scale[c] = tried[c];
    }
  }
  QuantisedWeights quantised{.values = std::vector<int8_t>(weights.size()), .scale = std::move(scale)};
  for (size_t i = 0; i < weights.size(); ++i) {
    quantised.values[i] = static_cast<int8_t>(WholeNumber(weights[i], quantised.scale[i % channels]));
  }
  return quantised;
}

}  // namespace voxserve::kernels
