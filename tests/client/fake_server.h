#pragma once

// FakeServer serves InferenceService and AdminService in this process. The tests of the client use it, since they can
// predict its answers. Its methods are thread-safe. The destructor stops the server.
//
// The label of a point is the integer part of |x| modulo 3, or the ignore label if x is NaN. If a request asks for
// sampled points, the answer lists consecutive points: from point 1 if the request has a seed, else from its
// start_index. The name of the request's model decides how Infer answers:
//
//   segmenter  labels of the classes road, car and person; has the versions 1 and 2, and 2 is the newest
//   wide       the labels of segmenter plus 300, in two bytes each
//   slow       CANCELLED, once the call is cancelled or past its deadline
//   full       RESOURCE_EXHAUSTED with the reason QUEUE_FULL and a retry delay of 250 ms
//   liar       the labels of segmenter without the last one
//   sampler    one sampled point more than the request asked for
//   far        a first sampled point whose index is not in the cloud
//   detector   boxes in place of labels, one for each point whose x is not NaN: its class is the point's label, its
//              centre (x, x / 2, 1) m, its size 4 x 2 x 1.5 m, its yaw 0.5, its velocity (3, 4) m/s and its score
//              1 / (1 + the point's index)
//   both       the labels of segmenter and the boxes of detector
//   crooked    the boxes of detector with a yaw that is NaN
//   mute       neither labels nor boxes
//   ranged     the labels of segmenter, and a warning that intensity reaches 200; it states a range of 0 to 1
//   distant    the labels of segmenter, and 990 more points that are out of range
//   narrow     the labels of segmenter, and a point whose scores are not finite
//   loading    UNAVAILABLE with the reason MODEL_LOADING
//   broken     UNAVAILABLE with the reason MODEL_FAILED; GetModel describes a failed version with two problems
//   any other  NOT_FOUND with the reason MODEL_NOT_FOUND; GetModel, though, knows every name but "missing"
//
// InferStream answers each frame at once and in order; a frame in parts when its last part has come, in the order of
// the indices from 0. num_sweeps counts the frames since the last reset_sweeps, up to the config's num_sweeps.
// "missing" ends the stream with NOT_FOUND. "slow" reads no frames and ends with CANCELLED, as Infer does. "full" gives
// each frame the error of Infer's "full". These names exist only on streams:
//
//   held       reads its first frame only once ReleaseStreams was called; labels are those of segmenter
//   stranger   answers with the frame_id plus 1000
//   forgetful  answers no frame; the stream ends with OK
//   departing  sends going_away when the first part of a frame has come, and ends as "leaving" does when it has
//   answered
//              that frame
//   hasty      answers a frame in parts when its first part has come, and drops its other parts
//   leaving    answers the first frame with going_away and a result, then ends with UNAVAILABLE, reason DRAINING
//
// Every other name gets the labels or boxes of the table. A name that Infer refuses gets the labels of segmenter.
//
// TunePlan (a search for a plan, which says how a model's convolutions are computed) answers at once:
//
//   segmenter  four messages of progress, then a result with the path of the plan file
//   wide       the same, but without a path, as if the server could not write the file
//   liar       progress, then OK without a result
//   full       FAILED_PRECONDITION with the reason ALREADY_TUNING
//   slow       CANCELLED, as Infer does
//   any other  NOT_FOUND with the reason MODEL_NOT_FOUND
//
// LoadModel and UnloadModel answer at once:
//
//   segmenter  the version that the request names, or the versions 1 and 2 if it names none
//   wide       no versions
//   broken     FAILED_PRECONDITION with the reason BAD_MODEL and two problems
//   slow       CANCELLED, as Infer does
//   any other  NOT_FOUND with the reason MODEL_NOT_FOUND

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "voxserve/v1/admin.pb.h"
#include "voxserve/v1/inference.pb.h"

namespace voxserve::client {

class FakeServer {
 public:
  // Starts a server that listens at 127.0.0.1. If the port is 0, the system chooses a free one.
  explicit FakeServer(int port = 0);
  ~FakeServer();

  std::string address() const;
  void SetServing(bool serving);  // sets what the gRPC health service answers

  void ReleaseStreams();  // lets all streams of "held" read, now and later

  // Says how a stream ends early: it reads num_frames frames (or parts, which it does not answer), answers the first
  // num_answers of them, and ends with UNAVAILABLE.
  struct EarlyEnd {
    size_t num_frames = 1;
    size_t num_answers = 0;
    // If true, going_away comes before the last answer, and the error has the reason DRAINING. If false, the error has
    // no reason, like gRPC's own error for a broken connection.
    bool drains = false;
  };
  // Makes the next `count` streams end as `end` says.
  void EndStreams(int count, const EarlyEnd& end);
  // Makes the next `count` calls of Infer fail with UNAVAILABLE, without a reason.
  void RefuseCalls(int count);

  // Return the config of the last stream, and the frames that the server read from that stream.
  v1::StreamConfig last_stream_config() const;
  std::vector<v1::StreamFrame> frames() const;
  std::vector<v1::FramePart> parts() const;  // of all streams
  // Return the number of streams so far, and the ids of the frames of all streams in the order of reading.
  size_t num_streams() const;
  std::vector<uint64_t> all_frame_ids() const;
  // Return the request of the last TunePlan, and of the last Infer.
  v1::TunePlanRequest last_tune_request() const;
  v1::InferRequest last_request() const;
  // Returns the traceparent header of the last Infer call or stream, or "" if that call had none.
  std::string last_traceparent() const;
  // Returns the number of connections (different addresses and ports of clients) that have called Infer.
  size_t num_connections() const;
  size_t num_infer_calls() const;
  // Returns the timeout that the client set for the last GetModel.
  std::chrono::nanoseconds last_get_model_timeout() const;
  // Returns the largest number of Infer calls that ran at the same time.
  size_t max_concurrent_calls() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Returns an address of this machine at which nothing listens.
std::string UnusedAddress();

}  // namespace voxserve::client
