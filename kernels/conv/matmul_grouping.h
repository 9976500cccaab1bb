#pragma once

// Decides which kernel offsets of a convolution share a batched matrix product (TorchSparse, Tang et al., MLSys 2022,
// section 4.2, Algorithm 4). The map of an offset is its list of pairs (input row, output row). Offsets whose maps have
// nearly equal sizes run as one batched product, in which every map is padded to the largest; the other offsets run one
// by one. The grouping is made on the host, from the sizes of the maps alone.
//
// The offsets have a fixed order, called the walk. A group is a range of consecutive positions of the walk. Weights are
// stored in walk order, so the weights of a group are contiguous and need no pointers.
// - In a symmetric convolution, offset K - 1 - k mirrors offset k and has equally many pairs. The walk goes from
//   mirrored pair to mirrored pair: 0, K - 1, 1, K - 2, ..., and the centre last.
// - In any other convolution the walk goes from 0 to K - 1.
//
// The identity offset pairs each output row with the input row of the same number (a submanifold convolution's centre).
// It is in no group: its product reads the input directly, and its rows are the last ones of the product buffer. Empty
// maps at the beginning or end of a group are dropped; inside a group they stay, as padding.

#include <cstdint>
#include <limits>
#include <vector>

namespace voxserve::kernels {

enum class Grouping : int32_t {
  kSeparate,   // every offset is a group
  kSymmetric,  // every mirrored pair is a group; without symmetry: every offset is a group
  kFixed,      // two groups: the first third of the mirrored pairs (rounded down: 4 of 13 for 27 offsets), and the
               // other pairs; without symmetry: one group of all offsets (cut at the identity, if there is one)
  kAdaptive,   // a group grows along the walk while 1 - n_min / n_max <= epsilon, for its maps' sizes n
};

struct GroupingOptions {
  Grouping grouping = Grouping::kAdaptive;
  // For kAdaptive: an upper limit of the share of padding in a group, 0 to 1.
  double epsilon = 0.8;
  // For kAdaptive (the paper's S): if the largest map of a group has at least this many rows, the offsets of the group
  // run one by one, since such large products fill the device by themselves.
  int64_t bmm_max_rows = std::numeric_limits<int64_t>::max();

  bool operator==(const GroupingOptions&) const = default;
};

// kAdaptive can express other strategies:
// - Epsilon 1 with bmm_max_rows = kNoLimit is one batched product of all offsets.
// - bmm_max_rows 0 is kSeparate.
// - Epsilon 0 with kNoLimit is kSymmetric, except that neighbouring mirrored pairs of exactly equal size are joined
//   (without padding).
inline constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

struct MatmulGroupingParams {
  int32_t num_offsets = 0;                // K
  const int64_t* offset_begin = nullptr;  // [K + 1]; offset k's map has offset_begin[k + 1] - offset_begin[k] pairs
  bool is_symmetric = false;              // see above; requires an odd K
  int32_t identity_offset = -1;           // -1: there is no identity offset
};

// One matrix product, or a batch of products of equal size, for positions [first, first + count) of the walk. Each
// product has `rows` rows, padding included. The first product begins at row `begin` of the gathered and the product
// buffer, and each further product `rows` rows later.
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
  std::vector<int64_t> buffer_begin;  // [K] the buffer row where the pairs of offset k begin; -1: no pairs
  int64_t num_gathered_rows = 0;      // rows of all groups, padding included
  int64_t num_product_rows = 0;       // rows of all groups and of the identity
};

// Returns the offset at a position of the walk, 0 <= position < num_offsets.
int32_t OffsetAt(int32_t position, int32_t num_offsets, bool is_symmetric);

// Returns the whole walk, [num_offsets], which is the order of the stored weights.
std::vector<int32_t> WalkOrder(int32_t num_offsets, bool is_symmetric);

// Returns the groups of a convolution. Asserts that K is odd if the convolution is symmetric.
MatmulGrouping GroupMatmuls(const MatmulGroupingParams& params, const GroupingOptions& options);

}  // namespace voxserve::kernels
