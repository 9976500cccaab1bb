#pragma once

// QueryTileIsa is the interface between group_attention_cpu.cc and group_attention_tile.h, which is compiled once for
// each vector instruction set.

#include <cstdint>

namespace voxserve::kernels::cpu {

// The most keys whose scores are in memory at once: a multiple of every panel_keys.
inline constexpr int32_t kScoreTileKeys = 96;

// One head's attention of a tile of queries over the keys of their group. Vectors run along the queries, so queries and
// results are transposed: [channels, tile_queries].
struct QueryTileArgs {
  int32_t num_keys;  // at least 1
  // Panels of panel_keys keys; the last panel has the keys that are left. A panel of n keys is [key_channels, n].
  const float* keys;
  int32_t key_channels;
  const float* values;  // [num_keys, value_channels]
  int32_t value_channels;
  const float* queries;  // [key_channels, tile_queries], multiplied by scale * log2(e)
  float* scores;         // [kScoreTileKeys, tile_queries]: scratch
  float* out;            // [value_channels, tile_queries]
};

// A vector instruction set: its name, the queries of a tile, the keys of a panel, and the function compiled for it.
struct QueryTileIsa {
  const char* name;
  int32_t tile_queries;
  int32_t panel_keys;
  void (*attend)(const QueryTileArgs&);
};

namespace baseline {
extern const QueryTileIsa kQueryTile;
}
#if defined(__x86_64__)
namespace avx2 {
extern const QueryTileIsa kQueryTile;
}
namespace avx512 {
extern const QueryTileIsa kQueryTile;
}
#elif defined(__aarch64__)
namespace neon {
extern const QueryTileIsa kQueryTile;
}
#endif

}  // namespace voxserve::kernels::cpu
