#pragma once

// Which offsets of a convolution share a matrix product (TorchSparse, Tang et al., MLSys 2022, section 4.2, Algorithm
// 4). Maps of nearly equal size run as one batched product, padded to the largest of them; the rest one by one. On the
// host, from the sizes of the maps alone.
//
// Offsets are walked in a fixed order, and a group is a run of that walk, so that weights that lie in walk order need
// no pointers: a group's are one after the other. Symmetric convolutions (offset K - 1 - k mirrors k, and has as many
// pairs) are walked by mirrored pairs, (0, K - 1), (1, K - 2), ..., the centre last; all others from 0 to K - 1. The
// identity offset is in no group: its product reads the input itself, and its rows come last in the product buffer.
//
// Empty maps are dropped where a group would begin or end with them; inside a group they stay, as padding.

#include <cstdint>
#include <limits>
#include <vector>

namespace voxserve::kernels {

enum class Grouping : int32_t {
  kSeparate,   // every offset by itself
  kSymmetric,  // every mirrored pair together, nothing more; without symmetry: every offset by itself
  kFixed,      // symmetric: the first third of the mirrored pairs (rounded down; 4 of 27 offsets' 13) and the others;
               // without symmetry: all offsets together
  kAdaptive,   // runs of the walk while 1 - n_min / n_max <= epsilon
};

struct GroupingOptions {
  Grouping grouping = Grouping::kAdaptive;
  // Of kAdaptive. The share of padding that a group may have, 0 to 1.
  double epsilon = 0.8;
  // Of kAdaptive, the paper's S. Groups whose largest map has this many rows or more run offset by offset: such
  // products fill the device by themselves.
  int64_t bmm_max_rows = std::numeric_limits<int64_t>::max();

  bool operator==(const GroupingOptions&) const = default;
};

// kAdaptive becomes the others: epsilon 1 with kNoLimit is one batched product of everything; bmm_max_rows 0 is
// kSeparate; epsilon 0 with kNoLimit is kSymmetric, but for neighbouring mirrored pairs of exactly one size, which it
// joins (without padding).
inline constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

struct MatmulGroupingParams {
  int32_t num_offsets = 0;                // K
  const int64_t* offset_begin = nullptr;  // [K + 1] the map of offset k has offset_begin[k + 1] - offset_begin[k] pairs
  bool is_symmetric = false;              // K is odd
  int32_t identity_offset = -1;           // -1: none
};

// One product, or a batch of equal ones: positions [first, first + count) of the walk, `rows` rows each, the first of
// them at row `begin` of the buffers, the next `rows` further on, and so on.
struct MatmulGroup {
  int32_t first = 0;
  int32_t count = 0;
  int64_t rows = 0;
  int64_t begin = 0;

  bool is_batched() const { return count > 1; }
  bool operator==(const MatmulGroup&) const = default;
};

struct MatmulGrouping {
  std::vector<MatmulGroup> groups;    // in walk order
  std::vector<int64_t> buffer_begin;  // [K] row of the buffers where an offset's pairs begin; -1: it has none
  int64_t num_gathered_rows = 0;      // of the gather buffer: all groups' rows, padding included
  int64_t num_product_rows = 0;       // of the product buffer: those, and the identity's
};

// The offset at a position of the walk, 0 <= position < num_offsets.
int32_t OffsetAt(int32_t position, int32_t num_offsets, bool is_symmetric);

// All of them, [num_offsets]: the order in which weights are laid out.
std::vector<int32_t> WalkOrder(int32_t num_offsets, bool is_symmetric);

MatmulGrouping GroupMatmuls(const MatmulGroupingParams& params, const GroupingOptions& options);

}  // namespace voxserve::kernels
