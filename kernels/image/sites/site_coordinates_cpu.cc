#include <cassert>

#include "kernels/coordinates/coordinate_key.h"
#include "kernels/image/sites/site_coordinates.h"

namespace voxserve::kernels::cpu {
namespace {

constexpr int64_t kSiteCoordinatesBlockRows = 2048;

}  // namespace

void SiteCoordinates(const SiteCoordinatesParams& params, ThreadPool& pool) {
  assert(params.out.dtype == DType::kFloat32);
  const int32_t dimension = params.out.channels;
  const CoordinateKey layout(dimension);
  pool.ParallelFor(params.out.capacity, kSiteCoordinatesBlockRows, [&](int64_t begin, int64_t end) {
    for (int64_t site = begin; site < end; ++site) {
      float* const out = params.out.floats(site);
      for (int axis = 0; axis < dimension; ++axis) {
        out[axis] = CoordinateColumn(params, axis, layout.Coordinate(params.keys[site], axis));
      }
    }
  });
}

}  // namespace voxserve::kernels::cpu
