#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/core/gemm.h"
#include "kernels/rows/attention/attention.h"

namespace voxserve::kernels::cpu {
namespace {

// The scores of 64 queries and 256 keys take 64 KiB. With the keys and values of a head of 256 channels, they stay in a
// core's cache.
constexpr int64_t kTileQueries = 64;
constexpr int64_t kTileKeys = 256;

// Queries of one sample and one head, whose results a thread computes at once.
struct QueryTile {
  int32_t sample;
  int32_t head;
  int64_t begin, end;
};

std::vector<QueryTile> CutIntoTiles(const AttentionParams& params) {
  std::vector<QueryTile> tiles;
  for (int32_t sample = 0; sample < params.num_samples; ++sample) {
    const int64_t end = params.query_spans.End(sample);
    for (int64_t begin = params.query_spans.Begin(sample); begin < end; begin += kTileQueries) {
      for (int32_t head = 0; head < params.num_heads; ++head) {
        tiles.push_back({.sample = sample, .head = head, .begin = begin, .end = std::min(begin + kTileQueries, end)});
      }
    }
  }
  return tiles;
}

// The running softmax of a query over the keys so far: the largest score, and the sum of exp(score - largest).
struct RunningSoftmax {
  float largest = -std::numeric_limits<float>::infinity();
  double sum = 0;

  // Turns scores into weights, and returns the factor that brings earlier sums to the new largest score. NaN stays NaN.
  float Add(float scale, float* scores, int64_t count) {
    float most = largest;
    for (int64_t j = 0; j < count; ++j) {
      scores[j] *= scale;
      most = std::max(most, scores[j]);
    }
    const float factor = std::exp(largest - most);
    double added = 0;
    for (int64_t j = 0; j < count; ++j) {
      scores[j] = std::exp(scores[j] - most);
      added += scores[j];
    }
    largest = most;
    sum = sum * factor + added;
    return factor;
  }
};

// scores: [kTileQueries * kTileKeys] values of scratch.
void ComputeTile(const AttentionParams& params, const QueryTile& tile, float* scores) {
  const int32_t key_channels = params.keys.channels / params.num_heads;
  const int32_t value_channels = params.values.channels / params.num_heads;
  const int64_t num_queries = tile.end - tile.begin;
  const ConstRows queries =
      params.queries.RowRange(tile.begin, tile.end).Columns(tile.head * key_channels, key_channels);
  Rows out = params.out.RowRange(tile.begin, tile.end);
  out.data = out.floats() + int64_t{tile.head} * value_channels;
  out.channels = value_channels;

  const int64_t begin = params.key_spans.Begin(tile.sample), end = params.key_spans.End(tile.sample);
  for (int64_t i = 0; i < num_queries; ++i) std::fill_n(out.floats(i), value_channels, 0.0f);
  RunningSoftmax softmax[kTileQueries];
  for (int64_t first = begin; first < end; first += kTileKeys) {
    const int64_t last = std::min(first + kTileKeys, end);
    const auto num_keys = static_cast<int32_t>(last - first);
    const ConstRows keys = params.keys.RowRange(first, last).Columns(tile.head * key_channels, key_channels);
    const ConstRows values = params.values.RowRange(first, last).Columns(tile.head * value_channels, value_channels);
    const Rows tile_scores = Rows::Packed(scores, DType::kFloat32, num_queries, num_keys);
    Gemm({.a = queries, .b = keys, .c = tile_scores, .is_b_transposed = true});
    for (int64_t i = 0; i < num_queries; ++i) {
      const float factor = softmax[i].Add(params.scale, tile_scores.floats(i), num_keys);
      if (factor == 1.0f) continue;
      float* const row = out.floats(i);
      for (int32_t c = 0; c < value_channels; ++c) row[c] *= factor;
    }
    Gemm({.a = tile_scores, .b = values, .c = out, .accumulate = true});
  }
  if (begin == end) return;
  for (int64_t i = 0; i < num_queries; ++i) {
    const auto factor = static_cast<float>(1.0 / softmax[i].sum);
    float* const row = out.floats(i);
    for (int32_t c = 0; c < value_channels; ++c) row[c] *= factor;
  }
}

}  // namespace

void Attention(const AttentionParams& params, ThreadPool& pool) {
  assert(params.queries.dtype == DType::kFloat32 && params.out.dtype == DType::kFloat32);
  const std::vector<QueryTile> tiles = CutIntoTiles(params);
  pool.ParallelFor(static_cast<int64_t>(tiles.size()), 1, [&](int64_t begin, int64_t end) {
    std::vector<float> scores(static_cast<size_t>(kTileQueries * kTileKeys));
    for (int64_t i = begin; i < end; ++i) ComputeTile(params, tiles[static_cast<size_t>(i)], scores.data());
  });
}

}  // namespace voxserve::kernels::cpu
