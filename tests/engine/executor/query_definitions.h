#pragma once

// Computes select and gather in double precision by their definitions. The interpreter of graph_interpreter.h uses
// them. The key of a query's row is {query, 0, 0}, or that of a sample's row where there is one query.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "engine/model/graph.h"
#include "tests/engine/executor/graph_builder.h"
#include "tests/engine/executor/row_definitions.h"

namespace voxserve {

inline bool IsPeak(const kernels::SelectPeaksParams& params, const Values& image, const Site& cell, size_t channel) {
  const double logit = image.at(cell)[channel];
  if (!std::isfinite(logit)) return false;
  if (params.classes_without_test[channel]) return true;
  const int32_t radius = params.peak_kernel / 2;
  bool is_within = true, is_largest = true;
  for (int32_t y = cell[0] - radius; y <= cell[0] + radius; ++y) {
    for (int32_t x = cell[1] - radius; x <= cell[1] + radius; ++x) {
      const auto other = image.find({y, x, 0});
      is_within = is_within && other != image.end();
      if (other != image.end() && std::isfinite(other->second[channel])) {
        is_largest = is_largest && other->second[channel] <= logit;
      }
    }
  }
  return is_within || params.border == kernels::PeakBorder::kPad ? is_largest
                                                                 : params.border == kernels::PeakBorder::kKeep;
}

// Returns k rows: row, column, class, score.
inline Values SelectQueries(const SelectOp& op, const Values& image) {
  const kernels::SelectPeaksParams& params = op.parameters;
  // The pairs, sorted: peaks by their logits, then finite ones, then the others; by class and cell where these are
  // equal.
  std::map<std::tuple<int, double, size_t, Site>, double> ranked;  // to the score
  for (const auto& [cell, logits] : image) {
    for (size_t channel = 0; channel < logits.size(); ++channel) {
      const double logit = logits[channel];
      const bool is_peak = IsPeak(params, image, cell, channel);
      const int kind = is_peak ? 0 : std::isfinite(logit) ? 1 : 2;
      ranked[{kind, is_peak ? -logit : 0.0, channel, cell}] = is_peak ? 1 / (1 + std::exp(-logit)) : 0.0;
    }
  }
  Values queries;
  auto next = ranked.begin();
  for (int32_t query = 0; query < params.k; ++query, ++next) {
    const auto& [kind, order, channel, cell] = next->first;
    const Site key = params.k > 1 ? Site{query, 0, 0} : Site{-1, -1, -1};
    queries[key] = {static_cast<double>(cell[0]), static_cast<double>(cell[1]), static_cast<double>(channel),
                    next->second};
  }
  return queries;
}

// in: the image where `of` is kFeatures.
inline Values GatherQueries(kernels::GatherOf of, const Values& in, const Values& queries) {
  Values out;
  for (const auto& [key, query] : queries) {
    std::vector<double>& row = out[key];
    if (of == kernels::GatherOf::kFeatures) {
      row = in.at({static_cast<int32_t>(query[0]), static_cast<int32_t>(query[1]), 0});
    } else if (of == kernels::GatherOf::kPosition) {
      row = {query[1] + 0.5, query[0] + 0.5};
    } else {
      row = {query[of == kernels::GatherOf::kClass ? 2 : 3]};
    }
  }
  return out;
}

}  // namespace voxserve
