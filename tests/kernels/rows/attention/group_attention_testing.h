#pragma once

// Groups of random orders, and attention within them by a naive loop in double, which follows the definition in
// kernels/rows/attention/group_attention.h word by word.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/rows/attention/group_attention.h"
#include "tests/kernels/core/feature_testing.h"
#include "tests/support/window_formulas.h"

namespace voxserve::kernels {

// The groups of a level on the host.
struct GroupsCase {
  std::vector<int64_t> begins;  // [samples + 1]
  std::vector<int32_t> order;   // [sites] the row at each place; empty: place i is row i
  int32_t size = 1;
  GroupTail tail = GroupTail::kBorrows;
  std::vector<int64_t> windows = {};     // with kSpread: the sites of each window, of all samples
  std::vector<SpreadGroup> spread = {};  // with kSpread: the list of groups, in a random order

  // Samples of windows of these sizes, over which groups are spread. random: as for Of.
  static GroupsCase OfWindows(const std::vector<std::vector<int64_t>>& samples, int32_t size, Random& random) {
    std::vector<int64_t> sizes;
    for (const std::vector<int64_t>& windows : samples) {
      sizes.push_back(std::accumulate(windows.begin(), windows.end(), int64_t{0}));
    }
    GroupsCase groups = Of(sizes, size, GroupTail::kSpread, &random);
    int32_t begin = 0;
    for (const std::vector<int64_t>& windows : samples) {
      for (const int64_t n : windows) {
        groups.windows.push_back(n);
        for (int32_t j = 0; n > 0 && j < NumSpreadGroups(static_cast<int32_t>(n), size); ++j) {
          groups.spread.push_back(SpreadGroupAt(begin, static_cast<int32_t>(n), size, j));
        }
        begin += static_cast<int32_t>(n);
      }
    }
    std::shuffle(groups.spread.begin(), groups.spread.end(), random.engine());
    return groups;
  }

  // Samples of these sizes. random: the order within each sample; null: none.
  static GroupsCase Of(const std::vector<int64_t>& sample_sizes, int32_t size, GroupTail tail, Random* random) {
    GroupsCase groups{.begins = {0}, .order = {}, .size = size, .tail = tail};
    for (const int64_t n : sample_sizes) groups.begins.push_back(groups.begins.back() + n);
    if (random == nullptr) return groups;
    groups.order.resize(static_cast<size_t>(groups.num_rows()));
    std::iota(groups.order.begin(), groups.order.end(), 0);
    for (size_t s = 0; s + 1 < groups.begins.size(); ++s) {
      std::shuffle(groups.order.begin() + groups.begins[s], groups.order.begin() + groups.begins[s + 1],
                   random->engine());
    }
    return groups;
  }
  int32_t num_samples() const { return static_cast<int32_t>(begins.size()) - 1; }
  int64_t num_rows() const { return begins.back(); }
  int64_t RowOf(int64_t place) const { return order.empty() ? place : order[static_cast<size_t>(place)]; }

  // Calls visit(own, keys) with the rows of each group: those whose results it makes, and those that it attends to.
  template <typename Visit>
  void ForEachGroup(Visit&& visit) const {
    if (tail == GroupTail::kSpread) {
      int64_t begin = 0;
      for (const int64_t n : windows) {
        for (const support::DefinedGroup& group : support::DefinedSpreadGroups(n, size)) {
          std::vector<int64_t> own, keys;
          for (const int64_t place : group.own) own.push_back(RowOf(begin + place));
          for (const int64_t place : group.keys) keys.push_back(RowOf(begin + place));
          visit(own, keys);
        }
        begin += n;
      }
      return;
    }
    for (size_t s = 0; s + 1 < begins.size(); ++s) {
      const int64_t n = begins[s + 1] - begins[s];
      const int64_t num_groups = (n + size - 1) / size, r = n % size;
      for (int64_t g = 0; g < num_groups; ++g) {
        std::vector<int64_t> own, keys;
        for (int64_t p = g * size; p < std::min((g + 1) * size, n); ++p) own.push_back(RowOf(begins[s] + p));
        keys = own;
        if (tail == GroupTail::kBorrows && g > 0 && g == num_groups - 1 && r > 0) {
          for (int64_t p = r; p < size; ++p) keys.push_back(RowOf(begins[s] + (g - 1) * size + p));
        }
        visit(own, keys);
      }
    }
  }
};

struct GroupOperands {
  Matrix queries, keys, values;
  int32_t num_heads = 1;
  float scale = 1;
};

// Expects that `out` is the attention of these operands, in every `stride`-th row of a group and in its last.
inline void ExpectGroupAttention(const Matrix& out, const GroupOperands& in, const GroupsCase& groups, DType dtype,
                                 int64_t stride = 1) {
  const int64_t key_channels = in.keys.channels / in.num_heads, value_channels = in.values.channels / in.num_heads;
  groups.ForEachGroup([&](const std::vector<int64_t>& own, const std::vector<int64_t>& keys) {
    std::vector<double> weights(keys.size());
    for (size_t at = 0; at < own.size(); ++at) {
      if (at % static_cast<size_t>(stride) != 0 && at + 1 != own.size()) continue;
      const int64_t row = own[at];
      for (int64_t head = 0; head < in.num_heads; ++head) {
        double largest = -std::numeric_limits<double>::infinity(), magnitude = 0;
        for (size_t j = 0; j < keys.size(); ++j) {
          double score = 0;
          for (int64_t c = head * key_channels; c < (head + 1) * key_channels; ++c) {
            score += double{in.queries.at(row, c)} * in.keys.at(keys[j], c);
          }
          weights[j] = score * in.scale;
          largest = std::max(largest, weights[j]);
          magnitude = std::max(magnitude, std::abs(weights[j]));
        }
        double sum = 0;
        for (double& weight : weights) sum += weight = std::exp(weight - largest);
        for (int64_t c = head * value_channels; c < (head + 1) * value_channels; ++c) {
          double expected = 0, terms = 0;
          for (size_t j = 0; j < keys.size(); ++j) {
            const double term = weights[j] / sum * in.values.at(keys[j], c);
            expected += term;
            terms += std::abs(term);
          }
          // A score's rounding error is proportional to it, and a weight's relative error is its score's error.
          const double tolerance = Tolerance(dtype, 8 * terms) + 4e-7 * magnitude * terms;
          ASSERT_NEAR(out.at(row, c), expected, tolerance) << "row " << row << " channel " << c;
        }
      }
    }
  });
}

}  // namespace voxserve::kernels
