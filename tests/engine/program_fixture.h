#pragma once

// RunnerTest and ProgramTest are fixtures of tests that run one program. RunnerTest starts a runner with the options
// that the test gives. ProgramTest runs every test on each device, and starts a runner for that device.

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "engine/runtime/memory_budget.h"
#include "tests/engine/device_runner.h"

namespace voxserve {

class RunnerTest : public ::testing::Test {
 protected:
  // Destroys the program and the runner that the test has, and starts a new runner. budget limits the new runner's host
  // memory; if it is null, the memory is not counted.
  void StartRunner(DeviceRunner::Options options, std::unique_ptr<MemoryBudget> budget = nullptr) {
    program_ = Program();
    runner_.reset();
    budget_ = std::move(budget);
    options.memory_budget = budget_.get();
    auto runner = DeviceRunner::Create(options);
    ASSERT_TRUE(runner.ok()) << runner.status();
    runner_ = *std::move(runner);
  }

  // Compiles the graph into program_ for a GPU: in float16, by the default plan, and deterministic, so that tests can
  // compare answers byte by byte.
  void CompileInHalf(const absl::StatusOr<Graph>& graph) {
    ASSERT_TRUE(graph.ok()) << graph.status();
    CompileAs(*graph, {.device = support::Device::kCuda,
                       .precision = ModelConfig::Precision::kFloat16,
                       .plan = kDefaultCudaConvPlan,
                       .is_deterministic = true});
  }

  // Compiles the graph into program_.
  void CompileAs(const Graph& graph, const Variant& variant) {
    auto program = runner_->Compile(graph, variant);
    ASSERT_TRUE(program.ok()) << program.status();
    program_ = *std::move(program);
  }

  // The order matters, since each member must outlive those below it: the runner reserves its memory in the budget, and
  // the runner's device holds the program's weights.
  std::unique_ptr<MemoryBudget> budget_;
  std::unique_ptr<DeviceRunner> runner_;
  Program program_;
};

class ProgramTest : public RunnerTest, public ::testing::WithParamInterface<support::Device> {
 protected:
  // An override calls this first, and goes on only if runner_ is not null after that.
  void SetUp() override {
    SKIP_WITHOUT(GetParam());
    StartRunner({.device = GetParam()});
  }

  // Compiles the graph into program_, in float32. A GPU runs it by the default plan.
  void Compile(const Graph& graph, bool is_deterministic = false) {
    Variant variant{.device = GetParam(), .is_deterministic = is_deterministic};
    if (GetParam() == support::Device::kCuda) variant.plan = kDefaultCudaConvPlan;
    CompileAs(graph, variant);
  }
};

}  // namespace voxserve
