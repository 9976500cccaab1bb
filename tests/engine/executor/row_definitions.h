#pragma once

// Computes in double precision the operators that read rows but no coordinates. The interpreter of graph_interpreter.h
// uses them.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <map>
#include <variant>
#include <vector>

#include "tests/engine/executor/graph_builder.h"
#include "tests/support/activation_formulas.h"
#include "tests/support/window_formulas.h"

namespace voxserve {

// Returns a function of two rows. One of them may have 1 channel, which counts for all channels of the other.
inline std::vector<double> CombineRows(const ElementwiseOp& op, const std::vector<double>& a,
                                       const std::vector<double>& b) {
  std::vector<double> result(std::max(a.size(), b.size()));
  for (size_t c = 0; c < result.size(); ++c) {
    const double of_a = a[c % a.size()], of_b = b[c % b.size()];
    switch (op.function) {
      case kernels::Elementwise::kAdd:
        result[c] = of_a + of_b;
        break;
      case kernels::Elementwise::kSubtract:
        result[c] = of_a - of_b;
        break;
      case kernels::Elementwise::kMultiply:
        result[c] = of_a * of_b;
        break;
      case kernels::Elementwise::kDivide:
        result[c] = of_a / (of_b + double{op.epsilon});
        break;
      case kernels::Elementwise::kMaximum:
        result[c] = std::max(of_a, of_b);
        break;
      case kernels::Elementwise::kMinimum:
        result[c] = std::min(of_a, of_b);
        break;
    }
  }
  return result;
}

// Returns a row's sum, mean, largest value, smallest value or length.
inline double ReduceRow(kernels::RowNorm kind, const std::vector<double>& row) {
  double sum = 0, squares = 0;
  for (const double value : row) {
    sum += value;
    squares += value * value;
  }
  switch (kind) {
    case kernels::RowNorm::kSum:
      return sum;
    case kernels::RowNorm::kMean:
      return sum / static_cast<double>(row.size());
    case kernels::RowNorm::kMax:
      return *std::max_element(row.begin(), row.end());
    case kernels::RowNorm::kMin:
      return *std::min_element(row.begin(), row.end());
    default:
      return std::sqrt(squares);
  }
}

// Returns the row after softmax, L2 norm or layer norm over its channels, or the one value of their reduction.
inline std::vector<double> NormalizeRow(const RowNormOp& norm, std::vector<double> row) {
  if (kernels::IsReduction(norm.kind)) return {ReduceRow(norm.kind, row)};
  const auto count = static_cast<double>(row.size());
  double sum = 0, mean = 0, variance = 0;
  if (norm.kind == kernels::RowNorm::kLayerNorm) {
    for (const double value : row) mean += value / count;
    for (const double value : row) variance += (value - mean) * (value - mean) / count;
    for (size_t c = 0; c < row.size(); ++c) {
      row[c] = (row[c] - mean) / std::sqrt(variance + norm.epsilon) * (norm.weight ? norm.weight->values[c] : 1.0) +
               (norm.bias ? norm.bias->values[c] : 0.0);
    }
    return row;
  }
  const bool is_softmax = norm.kind == kernels::RowNorm::kSoftmax;
  for (double& value : row) {
    if (is_softmax) value = std::exp(value);
    sum += is_softmax ? value : value * value;
  }
  for (double& value : row) value /= is_softmax ? sum : std::max(std::sqrt(sum), double{norm.epsilon});
  return row;
}

// Returns row `number` of the embedding's table, or NaN in every channel if the table has no such row.
inline std::vector<double> LookUp(const EmbeddingOp& embedding, double number) {
  const auto channels = static_cast<size_t>(embedding.table->shape[1]);
  const bool is_there =
      number >= 0 && number < static_cast<double>(embedding.table->shape[0]) && number == std::floor(number);
  if (!is_there) return std::vector<double>(channels, std::numeric_limits<double>::quiet_NaN());
  const auto begin =
      embedding.table->values.begin() + static_cast<std::ptrdiff_t>(number) * static_cast<std::ptrdiff_t>(channels);
  return {begin, begin + static_cast<std::ptrdiff_t>(channels)};
}

// Computes an operator that makes each row from one input row. Returns false for the other operators.
inline bool ComputeRow(const GraphOp& op, std::vector<double>* in_and_out) {
  std::vector<double>& row = *in_and_out;
  if (const auto* linear = std::get_if<LinearOp>(&op)) {
    std::vector<double> result(static_cast<size_t>(linear->out_channels));
    for (size_t o = 0; o < result.size(); ++o) {
      result[o] = linear->bias ? linear->bias->values[o] : 0.0;
      for (size_t i = 0; i < row.size(); ++i) result[o] += row[i] * linear->weight->values[o * row.size() + i];
    }
    row = result;
  } else if (const auto* norm = std::get_if<BatchNormOp>(&op)) {
    for (size_t c = 0; c < row.size(); ++c) {
      row[c] = (row[c] - norm->running_mean->values[c]) /
                   std::sqrt(double{norm->running_var->values[c]} + double{norm->epsilon}) * norm->weight->values[c] +
               norm->bias->values[c];
    }
  } else if (const auto* activation = std::get_if<ActivationOp>(&op)) {
    for (double& value : row) value = support::DefinedActivation(activation->activation, value);
  } else if (const auto* row_norm = std::get_if<RowNormOp>(&op)) {
    row = NormalizeRow(*row_norm, row);
  } else if (const auto* prelu = std::get_if<PReluOp>(&op)) {
    const std::vector<float>& slopes = prelu->slopes->values;
    for (size_t c = 0; c < row.size(); ++c) row[c] *= row[c] < 0 ? slopes[c % slopes.size()] : 1;
  } else if (const auto* embedding = std::get_if<EmbeddingOp>(&op)) {
    row = LookUp(*embedding, row[static_cast<size_t>(embedding->channel)]);
  } else {
    return false;
  }
  return true;
}

// Returns a row for each query. For every head it is the weighted mean of the value rows; the weights are the softmax
// of scale * (query . key) over all keys.
inline Values Attend(const AttentionOp& op, const Values& queries, const Values& keys, const Values& values) {
  Values out;
  for (const auto& [place, query] : queries) {
    std::vector<double>& row = out[place];
    row.assign(values.begin()->second.size(), 0.0);
    const size_t heads = static_cast<size_t>(op.num_heads), ins = query.size() / heads, outs = row.size() / heads;
    for (size_t head = 0; head < heads; ++head) {
      double sum = 0, largest = -std::numeric_limits<double>::infinity();
      std::vector<double> result(outs);
      std::map<Site, double> scores;
      for (const auto& [other, key] : keys) {
        double score = 0;
        for (size_t c = head * ins; c < (head + 1) * ins; ++c) score += query[c] * key[c];
        scores[other] = op.scale * score;
        largest = std::max(largest, scores[other]);
      }
      for (const auto& [other, score] : scores) {
        const double weight = std::exp(score - largest);
        sum += weight;
        for (size_t c = 0; c < outs; ++c) result[c] += weight * values.at(other)[head * outs + c];
      }
      for (size_t c = 0; c < outs; ++c) row[head * outs + c] = result[c] / sum;
    }
  }
  return out;
}

// Returns a row for each site, from attention within its group. ordered: the sites in the order from which groups are
// cut.
inline support::DefinedWindows DefinedWindowsOf(const kernels::SiteWindows& windows) {
  support::DefinedWindows defined{.shape = {}, .shift = {}, .is_snake = windows.is_snake};
  for (size_t axis = 0; axis < 3; ++axis) {
    defined.shape[axis] = windows.shape[axis];
    defined.shift[axis] = windows.shift[axis];
    defined.axes[axis] = static_cast<size_t>(windows.axes[axis]);
  }
  return defined;
}

inline Values AttendInGroups(const AttentionOp& op, const GroupsOp& groups, const std::vector<Site>& ordered,
                             const Values& queries, const Values& keys, const Values& values) {
  const auto size = static_cast<size_t>(groups.size);
  Values out;
  if (groups.tail == kernels::GroupTail::kSpread) {
    const support::DefinedWindows windows = DefinedWindowsOf(*groups.order.windows);
    for (size_t begin = 0, end = 0; begin < ordered.size(); begin = end) {
      while (end < ordered.size() && DefinedWindow(windows, ordered[end]) == DefinedWindow(windows, ordered[begin])) {
        ++end;
      }
      for (const support::DefinedGroup& group :
           support::DefinedSpreadGroups(static_cast<int64_t>(end - begin), groups.size)) {
        Values queries_here, keys_here;
        for (const int64_t place : group.own) {
          const Site& site = ordered[begin + static_cast<size_t>(place)];
          queries_here[site] = queries.at(site);
        }
        for (const int64_t place : group.keys) {
          const Site& site = ordered[begin + static_cast<size_t>(place)];
          keys_here[site] = keys.at(site);
        }
        out.merge(Attend(op, queries_here, keys_here, values));
      }
    }
    return out;
  }
  for (size_t begin = 0; begin < ordered.size(); begin += size) {
    const size_t end = std::min(begin + size, ordered.size());
    Values queries_here, keys_here;
    for (size_t place = begin; place < end; ++place) {
      queries_here[ordered[place]] = queries.at(ordered[place]);
      keys_here[ordered[place]] = keys.at(ordered[place]);
    }
    if (groups.tail == kernels::GroupTail::kBorrows && begin > 0) {
      // Place i of a short group that has only r is place i of the group before.
      for (size_t i = end - begin; i < size; ++i)
        keys_here[ordered[begin - size + i]] = keys.at(ordered[begin - size + i]);
    }
    out.merge(Attend(op, queries_here, keys_here, values));
  }
  return out;
}

// Returns the row after a rotation of its pairs of channels by its position, one value per axis.
inline std::vector<double> RotateRow(const RotaryOp& op, const std::vector<double>& position,
                                     const std::vector<double>& row) {
  const size_t head = row.size() / static_cast<size_t>(op.num_heads), chunk = head / position.size(), pairs = chunk / 2;
  std::vector<double> out(row.size());
  for (size_t c = 0; c < row.size(); ++c) {
    const size_t axis = c % head / chunk, in_chunk = c % chunk, j = in_chunk % pairs;
    const double angle =
        position[axis] * std::pow(double{op.base}, -static_cast<double>(j) / static_cast<double>(pairs));
    out[c] = row[c] * std::cos(angle);
    out[c] += in_chunk < pairs ? -row[c + pairs] * std::sin(angle) : row[c - pairs] * std::sin(angle);
  }
  return out;
}

// Returns the rows of a sample after a group norm or instance norm: each group of channels is normalized over all
// sites.
inline Values NormalizeSample(const SampleNormOp& norm, const Values& in) {
  Values out = in;
  if (in.empty()) return out;
  const size_t channels = in.begin()->second.size(), group = channels / static_cast<size_t>(norm.num_groups);
  for (size_t first = 0; first < channels; first += group) {
    const auto average = [&](const auto& value_of) {
      double sum = 0;
      for (const auto& [site, row] : in) {
        for (size_t c = first; c < first + group; ++c) sum += value_of(row[c]);
      }
      return sum / static_cast<double>(in.size() * group);
    };
    const double mean = average([](double x) { return x; });
    const double variance = average([&](double x) { return (x - mean) * (x - mean); });
    for (auto& [site, row] : out) {
      for (size_t c = first; c < first + group; ++c) {
        row[c] = (row[c] - mean) / std::sqrt(variance + norm.epsilon) * (norm.weight ? norm.weight->values[c] : 1.0) +
                 (norm.bias ? norm.bias->values[c] : 0.0);
      }
    }
  }
  return out;
}

}  // namespace voxserve
