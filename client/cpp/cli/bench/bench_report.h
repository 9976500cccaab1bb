#pragma once

// What a person or a program is told about a run of `voxserve-client bench`.

#include <string>

#include "client/cpp/cli/bench/bench_run.h"
#include "client/cpp/cli/command.h"

namespace voxserve::client {

// What was sent.
struct BenchInput {
  size_t num_scans = 0;
  uint64_t num_points = 0;  // of all scans together
};

// "closed loop, 8 callers, 8 connections; 3 scans of 124,621 points"
std::string DescribeLoad(const BenchOptions& options, const BenchInput& input);

// The tables.
std::string FormatBench(const BenchOptions& options, const BenchInput& input, const BenchResult& result);

// The same with the settings; latencies in milliseconds.
std::string FormatBenchJson(const BenchOptions& options, const BenchInput& input, const BenchResult& result);

// One line: "[####......]  40%  812.3 scans/s  p99 9.8 ms  8 under way  3 failed"
std::string FormatBenchProgress(const BenchProgress& progress);

}  // namespace voxserve::client
