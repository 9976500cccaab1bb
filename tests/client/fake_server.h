#pragma once

// A server of InferenceService whose answers a test can predict. The label of a point is the integer part of |x| modulo
// 3, or the ignore label if x is NaN. A sample consists of consecutive points from the start, or from point 1 if the
// request has a seed. The name of a model determines what it does:
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
// A stream answers each frame as Infer does, at once and in order, with num_sweeps counted up to the config's number.
// The stream of "slow" reads no frames. These models exist only for streams:
//
//   held       reads frames only once ReleaseStreams was called; then as segmenter
//   stranger   answers frame_id + 1000
//   forgetful  answers nothing and ends with OK
//   leaving    at the first frame: going_away, the answer, then UNAVAILABLE, DRAINING
//
// A search of a plan (AdminService) ends at once. For "segmenter" it has a result, and for "wide" a result that could
// not be written. "full" answers FAILED_PRECONDITION, ALREADY_TUNING, and "liar" answers without a result. "slow" and
// the other models behave as above.
//
// A load or unload ends at once too. "segmenter" then has versions 1 and 2, or only the version that was asked for, and
// "wide" has none. "broken" has two problems (FAILED_PRECONDITION, BAD_MODEL). "slow" and the other models behave as
// above.

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "voxserve/v1/admin.pb.h"
#include "voxserve/v1/inference.pb.h"

namespace voxserve::client {

class FakeServer {
 public:
  // Listens at 127.0.0.1. Port 0 chooses a free port.
  explicit FakeServer(int port = 0);
  ~FakeServer();

  std::string address() const;
  void SetServing(bool serving);

  void ReleaseStreams();

  // How a stream ends early: it reads so many frames, answers the first ones, and ends with UNAVAILABLE.
  struct EarlyEnd {
    size_t num_frames = 1;
    size_t num_answers = 0;
    bool drains = false;  // with going_away before the last answer, and DRAINING; else without a reason, as gRPC does
  };
  // The next streams end early.
  void EndStreams(int count, const EarlyEnd& end);
  // The next calls of Infer are refused with UNAVAILABLE, without a reason.
  void RefuseCalls(int count);

  // Return the config of the last stream, and the frames that were read from it.
  v1::StreamConfig last_stream_config() const;
  std::vector<v1::StreamFrame> frames() const;
  // Return the number of streams, and the ids of all their frames, in the order in which they were read.
  size_t num_streams() const;
  std::vector<uint64_t> all_frame_ids() const;
  // Return the request of the last TunePlan, and of the last Infer.
  v1::TunePlanRequest last_tune_request() const;
  v1::InferRequest last_request() const;
  // Returns the traceparent of the last Infer or stream; "" if it had none.
  std::string last_traceparent() const;
  // Returns the number of connections (different addresses and ports of clients) that have called Infer.
  size_t num_connections() const;
  size_t num_infer_calls() const;
  // Returns the timeout that the client set for the last GetModel.
  std::chrono::nanoseconds last_get_model_timeout() const;
  size_t max_concurrent_calls() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Returns an address of this machine at which nothing listens.
std::string UnusedAddress();

}  // namespace voxserve::client
