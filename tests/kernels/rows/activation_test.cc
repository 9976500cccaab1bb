// Tests every activation against its definition in double, through the kernels that end with an epilogue.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "kernels/core/gemm_cuda.h"
#include "kernels/rows/linear.h"
#include "kernels/rows/scale_shift.h"
#include "tests/kernels/core/feature_testing.h"

namespace voxserve::kernels::activation_test {
namespace {

using support::ExpectCudaSuccess;
using support::TestStream;

const std::vector<Activation> kActivations = {ActivationFunction::kNone,
                                              ActivationFunction::kRelu,
                                              {ActivationFunction::kLeakyRelu, 0.125f},
                                              {ActivationFunction::kLeakyRelu, -2},
                                              ActivationFunction::kSigmoid,
                                              ActivationFunction::kGelu,
                                              ActivationFunction::kSilu,
                                              ActivationFunction::kTanh,
                                              {ActivationFunction::kElu, 1.5f},
                                              {ActivationFunction::kClamp, -1.25f, 6},
                                              ActivationFunction::kHardSigmoid,
                                              ActivationFunction::kHardSwish,
                                              {ActivationFunction::kSoftplus, 0.5f},
                                              ActivationFunction::kMish,
                                              ActivationFunction::kGeluTanh,
                                              ActivationFunction::kAbs};

// These activations have no finite value for some inputs, or their slopes are too steep for the tolerance of a sum.
const std::vector<Activation> kPartialActivations = {
    ActivationFunction::kExp,  ActivationFunction::kLog,           ActivationFunction::kSquare,
    ActivationFunction::kSqrt, {ActivationFunction::kPower, 1.5f}, {ActivationFunction::kPower, 3}};

double Defined(const Activation& activation, double x) {
  switch (activation.function) {
    case ActivationFunction::kNone:
      return x;
    case ActivationFunction::kRelu:
      return x > 0 ? x : 0;
    case ActivationFunction::kLeakyRelu:
      return x > 0 ? x : activation.parameter * x;
    case ActivationFunction::kSigmoid:
      return 1 / (1 + std::exp(-x));
    case ActivationFunction::kGelu:
      return x * (1 + std::erf(x / std::sqrt(2.0))) / 2;
    case ActivationFunction::kSilu:
      return x / (1 + std::exp(-x));
    case ActivationFunction::kTanh:
      return std::tanh(x);
    case ActivationFunction::kElu:
      return x > 0 ? x : activation.parameter * std::expm1(x);
    case ActivationFunction::kClamp:
      return std::max(std::min(x, double{activation.largest}), double{activation.parameter});
    case ActivationFunction::kHardSigmoid:
      return std::min(std::max(x + 3, 0.0), 6.0) / 6;
    case ActivationFunction::kHardSwish:
      return x * std::min(std::max(x + 3, 0.0), 6.0) / 6;
    case ActivationFunction::kSoftplus:
      return activation.parameter * x > 100 ? x : std::log1p(std::exp(activation.parameter * x)) / activation.parameter;
    case ActivationFunction::kMish:
      return x > 100 ? x : x * std::tanh(std::log1p(std::exp(x)));
    case ActivationFunction::kGeluTanh:
      return x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))) / 2;
    case ActivationFunction::kExp:
      return std::exp(x);
    case ActivationFunction::kLog:
      return std::log(x);
    case ActivationFunction::kSquare:
      return x * x;
    case ActivationFunction::kSqrt:
      return std::sqrt(x);
    case ActivationFunction::kAbs:
      return std::abs(x);
    case ActivationFunction::kPower:
      return std::pow(x, double{activation.parameter});
  }
  return 0;
}

void RunLinear(Device device, const LinearParams& params) {
  if (device == Device::kCpu) {
    ThreadPool pool(2);
    cpu::Linear(params, pool);
    return;
  }
  if constexpr (kHasCuda) {
    const DeviceArray<char> workspace(Device::kCuda, cuda::Gemm::kWorkspaceBytes);
    std::unique_ptr<cuda::Gemm> gemm;
    ExpectCudaSuccess(cuda::Gemm::Create(TestStream(), workspace.data(), &gemm));
    ExpectCudaSuccess(cuda::Linear(params, *gemm, TestStream()));
    support::Synchronize();
  }
}

class ActivationTest : public testing::TestWithParam<Ground> {
 protected:
  void SetUp() override { SKIP_WITHOUT(GetParam().device); }
  Device device() const { return GetParam().device; }
  DType dtype() const { return GetParam().dtype; }

  // Runs [1, values] through scale and shift with only the activation. The margin determines the width of accesses.
  std::vector<float> Apply(const Activation& activation, const std::vector<float>& values, int64_t margin) const {
    Matrix in(1, static_cast<int64_t>(values.size()), {.before = margin, .after = margin}, nullptr);
    for (size_t i = 0; i < values.size(); ++i) in.at(0, static_cast<int64_t>(i)) = values[i];
    const DeviceMatrix matrix(device(), dtype(), in);
    const ScaleShiftParams params{.in = matrix.View(), .out = matrix.View(), .epilogue = {.activation = activation}};
    if (device() == Device::kCpu) {
      ThreadPool pool(2);
      cpu::ScaleShift(params, pool);
    } else if constexpr (kHasCuda) {
      ExpectCudaSuccess(cuda::ScaleShift(params, TestStream()));
    }
    const Matrix out = matrix.ToHost();
    EXPECT_TRUE(out.MarginsAreUntouched());
    std::vector<float> result;
    for (int64_t c = 0; c < out.channels; ++c) result.push_back(out.at(0, c));
    return result;
  }
};

TEST_P(ActivationTest, EqualsItsDefinition) {
  std::vector<float> values;
  for (int i = -48; i < 48; ++i) values.push_back(Rounded(dtype(), 0.21f * static_cast<float>(i)));
  for (const float x : {-1000.0f, -100.0f, -20.0f, -1e-3f, -0.0f, 1e-3f, 20.0f, 1000.0f}) {
    values.push_back(Rounded(dtype(), x));
  }
  for (const Activation& activation : kActivations) {
    for (const int64_t margin : {0, 8, 3}) {
      const std::vector<float> results = Apply(activation, values, margin);
      for (size_t i = 0; i < values.size(); ++i) {
        const double expected = Defined(activation, values[i]);
        EXPECT_NEAR(results[i], expected, Tolerance(dtype(), std::abs(expected)))
            << "function " << static_cast<int>(activation.function) << " of " << values[i];
      }
    }
  }
}

TEST_P(ActivationTest, OfNumbersThatItIsDefinedForEqualsItsDefinition) {
  std::vector<float> values;
  for (int i = -8; i < 40; ++i) values.push_back(Rounded(dtype(), 0.21f * static_cast<float>(i)));
  values.push_back(0);
  for (const Activation& activation : kPartialActivations) {
    const std::vector<float> results = Apply(activation, values, 0);
    for (size_t i = 0; i < values.size(); ++i) {
      const double expected = Defined(activation, values[i]);
      if (!std::isfinite(expected)) {
        EXPECT_EQ(std::isnan(results[i]), std::isnan(expected)) << values[i];
        EXPECT_EQ(std::isinf(results[i]), std::isinf(expected)) << values[i];
        continue;
      }
      EXPECT_NEAR(results[i], expected, 4 * Tolerance(dtype(), std::abs(expected)))
          << "function " << static_cast<int>(activation.function) << " of " << values[i];
    }
  }
}

// GELU is x (1 + erf(x / sqrt(2))) / 2. At x = -4 the sum cancels nearly all digits, so the kernel must use
// x erfc(-x / sqrt(2)) / 2, which is -1.2668e-4.
TEST_P(ActivationTest, GeluOfFarNegativeValuesKeepsItsDigits) {
  const float result = Apply(ActivationFunction::kGelu, {-4}, 0)[0];
  const double expected = -2 * std::erfc(4 / std::sqrt(2.0));
  EXPECT_NEAR(result / expected, 1, dtype() == DType::kFloat32 ? 1e-5 : 0.01);
}

TEST_P(ActivationTest, NanStaysNan) {
  std::vector<Activation> activations = kActivations;
  activations.insert(activations.end(), kPartialActivations.begin(), kPartialActivations.end());
  for (const Activation& activation : activations) {
    EXPECT_TRUE(std::isnan(Apply(activation, {std::numeric_limits<float>::quiet_NaN()}, 0)[0]))
        << static_cast<int>(activation.function);
  }
}

// A library's epilogue only has ReLU.
TEST_P(ActivationTest, EndsALinearLayer) {
  Random random(1);
  for (const int32_t channels : {8, 5}) {
    const Matrix in(70, channels, {}, &random, dtype()), residual(70, channels, {}, &random, dtype());
    const std::vector<float> weights = random.Floats(channels * channels, dtype());
    const std::vector<float> bias = random.Floats(channels, dtype());
    const DeviceMatrix device_in(device(), dtype(), in), device_residual(device(), dtype(), residual);
    const DeviceValues device_weights(device(), dtype(), weights), device_bias(device(), dtype(), bias);
    for (const bool has_residual : {false, true}) {
      for (const Activation& activation : kActivations) {
        const DeviceMatrix out(device(), dtype(), Matrix(70, channels, {}, nullptr));
        const LinearParams params{.in = device_in.View(),
                                  .weights = device_weights.data(),
                                  .out = out.View(),
                                  .epilogue = {.bias = device_bias.data(),
                                               .residual = has_residual ? device_residual.View() : ConstRows{},
                                               .activation = activation}};
        RunLinear(device(), params);
        const Matrix result = out.ToHost();
        for (int64_t row = 0; row < 70; ++row) {
          for (int32_t o = 0; o < channels; ++o) {
            double sum = bias[static_cast<size_t>(o)], magnitude = std::abs(sum);
            for (int32_t i = 0; i < channels; ++i) {
              const double product = double{in.at(row, i)} * weights[static_cast<size_t>(i * channels + o)];
              sum += product;
              magnitude += std::abs(product);
            }
            if (has_residual) {
              sum += residual.at(row, o);
              magnitude += std::abs(residual.at(row, o));
            }
            // No activation in kActivations has a slope above 2, so it at most doubles the sum's error.
            ASSERT_NEAR(result.at(row, o), Defined(activation, sum), 2 * Tolerance(dtype(), magnitude))
                << "function " << static_cast<int>(activation.function) << ", row " << row << ", channel " << o;
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Grounds, ActivationTest, AllGrounds(), GroundName);

}  // namespace
}  // namespace voxserve::kernels::activation_test
