#pragma once

// A server of the wire's InferenceService that computes labels a test can foresee: the integer part of |x| modulo 3,
// the ignore label where x is NaN. What a model does is in its name:
//
//   segmenter  classes road, car, person; version 2 is the newest, 1 exists
//   wide       the same with 300 added, two bytes a label
//   slow       answers when the call is cancelled or past its deadline
//   full       RESOURCE_EXHAUSTED, QUEUE_FULL, with a delay of 250 ms
//   liar       answers one label too few
//   loading    UNAVAILABLE, MODEL_LOADING
//   broken     failed, with two problems
//   any other  NOT_FOUND, MODEL_NOT_FOUND
//
// Searches of plans (AdminService) end at once: segmenter with a result, wide with one that could not be written, full
// with FAILED_PRECONDITION, ALREADY_TUNING, liar without a result, slow and others as above.

#include <memory>
#include <string>

#include "voxserve/v1/admin.pb.h"
#include "voxserve/v1/inference.pb.h"

namespace voxserve::client {

class FakeServer {
 public:
  // At 127.0.0.1; port 0 is one that is free.
  explicit FakeServer(int port = 0);
  ~FakeServer();

  std::string address() const;
  void SetServing(bool serving);

  // Of the last TunePlan, and of the last Infer.
  v1::TunePlanRequest last_tune_request() const;
  v1::InferRequest last_request() const;
  // Peers (address and port of the client's end) that have called Infer.
  size_t num_connections() const;
  size_t max_concurrent_calls() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// An address of this machine where nothing listens.
std::string UnusedAddress();

}  // namespace voxserve::client
