#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/coordinates/compact_key.h"
#include "kernels/coordinates/coordinate_key.h"
#include "kernels/coordinates/floor_division.h"
#include "kernels/coordinates/output_coordinates.h"
#include "kernels/core/chunks.h"
#include "kernels/core/radix_sort.h"

namespace voxserve::kernels {
namespace {

constexpr int64_t kKeysAChunk = 4096;

}  // namespace

bool OutputsAreQuotients(const OutputCoordinatesParams& params) {
  return params.rule == CoordinateRule::kFloor ||
         (params.rule == CoordinateRule::kExpand && params.geometry.StrideIsOneOrKernel());
}

int64_t CandidatesAnAxis(const ConvGeometry& geometry, int axis) {
  const int64_t step = geometry.stride[axis] / std::gcd(geometry.stride[axis], geometry.dilation[axis]);
  return (geometry.kernel_size[axis] + step - 1) / step;
}

Axes OutputShape(const ConvGeometry& geometry, const Axes& shape) {
  Axes out = {0, 0, 0, 0};
  for (int axis = 0; axis < geometry.dimension; ++axis) {
    const int64_t room = int64_t{shape[axis]} + 2 * int64_t{geometry.padding[axis]} -
                         int64_t{geometry.dilation[axis]} * (geometry.kernel_size[axis] - 1) - 1;
    out[axis] = room < 0 ? 0 : static_cast<int32_t>(room / geometry.stride[axis] + 1);
  }
  return out;
}

std::array<int64_t, kMaxDimension> TransposedShape(const ConvGeometry& geometry, const Axes& shape,
                                                   const Axes& output_padding) {
  std::array<int64_t, kMaxDimension> out = {1, 1, 1, 1};
  for (int axis = 0; axis < geometry.dimension; ++axis) {
    out[axis] = (int64_t{shape[axis]} - 1) * geometry.stride[axis] - 2 * int64_t{geometry.padding[axis]} +
                int64_t{geometry.dilation[axis]} * (geometry.kernel_size[axis] - 1) + 1 + output_padding[axis];
  }
  return out;
}

Axes OutputExtent(const OutputCoordinatesParams& params) {
  if (HasShape(params.rule)) return params.out_shape;
  if (params.rule == CoordinateRule::kGenerative) return {};
  const bool are_quotients = OutputsAreQuotients(params);
  Axes extent = {0, 0, 0, 0};
  for (int axis = 0; axis < params.geometry.dimension; ++axis) {
    const int64_t stride = params.geometry.stride[axis], in_extent = params.in_extent[axis];
    int64_t end = std::numeric_limits<int64_t>::max();  // in units of the input's sites
    if (in_extent > 0) end = in_extent + (are_quotients ? 0 : params.geometry.padding[axis]);
    if (!are_quotients) {
      if (params.has_upper) end = std::min(end, int64_t{params.upper[axis]} + 1);
      const bool may_be_below_0 = params.has_lower ? params.lower[axis] <= -stride : in_extent <= 0;
      if (may_be_below_0) return {};
    }
    const int64_t sites = end < 1 ? 0 : (end - 1) / stride + 1;
    if (sites < 1 || sites > std::numeric_limits<int32_t>::max()) return {};
    extent[axis] = static_cast<int32_t>(sites);
  }
  return extent;
}

int64_t NumOutputCandidates(const OutputCoordinatesParams& params) {
  int64_t num = params.num_in;
  if (OutputsAreQuotients(params)) return num;
  if (MakesFinerSites(params.rule)) return num * params.geometry.NumOffsets();
  for (int axis = 0; axis < params.geometry.dimension; ++axis) num *= CandidatesAnAxis(params.geometry, axis);
  return num;
}

int64_t OutputCoordinatesCapacity(const OutputCoordinatesParams& params) {
  const int64_t candidates = std::min(NumOutputCandidates(params), params.most_outputs);
  if (!HasShape(params.rule)) return candidates;
  int64_t volume = params.num_samples;
  for (int axis = 0; axis < params.geometry.dimension && volume < candidates; ++axis) {
    volume *= std::max(params.out_shape[axis], 0);
    if (volume == 0) return 0;
  }
  return std::min(candidates, volume);
}

OutputReach OutputReach::Then(const OutputCoordinatesParams& rule) const {
  constexpr int64_t kFar = int64_t{1} << 40;  // beyond all coordinates
  OutputReach reach = *this;
  for (int axis = 0; axis < rule.geometry.dimension; ++axis) {
    const int64_t stride = rule.geometry.stride[axis];
    const int64_t extent = OutputsAreQuotients(rule)
                               ? stride
                               : int64_t{rule.geometry.dilation[axis]} * (rule.geometry.kernel_size[axis] - 1) + 1;
    if (is_far_) return reach;
    reach.extent_[axis] = extent_[axis] + stride_[axis] * (extent - 1);
    reach.stride_[axis] = stride_[axis] * stride;
    reach.is_far_ |= reach.extent_[axis] > kFar || reach.stride_[axis] > kFar;
  }
  return reach;
}

int64_t OutputReach::OutputsAnInput() const {
  if (is_far_) return std::numeric_limits<int64_t>::max();
  int64_t num = 1;
  for (size_t axis = 0; axis < extent_.size(); ++axis) {
    const int64_t of_axis = (extent_[axis] + stride_[axis] - 1) / stride_[axis];
    if (__builtin_mul_overflow(num, of_axis, &num)) return std::numeric_limits<int64_t>::max();
  }
  return num;
}

size_t OutputCoordinatesWorkspaceBytes(const OutputCoordinatesParams& params) {
  return 2 * static_cast<size_t>(NumOutputCandidates(params)) * sizeof(uint64_t);
}

namespace cpu {
namespace {

// The smallest and largest coordinate per axis.
struct Bounds {
  Axes min;
  Axes max;
};

// Returns the bounds of every sample's inputs; min > max for a sample without inputs.
std::vector<Bounds> SampleBounds(const OutputCoordinatesParams& params, const CoordinateKey& layout, ThreadPool& pool) {
  Bounds none;
  none.min.fill(std::numeric_limits<int32_t>::max());
  none.max.fill(std::numeric_limits<int32_t>::min());
  const auto num_samples = static_cast<size_t>(params.num_samples);
  const Chunks chunks(params.num_in, kKeysAChunk, pool);
  std::vector<Bounds> bounds(num_samples * static_cast<size_t>(std::max<int64_t>(1, chunks.num_chunks())), none);
  const auto widen = [&](Bounds& all, const Bounds& one) {
    for (int axis = 0; axis < layout.dimension(); ++axis) {
      all.min[axis] = std::min(all.min[axis], one.min[axis]);
      all.max[axis] = std::max(all.max[axis], one.max[axis]);
    }
  };
  chunks.ForEach(pool, [&](int64_t chunk, int64_t begin, int64_t end) {
    Bounds* here = bounds.data() + static_cast<size_t>(chunk) * num_samples;
    for (int64_t row = begin; row < end; ++row) {
      const Axes coordinate = layout.Unpack(params.in_keys[row]);
      widen(here[layout.Sample(params.in_keys[row])], {coordinate, coordinate});
    }
  });
  for (size_t i = num_samples; i < bounds.size(); ++i) widen(bounds[i % num_samples], bounds[i]);
  bounds.resize(num_samples);
  return bounds;
}

// The allowed range of one sample's outputs on one axis: by the rule alone, and by the rule and the key's limits.
struct Window {
  int64_t first;
  int64_t last;
  int64_t first_in_limits;
  int64_t last_in_limits;
};

// Makes candidate outputs from inputs, axis by axis.
class CandidateMaker {
 public:
  CandidateMaker(const OutputCoordinatesParams& params, const CoordinateKey& layout,
                 const std::vector<Bounds>& in_bounds)
      : params_(params),
        layout_(layout),
        divides_only_(OutputsAreQuotients(params)),
        is_transposed_(MakesFinerSites(params.rule)),
        compact_(layout, {}, {}, 1) {
    Axes min = {0, 0, 0, 0}, max = {0, 0, 0, 0};
    for (int axis = 0; axis < layout.dimension(); ++axis) {
      division_[axis] = FloorDivision(params.geometry.stride[axis]);
      int64_t in_min = std::numeric_limits<int32_t>::max();
      int64_t in_max = std::numeric_limits<int32_t>::min();
      for (const Bounds& bounds : in_bounds) {
        in_min = std::min<int64_t>(in_min, bounds.min[axis]);
        in_max = std::max<int64_t>(in_max, bounds.max[axis]);
      }
      if (in_min > in_max) continue;  // no input at all
      const int64_t first_delta = params.geometry.DeltaOnAxis(axis, 0);
      const int64_t last_delta = params.geometry.DeltaOnAxis(axis, params.geometry.kernel_size[axis] - 1);
      if (is_transposed_) {
        const int64_t stride = params.geometry.stride[axis];
        const int64_t lowest = layout.min_coordinate(), highest = layout.max_coordinate();
        min[axis] = static_cast<int32_t>(std::clamp(in_min * stride + first_delta, lowest, highest));
        max[axis] = static_cast<int32_t>(std::clamp(in_max * stride + last_delta, lowest, highest));
        continue;
      }
      if (!divides_only_) {
        in_min -= last_delta;
        in_max -= first_delta;
      }
      min[axis] = static_cast<int32_t>(std::max<int64_t>(Divide(axis, in_min), layout.min_coordinate()));
      max[axis] = static_cast<int32_t>(std::min<int64_t>(Divide(axis, in_max), layout.max_coordinate()));
    }
    compact_ = CompactKey(layout, min, max, params.num_samples);
    if (!divides_only_) MakeWindows(in_bounds);
    if (!is_transposed_) return;
    for (int32_t k = 0; k < params.geometry.NumOffsets(); ++k) deltas_.push_back(params.geometry.Delta(k));
  }

  const CompactKey& compact() const { return compact_; }

  // Writes the candidates of input rows [begin, end) to `out` as compact keys, and returns the end. If outputs are
  // quotients, a candidate that equals the previous one is left out. Adds to each sample's num_beyond_limits the number
  // of candidates that a key cannot hold.
  uint64_t* Make(int64_t begin, int64_t end, uint64_t* out, int64_t* num_beyond_limits) const {
    const uint64_t* const first = out;
    for (int64_t row = begin; row < end; ++row) {
      const uint64_t key = params_.in_keys[row];
      if (divides_only_) {
        uint64_t compact = compact_.PackSample(layout_.Sample(key));
        for (int axis = 0; axis < layout_.dimension(); ++axis) {
          compact |= compact_.PackAxis(axis, division_[axis].Quotient(layout_.Coordinate(key, axis)));
        }
        if (out == first || out[-1] != compact) *out++ = compact;
      } else if (is_transposed_) {
        out = Transpose(key, out, num_beyond_limits);
      } else {
        out = Expand(key, out, num_beyond_limits);
      }
    }
    return out;
  }

 private:
  // Clamps the value to int32 before the division, since a bound may lie outside of it.
  int64_t Divide(int axis, int64_t value) const {
    constexpr int64_t kMin = std::numeric_limits<int32_t>::min(), kMax = std::numeric_limits<int32_t>::max();
    return division_[axis].Quotient(static_cast<int32_t>(std::clamp(value, kMin, kMax)));
  }

  void MakeWindows(const std::vector<Bounds>& in_bounds) {
    windows_.resize(in_bounds.size());
    for (size_t sample = 0; sample < in_bounds.size(); ++sample) {
      for (int axis = 0; axis < layout_.dimension(); ++axis) {
        Window& window = windows_[sample][static_cast<size_t>(axis)];
        if (HasShape(params_.rule)) {
          window.first = 0;
          window.last = int64_t{params_.out_shape[axis]} - 1;
        } else if (params_.rule == CoordinateRule::kGenerative) {
          window.first = std::numeric_limits<int64_t>::min();
          window.last = std::numeric_limits<int64_t>::max();
        } else {
          const int64_t lower = params_.has_lower ? params_.lower[axis] : in_bounds[sample].min[axis];
          window.first = Divide(axis, lower + params_.geometry.stride[axis] - 1);  // rounds up
          window.last = params_.has_upper ? Divide(axis, params_.upper[axis]) : std::numeric_limits<int32_t>::max();
        }
        window.first_in_limits = std::max<int64_t>(window.first, layout_.min_coordinate());
        window.last_in_limits = std::min<int64_t>(window.last, layout_.max_coordinate());
      }
    }
  }

  // The number of candidates of an input on one axis, and how many of them a key can hold.
  struct AxisCandidates {
    int64_t num_all = 0;
    int64_t num_packed = 0;
  };

  // Packs the candidates that a key can hold, ascending.
  AxisCandidates PackCandidates(const Window& window, int axis, int32_t coordinate, uint64_t* packed) const {
    const ConvGeometry& geometry = params_.geometry;
    const int64_t stride = geometry.stride[axis];
    AxisCandidates candidates;
    for (int32_t cell = geometry.kernel_size[axis] - 1; cell >= 0; --cell) {
      const int64_t at = int64_t{coordinate} - geometry.DeltaOnAxis(axis, cell);
      const int64_t site = Divide(axis, at);
      if (site * stride != at || site < window.first || site > window.last) continue;
      ++candidates.num_all;
      if (site < window.first_in_limits || site > window.last_in_limits) continue;
      packed[candidates.num_packed++] = compact_.PackAxis(axis, site);
    }
    return candidates;
  }

  // Writes all combinations of the axes' candidates to `out`, in ascending order; returns the end.
  uint64_t* Expand(uint64_t key, uint64_t* out, int64_t* num_beyond_limits) const {
    const int32_t sample = layout_.Sample(key);
    std::array<uint64_t, 2 * kCoordinateMargin + 1> packed;
    int64_t num_all = 1;
    int64_t count = 1;
    out[0] = compact_.PackSample(sample);
    for (int axis = 0; axis < layout_.dimension() && num_all > 0; ++axis) {
      const Window& window = windows_[static_cast<size_t>(sample)][static_cast<size_t>(axis)];
      const AxisCandidates candidates = PackCandidates(window, axis, layout_.Coordinate(key, axis), packed.data());
      const int64_t factor = candidates.num_packed;
      // Works in place from the back, so that a value is read before it is overwritten.
      for (int64_t i = count - 1; i >= 0; --i) {
        const uint64_t prefix = out[i];
        for (int64_t j = factor - 1; j >= 0; --j) out[i * factor + j] = prefix | packed[static_cast<size_t>(j)];
      }
      count *= factor;
      num_all *= candidates.num_all;
    }
    num_beyond_limits[sample] += num_all - count;
    return out + count;
  }

  // Writes a candidate for every cell whose site the rule allows and a key can hold to `out`; returns the end.
  uint64_t* Transpose(uint64_t key, uint64_t* out, int64_t* num_beyond_limits) const {
    const int32_t sample = layout_.Sample(key);
    const std::array<Window, kMaxDimension>& windows = windows_[static_cast<size_t>(sample)];
    const Axes coordinate = layout_.Unpack(key);
    for (const Axes& delta : deltas_) {
      uint64_t compact = compact_.PackSample(sample);
      bool exists = true;
      bool is_in_limits = true;
      for (int axis = 0; axis < layout_.dimension(); ++axis) {
        const Window& window = windows[static_cast<size_t>(axis)];
        const int64_t site = int64_t{coordinate[axis]} * params_.geometry.stride[axis] + delta[axis];
        exists = exists && site >= window.first && site <= window.last;
        is_in_limits = is_in_limits && site >= window.first_in_limits && site <= window.last_in_limits;
        if (is_in_limits) compact |= compact_.PackAxis(axis, site);
      }
      if (!exists) continue;
      if (is_in_limits) {
        *out++ = compact;
      } else {
        ++num_beyond_limits[sample];
      }
    }
    return out;
  }

  const OutputCoordinatesParams& params_;
  CoordinateKey layout_;
  bool divides_only_;
  bool is_transposed_;
  std::vector<Axes> deltas_;  // Delta of each cell, if the rule is transposed
  FloorDivision division_[kMaxDimension];
  CompactKey compact_;
  std::vector<std::array<Window, kMaxDimension>> windows_;  // one per sample; unused if outputs are plain quotients
};

// Writes the distinct sorted compact keys as keys; returns their number.
int64_t WriteUnique(const CompactKey& compact, const uint64_t* sorted, int64_t count, uint64_t* keys,
                    ThreadPool& pool) {
  const auto is_new = [&](int64_t i) { return i == 0 || sorted[i] != sorted[i - 1]; };
  const Chunks chunks(count, kKeysAChunk, pool);
  std::vector<int64_t> first(static_cast<size_t>(chunks.num_chunks()));
  chunks.ForEach(pool, [&](int64_t chunk, int64_t begin, int64_t end) {
    int64_t num_new = 0;
    for (int64_t i = begin; i < end; ++i) num_new += is_new(i);
    first[static_cast<size_t>(chunk)] = num_new;
  });
  const int64_t num_keys = ExclusivePrefixSum(first);
  chunks.ForEach(pool, [&](int64_t chunk, int64_t begin, int64_t end) {
    uint64_t* out = keys + first[static_cast<size_t>(chunk)];
    for (int64_t i = begin; i < end; ++i) {
      if (is_new(i)) *out++ = compact.Unpack(sorted[i]);
    }
  });
  return num_keys;
}

}  // namespace

void OutputCoordinates(const OutputCoordinatesParams& params, ThreadPool& pool) {
  *params.num_out = 0;
  std::fill_n(params.num_beyond_limits, params.num_samples, 0);
  if (params.num_in == 0) return;
  const CoordinateKey layout(params.geometry.dimension);
  const CandidateMaker maker(params, layout, SampleBounds(params, layout, pool));

  // Every chunk first writes at the position that it would have if all inputs before it had all their candidates. Then
  // the gaps are closed.
  const int64_t total = NumOutputCandidates(params);
  const int64_t candidates_an_input = total / params.num_in;
  auto* const apart = static_cast<uint64_t*>(params.workspace);
  uint64_t* const joined = apart + total;
  const Chunks chunks(params.num_in, kKeysAChunk, pool);
  std::vector<int64_t> first(static_cast<size_t>(chunks.num_chunks()));
  const auto num_samples = static_cast<size_t>(params.num_samples);
  std::vector<int64_t> num_beyond_limits(first.size() * num_samples, 0);  // [chunk, sample]
  chunks.ForEach(pool, [&](int64_t chunk, int64_t begin, int64_t end) {
    uint64_t* out = apart + begin * candidates_an_input;
    const auto c = static_cast<size_t>(chunk);
    first[c] = maker.Make(begin, end, out, num_beyond_limits.data() + c * num_samples) - out;
  });
  const std::vector<int64_t> sizes = first;
  const int64_t count = ExclusivePrefixSum(first);
  chunks.ForEach(pool, [&](int64_t chunk, int64_t begin, int64_t) {
    const auto c = static_cast<size_t>(chunk);
    std::copy_n(apart + begin * candidates_an_input, sizes[c], joined + first[c]);
  });

  const uint64_t* sorted =
      RadixSort(joined, apart, count, maker.compact().num_bits(), pool, [](uint64_t key) { return key; });
  *params.num_out = WriteUnique(maker.compact(), sorted, count, params.out_keys, pool);
  for (size_t i = 0; i < num_beyond_limits.size(); ++i) {
    params.num_beyond_limits[i % num_samples] += num_beyond_limits[i];
  }
}

}  // namespace cpu
}  // namespace voxserve::kernels
