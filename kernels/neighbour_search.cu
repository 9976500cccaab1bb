#include <algorithm>

#include "kernels/coordinate_table.cuh"
#include "kernels/launch.cuh"
#include "kernels/morton_key.h"
#include "kernels/neighbour_search.h"
#include "kernels/visit_dimension.cuh"

namespace voxserve::kernels::cuda {
namespace {

constexpr int kSearchThreads = 128;
constexpr int32_t kMaxCellsALaunch = 64;  // they travel as kernel parameters

// Cells of one thread. The kernel volumes that networks have are cut evenly: 27 into 3 x 9, its first half into 7 + 6,
// 8 into one.
constexpr int kCells27 = 9;
constexpr int kCellsHalf27 = 7;
constexpr int kCellsOther = 8;

struct Search {
  CoordinateTable table;
  const uint64_t* out_keys;
  int64_t out_capacity;
  const int64_t* num_out;
  int32_t* neighbours;
  int32_t num_offsets;  // K
  bool is_strided;
  int32_t stride[kMaxDimension];

  // The cells of this launch.
  int32_t first_cell;
  int32_t num_cells;
  uint64_t translation[kMaxCellsALaunch];
  int16_t delta[kMaxCellsALaunch][kMaxDimension];
};

// The key of stride * the output's coordinate; kNoKey where a field cannot hold it. Inputs lie kCoordinateMargin inside
// their fields and no cell reaches further, so that such an output has no neighbours. Nor has a cell that leaves its
// field from inside: Translate brings it to the margin of the other side, where no input lies.
template <int kDimension>
__device__ uint64_t ScaledKey(const Search& search, uint64_t key) {
  using Key = MortonKey<kDimension>;
  if (!search.is_strided) return key;
  constexpr auto kBias = static_cast<int64_t>(Key::kBias);
  Axes scaled = {0, 0, 0, 0};
#pragma unroll
  for (int axis = 0; axis < kDimension; ++axis) {
    const int64_t coordinate = int64_t{Key::Coordinate(key, axis)} * search.stride[axis];
    if (coordinate < -kBias || coordinate >= kBias) return kNoKey;
    scaled[axis] = static_cast<int32_t>(coordinate);
  }
  return Key::Pack(Key::Sample(key), scaled);
}

// Both fill found[0, count) with rows, -1 where there is none. cell: the first one, within the launch.
template <int kDimension, int kCells>
__device__ void FindInHash(const Search& search, uint64_t base, int32_t cell, int32_t count, int32_t (&found)[kCells]) {
  const HashTable table(search.table.slots, NumRows(search.table.capacity, search.table.num_keys));
  uint64_t keys[kCells];
  HashSlot first[kCells];
#pragma unroll
  for (int c = 0; c < kCells; ++c) {
    if (c < count) {
      keys[c] = MortonKey<kDimension>::Translate(base, search.translation[cell + c]);
      first[c] = table.Load(table.FirstSlot(keys[c]));
    }
  }
#pragma unroll
  for (int c = 0; c < kCells; ++c) {
    if (c < count) found[c] = table.Find(keys[c], first[c]);
  }
}

template <int kDimension, int kCells>
__device__ void FindInGrid(const Search& search, uint64_t base, int32_t cell, int32_t count, int32_t (&found)[kCells]) {
  using Distance = FieldInteger<kDimension>;
  const GridBox box = search.table.boxes[MortonKey<kDimension>::Sample(base)];
  Distance from_lowest[kDimension];
#pragma unroll
  for (int axis = 0; axis < kDimension; ++axis) {
    from_lowest[axis] = static_cast<Distance>(int64_t{FieldOf<kDimension>(base, axis)} - int64_t{box.lowest[axis]});
  }
#pragma unroll
  for (int c = 0; c < kCells; ++c) {
    if (c < count) {
      Distance distance[kDimension];
#pragma unroll
      for (int axis = 0; axis < kDimension; ++axis) {
        distance[axis] = from_lowest[axis] + search.delta[cell + c][axis];
      }
      const int64_t at = GridCell<kDimension>(box, distance);
      found[c] = at < 0 ? -1 : __ldg(search.table.grid_cells + at);
    }
  }
}

// A thread: output row x, cells [y * kCells, (y + 1) * kCells) of the launch. kMirrors: cells are of the first half,
// and the second half's part of the result is all -1 before.
template <int kDimension, int kCells, bool kMirrors>
__global__ void __launch_bounds__(kSearchThreads) SearchNeighboursKernel(const __grid_constant__ Search search) {
  const int64_t row = int64_t{blockIdx.x} * kSearchThreads + threadIdx.x;
  if (row >= NumRows(search.out_capacity, search.num_out)) return;
  const int32_t cell = static_cast<int32_t>(blockIdx.y) * kCells;
  const int32_t count = min(kCells, search.num_cells - cell);

  int32_t found[kCells];
  const uint64_t base = ScaledKey<kDimension>(search, search.out_keys[row]);
  if (base == kNoKey) {
#pragma unroll
    for (int c = 0; c < kCells; ++c) found[c] = -1;
  } else if (search.table.search == MapSearch::kGrid && *search.table.uses_grid != 0) {
    FindInGrid<kDimension>(search, base, cell, count, found);
  } else {
    FindInHash<kDimension>(search, base, cell, count, found);
  }

  const int64_t first_offset = search.first_cell + cell;
#pragma unroll
  for (int c = 0; c < kCells; ++c) {
    if (c < count) {
      const int64_t offset = first_offset + c;
      search.neighbours[offset * search.out_capacity + row] = found[c];
      if (kMirrors && found[c] >= 0) {
        const int64_t mirrored = search.num_offsets - 1 - offset;
        search.neighbours[mirrored * search.out_capacity + found[c]] = static_cast<int32_t>(row);
      }
    }
  }
  if (kMirrors && first_offset == 0) {
    search.neighbours[search.num_offsets / 2 * search.out_capacity + row] = static_cast<int32_t>(row);
  }
}

template <int kDimension, int kCells, bool kMirrors>
cudaError_t Launch(const Search& search, cudaStream_t stream) {
  const dim3 blocks(NumBlocks(search.out_capacity, kSearchThreads),
                    std::max(1, (search.num_cells + kCells - 1) / kCells));
  SearchNeighboursKernel<kDimension, kCells, kMirrors><<<blocks, kSearchThreads, 0, stream>>>(search);
  return LaunchStatus(stream);
}

template <int kDimension>
cudaError_t Launch(const Search& search, bool mirrors, cudaStream_t stream) {
  if constexpr (kDimension == 3) {
    if (search.num_offsets == 27) {
      return mirrors ? Launch<3, kCellsHalf27, true>(search, stream) : Launch<3, kCells27, false>(search, stream);
    }
  }
  return mirrors ? Launch<kDimension, kCellsOther, true>(search, stream)
                 : Launch<kDimension, kCellsOther, false>(search, stream);
}

}  // namespace

cudaError_t SearchNeighbours(const NeighbourSearchParams& params, cudaStream_t stream) {
  if (params.out_capacity == 0) return cudaSuccess;
  const NvtxRange range("SearchNeighbours");
  const ConvGeometry& geometry = params.geometry;
  const int32_t num_offsets = geometry.NumOffsets();
  const bool mirrors = params.same_sites && geometry.IsSymmetric();
  const int32_t num_searched = mirrors ? num_offsets / 2 : num_offsets;

  Search search{};
  search.table = params.table;
  search.out_keys = params.out_keys;
  search.out_capacity = params.out_capacity;
  search.num_out = params.num_out;
  search.neighbours = params.neighbours;
  search.num_offsets = num_offsets;
  for (int axis = 0; axis < params.dimension; ++axis) {
    search.stride[axis] = geometry.stride[axis];
    search.is_strided |= geometry.stride[axis] != 1;
  }
  if (mirrors && num_searched > 0) {
    VOXSERVE_RETURN_IF_CUDA(cudaMemsetAsync(params.neighbours + (int64_t{num_searched} + 1) * params.out_capacity, 0xFF,
                                            static_cast<size_t>(num_searched * params.out_capacity) * sizeof(int32_t),
                                            stream));
  }
  return VisitDimension(params.dimension, [&](auto dimension) {
    // Once even where there is only a centre, which needs no search.
    do {
      search.num_cells = std::min(kMaxCellsALaunch, num_searched - search.first_cell);
      for (int32_t cell = 0; cell < search.num_cells; ++cell) {
        const Axes delta = geometry.Delta(search.first_cell + cell);
        search.translation[cell] = MortonKey<dimension()>::Translation(delta);
        for (int axis = 0; axis < dimension(); ++axis) search.delta[cell][axis] = static_cast<int16_t>(delta[axis]);
      }
      VOXSERVE_RETURN_IF_CUDA(Launch<dimension()>(search, mirrors, stream));
      search.first_cell += search.num_cells;
    } while (search.first_cell < num_searched);
    return cudaSuccess;
  });
}

}  // namespace voxserve::kernels::cuda
