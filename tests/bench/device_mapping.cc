#include "tests/bench/device_mapping.h"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/coordinates/coordinate_table.h"
#include "kernels/coordinates/morton_key.h"
#include "kernels/coordinates/neighbour_search.h"
#include "tests/bench/plain_mapping.h"

namespace voxserve::bench {
namespace {

using support::Device;
using support::ExpectCudaSuccess;
using support::TestStream;

// Returns the same sites in the GPU's order.
std::vector<uint64_t> ToMorton(std::vector<uint64_t> keys) {
  const kernels::CoordinateKey layout(3);
  for (uint64_t& key : keys) key = kernels::MortonKey<3>::Pack(layout.Sample(key), layout.Unpack(key));
  std::sort(keys.begin(), keys.end());
  return keys;
}

template <typename T>
std::vector<T> ToHost(const T* data, int64_t count) {
  std::vector<T> values(static_cast<size_t>(count));
  support::CopyFromDevice(Device::kCuda, values.data(), data, values.size() * sizeof(T));
  return values;
}

}  // namespace

struct DeviceMapping::Level {
  uint64_t* keys = nullptr;
  int64_t capacity = 0;  // the number of keys that kernels get as a bound
  int64_t* num_sites = nullptr;
  bool has_table = false;
  kernels::cuda::BrickTableParams build;
  kernels::cuda::BrickTable table;
  kernels::cuda::CoordinateTableBuildParams plain_build;
  kernels::cuda::CoordinateTable plain_table;
  PlainOutputCoordinatesParams coordinates;  // how this level is made from the one before
};

struct DeviceMapping::Map {
  const NetworkMap* of = nullptr;
  const std::vector<int64_t>* expected_offset_begin = nullptr;  // [K + 1]
  kernels::NeighbourSearchParams search;                        // its table is set once the level's table is built
  kernels::PairTablesParams pairs;
};

DeviceMapping::DeviceMapping(const MapWorkload& workload, const CpuMaps& expected, const MappingOptions& options)
    : workload_(workload), expected_(expected), options_(options) {
  size_t scratch_bytes = 0;
  const auto reserve_scratch = [&](size_t bytes) { scratch_bytes = std::max(scratch_bytes, bytes); };
  levels_.resize(static_cast<size_t>(workload.num_levels()));
  Level& voxels = levels_[0];
  if (options.voxelizes) {
    const int64_t num_points = expected.num_points();
    voxels.capacity = options.knows_sizes ? expected.num_sites(0) : num_points;
    voxels.keys = Take<uint64_t>(num_points);
    voxelize_ = workload.voxelize;
    voxelize_.num_points = num_points;
    voxelize_.num_samples = 1;
    voxelize_.point_begin = Take(std::vector<int64_t>{0, num_points});
    voxelize_.axes = kernels::ConstRows::Packed(Take(expected.points), kernels::DType::kFloat32, num_points, 3);
    voxelize_.keys = voxels.keys;
    voxelize_.point_to_voxel = Take<int32_t>(num_points);
    voxelize_.sorted_points = Take<int32_t>(num_points);
    voxelize_.voxel_begin = Take<int64_t>(num_points + 1);
    voxelize_.sample_begin = Take<int64_t>(2);
    voxelize_.num_invalid = Take<int64_t>(1);
    voxelize_.num_out_of_range = Take<int64_t>(1);
    voxelize_.sample_origin = Take<kernels::Axes>(1);
    voxels.num_sites = voxelize_.sample_begin + 1;
    reserve_scratch(kernels::cuda::VoxelizeWorkspaceBytes(voxelize_));
  } else {
    std::vector<uint64_t> keys = ToMorton(expected.levels[0]);
    voxels.num_sites = Take(std::vector<int64_t>{expected.num_sites(0)});
    voxels.capacity = options.knows_sizes ? expected.num_sites(0) : expected.num_points();
    keys.resize(static_cast<size_t>(voxels.capacity), kernels::kNoKey);
    voxels.keys = Take(keys);
  }

  // A strided map makes the sites of its out_level. Its number of pairs is the number of candidates that the plain
  // stages keep.
  for (size_t i = 0; i < workload.maps.size(); ++i) {
    const NetworkMap& of = workload.maps[i];
    if (of.is_submanifold()) continue;
    const Level& in = levels_[static_cast<size_t>(of.in_level)];
    Level& out = levels_[static_cast<size_t>(of.out_level)];
    out.coordinates.definition = workload.levels[static_cast<size_t>(of.in_level)];
    out.coordinates.num_kept = expected.offset_begin[i].back();
    kernels::OutputCoordinatesParams& definition = out.coordinates.definition;
    definition.in_keys = in.keys;
    definition.num_in = in.capacity;
    definition.device_num_in = in.num_sites;
    definition.out_capacity = kernels::OutputCoordinatesCapacity(definition);
    if (!options.fuses_coordinates)
      definition.out_capacity = std::max(definition.out_capacity, out.coordinates.num_kept);
    out.keys = definition.out_keys = Take<uint64_t>(definition.out_capacity);
    out.num_sites = definition.num_out = Take<int64_t>(1);
    definition.num_beyond_limits = Take<int64_t>(1);
    if (options.reads_blocks && kernels::CellsAreBlocks(definition.geometry) &&
        kernels::cuda::CanBeChained({&definition, 1})) {
      definition.first_in_rows = Take<int32_t>(definition.out_capacity);
    }
    out.capacity = options.knows_sizes ? expected.num_sites(of.out_level) : definition.out_capacity;
    reserve_scratch(options.fuses_coordinates ? kernels::cuda::OutputCoordinatesWorkspaceBytes(definition)
                                              : PlainOutputCoordinatesWorkspaceBytes(out.coordinates));
  }

  for (size_t i = 0; i < workload.maps.size(); ++i) {
    const NetworkMap& of = workload.maps[i];
    Level& in = levels_[static_cast<size_t>(of.in_level)];
    const Level& out = levels_[static_cast<size_t>(of.out_level)];
    if (!in.has_table) {
      in.has_table = true;
      in.build = {.keys = in.keys, .capacity = in.capacity, .num_keys = in.num_sites};
      in.plain_build = {.keys = in.keys, .capacity = in.capacity, .num_keys = in.num_sites};
      if (options.looks_up_bricks) {
        in.build.memory = Take<char>(static_cast<int64_t>(kernels::cuda::BrickTableBytes(in.build)));
      } else {
        in.plain_build.memory = Take<char>(static_cast<int64_t>(kernels::cuda::CoordinateTableBytes(in.plain_build)));
      }
    }
    const int32_t num_offsets = of.geometry.NumOffsets();
    Map map{.of = &of, .expected_offset_begin = &expected.offset_begin[i], .search = {}, .pairs = {}};
    map.search.geometry = of.geometry;
    map.search.out_keys = out.keys;
    map.search.out_capacity = out.capacity;
    map.search.num_out = out.num_sites;
    map.search.neighbours = Take<int32_t>(num_offsets * out.capacity);
    const kernels::OutputCoordinatesParams& made_by = out.coordinates.definition;
    if (!of.is_submanifold() && made_by.first_in_rows != nullptr && kernels::CellsAreBlocks(of.geometry) &&
        of.geometry.stride == made_by.geometry.stride) {
      map.search.first_in_rows = made_by.first_in_rows;
      map.search.in_keys = in.keys;
      map.search.in_capacity = in.capacity;
      map.search.num_in = in.num_sites;
    }
    if (options.makes_pairs) {
      map.pairs.num_offsets = num_offsets;
      map.pairs.neighbours = map.pairs.out_pairs = map.search.neighbours;
      map.pairs.out_capacity = out.capacity;
      map.pairs.num_out = out.num_sites;
      map.pairs.in_capacity = in.capacity;
      map.pairs.num_in = in.num_sites;
      map.pairs.is_symmetric = of.is_symmetric();
      map.pairs.in_pairs = Take<int32_t>(num_offsets * in.capacity);
      map.pairs.in_masks = Take<uint32_t>(kernels::MaskWords(num_offsets) * in.capacity);
      map.pairs.out_masks = Take<uint32_t>(kernels::MaskWords(num_offsets) * out.capacity);
      map.pairs.offset_begin = Take<int64_t>(num_offsets + 1);
      reserve_scratch(kernels::cuda::PairTablesWorkspaceBytes(map.pairs));
    }
    maps_.push_back(map);
  }

  scratch_ = Take<char>(static_cast<int64_t>(scratch_bytes));
  voxelize_.workspace = scratch_;
  for (Level& level : levels_) level.coordinates.definition.workspace = scratch_;
  for (Map& map : maps_) map.pairs.workspace = scratch_;
}

DeviceMapping::~DeviceMapping() = default;

template <typename T>
T* DeviceMapping::Take(int64_t count) {
  memory_.push_back(
      std::make_unique<support::DeviceArray<char>>(Device::kCuda, static_cast<size_t>(count) * sizeof(T)));
  return reinterpret_cast<T*>(memory_.back()->data());
}

template <typename T>
T* DeviceMapping::Take(const std::vector<T>& values) {
  T* const array = Take<T>(static_cast<int64_t>(values.size()));
  support::CopyToDevice(Device::kCuda, array, values.data(), values.size() * sizeof(T));
  return array;
}

void DeviceMapping::MakeCoordinates(int level) {
  if (level == 0) {
    ExpectCudaSuccess(kernels::cuda::Voxelize(voxelize_, TestStream()));
    return;
  }
  const PlainOutputCoordinatesParams& params = levels_[static_cast<size_t>(level)].coordinates;
  ExpectCudaSuccess(options_.fuses_coordinates ? kernels::cuda::OutputCoordinates(params.definition, TestStream())
                                               : PlainOutputCoordinates(params, TestStream()));
}

void DeviceMapping::Search(const Map& map) {
  const Level& in = levels_[static_cast<size_t>(map.of->in_level)];
  kernels::NeighbourSearchParams params = map.search;
  params.table = in.table;
  ExpectCudaSuccess(options_.looks_up_bricks ? kernels::cuda::SearchNeighbours(params, TestStream())
                                             : PlainSearchNeighbours(params, in.plain_table, TestStream()));
}

void DeviceMapping::Launch(const MarkStep& mark) {
  for (int i = 0; i < workload_.num_levels(); ++i) {
    Level& level = levels_[static_cast<size_t>(i)];
    // Level 0's sites come first. The sites of level i + 1 come with level i, since its strided map needs them.
    if (i == 0 && options_.voxelizes) {
      MakeCoordinates(0);
      mark(StepOf(0, MappingStep::kCoordinates));
    }
    if (i + 1 < workload_.num_levels()) {
      MakeCoordinates(i + 1);
      mark(StepOf(i + 1, MappingStep::kCoordinates));
    }
    if (!level.has_table) continue;
    ExpectCudaSuccess(options_.looks_up_bricks
                          ? kernels::cuda::BuildBrickTables({&level.build, 1}, {&level.table, 1}, TestStream())
                          : kernels::cuda::BuildCoordinateTable(level.plain_build, &level.plain_table, TestStream()));
    mark(StepOf(i, MappingStep::kTable));
    for (const Map& map : maps_) {
      if (map.of->in_level != i) continue;
      const bool is_submanifold = map.of->is_submanifold();
      Search(map);
      mark(StepOf(i, is_submanifold ? MappingStep::kSubmanifoldSearch : MappingStep::kStridedSearch));
      if (!options_.makes_pairs) continue;
      ExpectCudaSuccess(kernels::cuda::PairTables(map.pairs, TestStream()));
      mark(StepOf(i, is_submanifold ? MappingStep::kSubmanifoldPairs : MappingStep::kStridedPairs));
    }
  }
}

std::vector<uint64_t> DeviceMapping::Keys(int index) const {
  const Level& level = levels_[static_cast<size_t>(index)];
  return ToHost(level.keys, std::clamp<int64_t>(ToHost(level.num_sites, 1)[0], 0, level.capacity));
}

std::vector<int32_t> DeviceMapping::Neighbours(const Map& map) const {
  const int64_t num_sites = expected_.num_sites(map.of->out_level);
  std::vector<int32_t> neighbours;
  for (int32_t k = 0; k < map.of->geometry.NumOffsets(); ++k) {
    const std::vector<int32_t> of_offset = ToHost(map.search.neighbours + k * map.search.out_capacity, num_sites);
    neighbours.insert(neighbours.end(), of_offset.begin(), of_offset.end());
  }
  return neighbours;
}

std::string DeviceMapping::Flaw() const {
  for (int level = 0; level < workload_.num_levels(); ++level) {
    if (Keys(level) != ToMorton(expected_.levels[static_cast<size_t>(level)])) {
      return absl::StrCat("the sites of level ", level, " are not the CPU's");
    }
  }
  for (const Map& map : maps_) {
    std::vector<int64_t> offset_begin = {0};
    const int32_t num_offsets = map.of->geometry.NumOffsets();
    if (options_.makes_pairs) {
      offset_begin = ToHost(map.pairs.offset_begin, num_offsets + 1);
    } else {
      const std::vector<int32_t> neighbours = Neighbours(map);
      const int64_t num_sites = expected_.num_sites(map.of->out_level);
      for (int32_t k = 0; k < num_offsets; ++k) {
        const auto begin = neighbours.begin() + k * num_sites;
        offset_begin.push_back(offset_begin.back() +
                               std::count_if(begin, begin + num_sites, [](int32_t row) { return row >= 0; }));
      }
    }
    if (offset_begin != *map.expected_offset_begin) {
      return absl::StrCat("the sizes of the map of level ", map.of->in_level, ", ", map.of->name(),
                          ", are not the CPU's");
    }
  }
  return "";
}

std::string DeviceMapping::DifferenceFrom(const DeviceMapping& ours) const {
  for (int level = 0; level < workload_.num_levels(); ++level) {
    if (Keys(level) != ours.Keys(level)) return absl::StrCat("the sites of level ", level, " differ");
  }
  for (size_t i = 0; i < maps_.size(); ++i) {
    if (Neighbours(maps_[i]) != ours.Neighbours(ours.maps_[i])) {
      return absl::StrCat("the map of level ", maps_[i].of->in_level, ", ", maps_[i].of->name(), ", differs");
    }
  }
  return "";
}

}  // namespace voxserve::bench
