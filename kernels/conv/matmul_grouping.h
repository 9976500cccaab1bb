#pragma once

// Groups the offsets of a convolution that share a matrix product (TorchSparse, Tang et al., MLSys 2022, section 4.2,
// Algorithm 4). Maps of nearly equal size run as one batched product, padded to the largest of them; all others run one
// by one. The grouping is made on the host, from the sizes of the maps alone.
//
// The offsets have a fixed order, called the walk, and a group is a run of the walk. Weights are stored in walk order,
// so the weights of a group are contiguous and need no pointers.
// - Symmetric convolutions (offset K - 1 - k mirrors k and has equally many pairs) are walked by mirrored pairs: (0, K
//   - 1), (1, K - 2), ..., the centre last.
// - All others are walked from 0 to K - 1.
//
// The identity offset is in no group: its product reads the input directly, and its rows are the last ones of the
// product buffer. Empty maps at a group's beginning or end are dropped; inside a group they stay, as padding.

#include <cstdint>
#include <limits>
#include <vector>

namespace voxserve::kernels {

enum class Grouping : int32_t {
  kSeparate,   // every offset by itself
  kSymmetric,  // every mirrored pair is a group; without symmetry: every offset by itself
  kFixed,      // two groups: the first third of the mirrored pairs (rounded down: 4 of 13 for 27 offsets), and the
               // others; without symmetry: all offsets together
  kAdaptive,   // runs of the walk while 1 - n_min / n_max <= epsilon
};

struct GroupingOptions {
  Grouping grouping = Grouping::kAdaptive;
  // For kAdaptive: the largest share of padding in a group, 0 to 1.
  double epsilon = 0.8;
  // For kAdaptive (the paper's S): a group whose largest map has at least this many rows runs offset by offset, since
  // such products fill the device by themselves.
  int64_t bmm_max_rows = std::numeric_limits<int64_t>::max();

  bool operator==(const GroupingOptions&) const = default;
};

// kAdaptive includes the other strategies. Epsilon 1 with kNoLimit is one batched product of all offsets. bmm_max_rows
// 0 is kSeparate. Epsilon 0 with kNoLimit is kSymmetric, except that neighbouring mirrored pairs of exactly equal size
// are joined (without padding).
inline constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

struct MatmulGroupingParams {
  int32_t num_offsets = 0;                // K
  const int64_t* offset_begin = nullptr;  // [K + 1]; offset k's map has offset_begin[k + 1] - offset_begin[k] pairs
  bool is_symmetric = false;              // requires an odd K
  int32_t identity_offset = -1;           // -1: none
};

// One product, or a batch of equal ones: positions [first, first + count) of the walk, with `rows` rows each. The first
// product begins at row `begin` of the buffers, and each further one `rows` rows later.
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
  std::vector<int64_t> buffer_begin;  // [K] the buffer row where an offset's pairs begin; -1: it has none
  int64_t num_gathered_rows = 0;      // rows of all groups, padding included
  int64_t num_product_rows = 0;       // rows of all groups and of the identity
};

// Returns the offset at a position of the walk, 0 <= position < num_offsets.
int32_t OffsetAt(int32_t position, int32_t num_offsets, bool is_symmetric);

// Returns the whole walk, [num_offsets], which is the order of the stored weights.
std::vector<int32_t> WalkOrder(int32_t num_offsets, bool is_symmetric);

MatmulGrouping GroupMatmuls(const MatmulGroupingParams& params, const GroupingOptions& options);

}  // namespace voxserve::kernels
