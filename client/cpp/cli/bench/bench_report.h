#pragma once

// These functions format the progress and the results of `voxserve-client bench` for people and programs.

#include <string>

#include "client/cpp/cli/bench/bench_run.h"
#include "client/cpp/cli/command.h"

namespace voxserve::client {

// The scans that were sent.
struct BenchInput {
  size_t num_scans = 0;
  uint64_t num_points = 0;  // sum over all scans
};

// Returns a line such as "closed loop, 8 callers, 8 connections; 3 scans of 124,621 points".
std::string DescribeLoad(const BenchOptions& options, const BenchInput& input);

// Returns the result as tables for people.
std::string FormatBench(const BenchOptions& options, const BenchInput& input, const BenchResult& result);

// Returns the settings and the result as JSON, with latencies in milliseconds.
std::string FormatBenchJson(const BenchOptions& options, const BenchInput& input, const BenchResult& result);

// Returns one line, such as "[####......]  40%  812.3 scans/s  p99 9.8 ms  8 in flight  3 failed".
std::string FormatBenchProgress(const BenchProgress& progress);

}  // namespace voxserve::client
