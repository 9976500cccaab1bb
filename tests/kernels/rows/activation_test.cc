// Tests every activation against its published formula (activation_formulas.h), through the kernels that end with an
// epilogue.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/rows/scale_shift.h"
#include "tests/kernels/core/feature_testing.h"
#include "tests/kernels/rows/run_linear.h"
#include "tests/support/activation_formulas.h"

namespace voxserve::kernels::activation_test {
namespace {

using support::DefinedActivation;
using support::EveryActivation;
using support::ExpectCudaSuccess;
using support::TestStream;

std::vector<float> TestValues(DType dtype) {
  std::vector<float> values;
  for (int i = -48; i < 48; ++i) values.push_back(Rounded(dtype, 0.21f * static_cast<float>(i)));
  for (const float x : {-1000.0f, -100.0f, -20.0f, -1e-3f, -0.0f, 1e-3f, 20.0f, 1000.0f}) {
    values.push_back(Rounded(dtype, x));
  }
  return values;
}

// Returns whether an activation has a finite value for every input and no slope above 2, so that it at most doubles the
// error of a sum.
bool IsGentle(const Activation& activation) {
  std::vector<float> values = TestValues(DType::kFloat32);
  std::sort(values.begin(), values.end());
  for (size_t i = 1; i < values.size(); ++i) {
    const double rise = DefinedActivation(activation, values[i]) - DefinedActivation(activation, values[i - 1]);
    if (!(std::abs(rise) <= 2.001 * (double{values[i]} - values[i - 1]))) return false;  // also if it is not a number
  }
  return true;
}

// Returns those of all activations that are gentle, or the others.
std::vector<Activation> Activations(bool are_gentle) {
  std::vector<Activation> activations = EveryActivation();
  std::erase_if(activations, [&](const Activation& activation) { return IsGentle(activation) != are_gentle; });
  return activations;
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
  const std::vector<float> values = TestValues(dtype());
  for (const Activation& activation : Activations(/*are_gentle=*/true)) {
    for (const int64_t margin : {0, 8, 3}) {
      const std::vector<float> results = Apply(activation, values, margin);
      for (size_t i = 0; i < values.size(); ++i) {
        const double expected = DefinedActivation(activation, values[i]);
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
  for (const Activation& activation : Activations(/*are_gentle=*/false)) {
    const std::vector<float> results = Apply(activation, values, 0);
    for (size_t i = 0; i < values.size(); ++i) {
      const double expected = DefinedActivation(activation, values[i]);
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
  for (const Activation& activation : EveryActivation()) {
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
      for (const Activation& activation : Activations(/*are_gentle=*/true)) {
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
            ASSERT_NEAR(result.at(row, o), DefinedActivation(activation, sum), 2 * Tolerance(dtype(), magnitude))
                << "function " << static_cast<int>(activation.function) << ", row " << row << ", channel " << o;
          }
        }
      }
    }
  }
}

// The published formulas give the numbers of PyTorch's functions.
TEST(ActivationFormulasTest, ArePyTorchs) {
  const auto expect = [](const Activation& activation, double x, double published) {
    EXPECT_NEAR(DefinedActivation(activation, x), published, 1e-8) << static_cast<int>(activation.function);
  };
  EXPECT_GE(Activations(/*are_gentle=*/true).size(), 16u);
  EXPECT_GE(Activations(/*are_gentle=*/false).size(), 6u);
  expect(ActivationFunction::kNone, -3, -3);
  expect(ActivationFunction::kRelu, -1.5, 0);
  expect(ActivationFunction::kRelu, 1.5, 1.5);
  expect({ActivationFunction::kLeakyRelu, 0.125f}, -1.5, -0.1875);
  expect({ActivationFunction::kLeakyRelu, 0.125f}, 1.5, 1.5);
  expect(ActivationFunction::kSigmoid, -1.5, 0.182425524);
  expect(ActivationFunction::kGelu, -1.5, -0.100210802);
  expect(ActivationFunction::kGelu, 1.5, 1.399789198);
  expect(ActivationFunction::kSilu, -1.5, -0.273638286);
  expect(ActivationFunction::kTanh, -1.5, -0.905148254);
  expect({ActivationFunction::kElu, 1.5f}, -1.5, -1.16530476);
  expect({ActivationFunction::kElu, 1.5f}, 1.5, 1.5);
  expect({ActivationFunction::kClamp, -1.25f, 6}, -1.5, -1.25);
  expect({ActivationFunction::kClamp, -1.25f, 6}, 1.5, 1.5);
  expect({ActivationFunction::kClamp, -1.25f, 6}, 7, 6);
  expect(ActivationFunction::kHardSigmoid, -1.5, 0.25);
  expect(ActivationFunction::kHardSigmoid, -4, 0);
  expect(ActivationFunction::kHardSigmoid, 4, 1);
  expect(ActivationFunction::kHardSwish, -1.5, -0.375);
  expect(ActivationFunction::kHardSwish, -4, 0);
  expect(ActivationFunction::kHardSwish, 4, 4);
  expect({ActivationFunction::kSoftplus, 0.5f}, -1.5, 0.773742012);
  expect(ActivationFunction::kMish, -1.5, -0.298099742);
  expect(ActivationFunction::kMish, 1.5, 1.403378266);
  expect(ActivationFunction::kGeluTanh, -1.5, -0.100428423);
  expect(ActivationFunction::kGeluTanh, 1.5, 1.399571577);
  expect(ActivationFunction::kExp, -1.5, 0.22313016);
  expect(ActivationFunction::kLog, 1.5, 0.405465108);
  expect(ActivationFunction::kSquare, -1.5, 2.25);
  expect(ActivationFunction::kSqrt, 1.5, 1.224744871);
  expect(ActivationFunction::kAbs, -1.5, 1.5);
  expect({ActivationFunction::kPower, 1.5f}, 1.5, 1.837117307);
  expect({ActivationFunction::kPower, 3}, -1.5, -3.375);
}

INSTANTIATE_TEST_SUITE_P(Grounds, ActivationTest, AllGrounds(), GroundName);

}  // namespace
}  // namespace voxserve::kernels::activation_test
