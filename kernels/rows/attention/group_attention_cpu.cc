#include <algorithm>
#include <cassert>
#include <vector>

#include "kernels/rows/attention/group_attention_dispatch.h"
#include "kernels/rows/attention/group_attention_isa.h"

namespace voxserve::kernels::cpu {
namespace {

constexpr float kLog2E = 1.44269504f;

// A thread packs the keys and values of a group and head for this many queries, a multiple of every tile_queries.
// Packing then costs little, and a single group of kMaxGroupSize rows still keeps 8 threads busy.
constexpr int32_t kTaskQueries = 512;

// Returns the loops that are compiled for the set `isa`.
const QueryTileIsa& QueryTileOf([[maybe_unused]] const Isa& isa) {
#if defined(__x86_64__)
  if (&isa == &avx512::kIsa) return avx512::kQueryTile;
  if (&isa == &avx2::kIsa) return avx2::kQueryTile;
#elif defined(__aarch64__)
  if (&isa == &neon::kIsa) return neon::kQueryTile;
#endif
  return baseline::kQueryTile;
}

// Queries of one group and head, whose results a thread computes. All numbers are places of the order.
struct Task {
  int32_t head;
  int64_t query_begin, query_end;
  // Keys are the places [key_begin, key_end), then [borrowed_begin, borrowed_end).
  int64_t key_begin, key_end;
  int64_t borrowed_begin, borrowed_end;

  int64_t num_keys() const { return key_end - key_begin + borrowed_end - borrowed_begin; }
};

// Adds the tasks of a group. task: without its head, with all queries of the group.
void AddTasks(const Task& task, int32_t num_heads, std::vector<Task>& tasks) {
  for (int32_t head = 0; head < num_heads; ++head) {
    for (int64_t query = task.query_begin; query < task.query_end; query += kTaskQueries) {
      tasks.push_back(task);
      tasks.back().head = head;
      tasks.back().query_begin = query;
      tasks.back().query_end = std::min(query + kTaskQueries, task.query_end);
    }
  }
}

std::vector<Task> CutIntoTasks(const GroupAttentionParams& params) {
  const SiteGroups& groups = params.groups;
  std::vector<Task> tasks;
  if (groups.tail == GroupTail::kSpread) {
    for (int32_t g = 0; g < *groups.num_spread_groups; ++g) {
      const SpreadGroup& group = groups.spread_groups[g];
      AddTasks({.head = 0,
                .query_begin = group.own_begin,
                .query_end = group.end,
                .key_begin = group.begin,
                .key_end = group.end,
                .borrowed_begin = group.begin,
                .borrowed_end = group.begin},
               params.num_heads, tasks);
    }
    return tasks;
  }
  for (int32_t sample = 0; sample < groups.num_samples; ++sample) {
    const int64_t first = groups.sample_begin[sample], last = groups.sample_begin[sample + 1];
    for (int64_t begin = first; begin < last; begin += groups.size) {
      const int64_t end = std::min(begin + groups.size, last);
      const bool borrows = groups.tail == GroupTail::kBorrows && begin > first;  // nothing if the group is full
      AddTasks({.head = 0,
                .query_begin = begin,
                .query_end = end,
                .key_begin = begin,
                .key_end = end,
                .borrowed_begin = borrows ? end - groups.size : begin,
                .borrowed_end = begin},
               params.num_heads, tasks);
    }
  }
  return tasks;
}

// Computes tasks in one thread, which owns the scratch.
class Worker {
 public:
  Worker(const QueryTileIsa& isa, const GroupAttentionParams& params)
      : isa_(isa),
        params_(params),
        key_channels_(params.keys.channels / params.num_heads),
        value_channels_(params.values.channels / params.num_heads),
        queries_(static_cast<size_t>(key_channels_) * static_cast<size_t>(isa.tile_queries)),
        scores_(static_cast<size_t>(kScoreTileKeys) * static_cast<size_t>(isa.tile_queries)),
        out_(static_cast<size_t>(value_channels_) * static_cast<size_t>(isa.tile_queries)) {}

  void Run(const Task& task) {
    Pack(task);
    for (int64_t begin = task.query_begin; begin < task.query_end; begin += isa_.tile_queries) {
      const int64_t num_queries = std::min<int64_t>(isa_.tile_queries, task.query_end - begin);
      ReadQueries(task.head, begin, num_queries);
      isa_.attend({.num_keys = static_cast<int32_t>(task.num_keys()),
                   .keys = keys_.data(),
                   .key_channels = key_channels_,
                   .values = values_.data(),
                   .value_channels = value_channels_,
                   .queries = queries_.data(),
                   .scores = scores_.data(),
                   .out = out_.data()});
      WriteResults(task.head, begin, num_queries);
    }
  }

 private:
  int64_t RowOf(int64_t place) const {
    return params_.groups.row_of_place == nullptr ? place : params_.groups.row_of_place[place];
  }

  // Gathers the head's part of the group's keys and values.
  void Pack(const Task& task) {
    const int64_t num_keys = task.num_keys();
    keys_.resize(static_cast<size_t>(num_keys * key_channels_));
    values_.resize(static_cast<size_t>(num_keys * value_channels_));
    int64_t key = 0;
    const auto pack = [&](int64_t begin, int64_t end) {
      for (int64_t place = begin; place < end; ++place, ++key) {
        const int64_t row = RowOf(place);
        const int64_t in_panel = key % isa_.panel_keys, panel_begin = key - in_panel;
        const int64_t width = std::min<int64_t>(isa_.panel_keys, num_keys - panel_begin);
        const float* const from = params_.keys.floats(row) + int64_t{task.head} * key_channels_;
        float* const to = keys_.data() + panel_begin * key_channels_ + in_panel;
        for (int32_t c = 0; c < key_channels_; ++c) to[c * width] = from[c];
        std::copy_n(params_.values.floats(row) + int64_t{task.head} * value_channels_, value_channels_,
                    values_.data() + key * value_channels_);
      }
    };
    pack(task.key_begin, task.key_end);
    pack(task.borrowed_begin, task.borrowed_end);
  }

  // The lanes behind the last query compute with zeros, or with queries of the tile before; nobody reads their results.
  void ReadQueries(int32_t head, int64_t begin, int64_t num_queries) {
    const float factor = params_.scale * kLog2E;
    for (int64_t i = 0; i < num_queries; ++i) {
      const float* const from = params_.queries.floats(RowOf(begin + i)) + int64_t{head} * key_channels_;
      for (int32_t c = 0; c < key_channels_; ++c) queries_[At(c, i)] = from[c] * factor;
    }
  }

  void WriteResults(int32_t head, int64_t begin, int64_t num_queries) {
    for (int64_t i = 0; i < num_queries; ++i) {
      float* const to = params_.out.floats(RowOf(begin + i)) + int64_t{head} * value_channels_;
      for (int32_t c = 0; c < value_channels_; ++c) to[c] = out_[At(c, i)];
    }
  }

  size_t At(int32_t channel, int64_t query) const {
    return static_cast<size_t>(int64_t{channel} * isa_.tile_queries + query);
  }

  const QueryTileIsa& isa_;
  const GroupAttentionParams& params_;
  const int32_t key_channels_;
  const int32_t value_channels_;
  std::vector<float> queries_;
  std::vector<float> scores_;
  std::vector<float> out_;
  std::vector<float> keys_;
  std::vector<float> values_;
};

}  // namespace

void GroupAttention(const GroupAttentionParams& params, ThreadPool& pool) {
  GroupAttention(*SupportedIsas().front(), params, pool);
}

void GroupAttention(const Isa& isa, const GroupAttentionParams& params, ThreadPool& pool) {
  assert(params.queries.dtype == DType::kFloat32 && params.out.dtype == DType::kFloat32);
  const std::vector<Task> tasks = CutIntoTasks(params);
  // A thread takes several tasks at a time, so that it seldom allocates its scratch.
  const auto num_tasks = static_cast<int64_t>(tasks.size());
  const int64_t grain = std::clamp<int64_t>(num_tasks / (8 * pool.num_threads()), 1, 64);
  pool.ParallelFor(num_tasks, grain, [&](int64_t begin, int64_t end) {
    Worker worker(QueryTileOf(isa), params);
    for (int64_t i = begin; i < end; ++i) worker.Run(tasks[static_cast<size_t>(i)]);
  });
}

}  // namespace voxserve::kernels::cpu
