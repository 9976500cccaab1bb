#include <cassert>
#include <cmath>

#include "kernels/coordinates/coordinate_key.h"
#include "kernels/rows/rotary.h"

namespace voxserve::kernels {
namespace {

template <typename Params>
void SetFrequencies(float base, Params* params) {
  const int32_t pairs = params->PairsOfAnAxis();
  for (int32_t j = 0; j < pairs; ++j) {
    params->frequencies[j] = static_cast<float>(std::pow(double{base}, -static_cast<double>(j) / pairs));
  }
}

}  // namespace

void SetRotaryFrequencies(float base, RotaryParams* params) { SetFrequencies(base, params); }
void SetRotaryFrequencies(float base, RotaryAnglesParams* params) { SetFrequencies(base, params); }

namespace cpu {
namespace {

constexpr int64_t kRotaryBlockRows = 256;

}  // namespace

void Rotary(const RotaryParams& params, ThreadPool& pool) {
  assert(params.in.dtype == DType::kFloat32 && params.out.dtype == DType::kFloat32);
  const CoordinateKey layout(params.dimension);
  const int32_t pairs = params.PairsOfAnAxis();
  pool.ParallelFor(params.out.capacity, kRotaryBlockRows, [&](int64_t begin, int64_t end) {
    float sines[kMaxRotaryHeadChannels / 2], cosines[kMaxRotaryHeadChannels / 2];
    for (int64_t row = begin; row < end; ++row) {
      // All heads have the same angles.
      for (int32_t axis = 0; axis < params.dimension; ++axis) {
        const float position = params.positions.data != nullptr
                                   ? params.positions.floats(row)[axis]
                                   : static_cast<float>(layout.Coordinate(params.keys[row], axis));
        for (int32_t j = 0; j < pairs; ++j) {
          const float angle = position * params.frequencies[j];
          sines[axis * pairs + j] = std::sin(angle);
          cosines[axis * pairs + j] = std::cos(angle);
        }
      }
      const float* in = params.in.floats(row);
      float* out = params.out.floats(row);
      for (int32_t head = 0; head < params.num_heads; ++head) {
        for (int32_t axis = 0; axis < params.dimension; ++axis, in += 2 * pairs, out += 2 * pairs) {
          const float* const sine = sines + axis * pairs;
          const float* const cosine = cosines + axis * pairs;
          for (int32_t j = 0; j < pairs; ++j) {
            const float u = in[j], v = in[j + pairs];
            out[j] = u * cosine[j] - v * sine[j];
            out[j + pairs] = v * cosine[j] + u * sine[j];
          }
        }
      }
    }
  });
}

}  // namespace cpu
}  // namespace voxserve::kernels
