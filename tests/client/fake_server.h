#pragma once

// A server of the wire's InferenceService that computes labels a test can foresee: the integer part of |x| modulo 3,
// the ignore label where x is NaN. A sample is of consecutive points from the start on, or from point 1 where there is
// a seed. What a model does is in its name:
//
//   segmenter  classes road, car, person; version 2 is the newest, 1 exists
//   wide       the same with 300 added, two bytes a label
//   slow       answers when the call is cancelled or past its deadline
//   full       RESOURCE_EXHAUSTED, QUEUE_FULL, with a delay of 250 ms
//   liar       answers one label too few
//   sampler    answers one sampled point too many
//   far        answers a sampled point beyond the cloud's
//   detector   boxes in place of labels: of a point that is not NaN one, with the label of segmenter as its class,
//              at (x, x / 2, 1), 4 x 2 x 1.5 m, yaw 0.5, velocity (3, 4), score 1 / (1 + the point's index)
//   both       labels and boxes
//   crooked    as detector, with a yaw that is NaN
//   mute       neither labels nor boxes
//   loading    UNAVAILABLE, MODEL_LOADING
//   broken     failed, with two problems
//   any other  NOT_FOUND, MODEL_NOT_FOUND
//
// Streams answer each frame as Infer does, at once and in order, with num_sweeps counted up to the config's; slow reads
// no frames. More models are for them:
//
//   held       reads frames only once ReleaseStreams was called; then as segmenter
//   stranger   answers frame_id + 1000
//   forgetful  answers nothing and ends with OK
//   leaving    at the first frame: going_away, the answer, then UNAVAILABLE, DRAINING
//
// Searches of plans (AdminService) end at once: segmenter with a result, wide with one that could not be written, full
// with FAILED_PRECONDITION, ALREADY_TUNING, liar without a result, slow and others as above.
//
// Loads and unloads too: segmenter has versions 1 and 2, or the one that was asked for; wide none; broken has two
// problems (FAILED_PRECONDITION, BAD_MODEL); slow and others as above.

#include <chrono>
#include <memory>
#include <string>
#include <vector>

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

  void ReleaseStreams();

  // Of the last stream: its config, and the frames that were read.
  v1::StreamConfig last_stream_config() const;
  std::vector<v1::StreamFrame> frames() const;
  // Of the last TunePlan, and of the last Infer.
  v1::TunePlanRequest last_tune_request() const;
  v1::InferRequest last_request() const;
  // Peers (address and port of the client's end) that have called Infer.
  size_t num_connections() const;
  size_t num_infer_calls() const;
  // The time that the client gave the last GetModel.
  std::chrono::nanoseconds last_get_model_timeout() const;
  size_t max_concurrent_calls() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// An address of this machine where nothing listens.
std::string UnusedAddress();

}  // namespace voxserve::client
