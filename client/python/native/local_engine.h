#pragma once

// LocalEngine answers requests in this process. It takes the server's path of a request below gRPC: the codec makes the
// engine's task from the same messages (server/codec/codec.h), the engine runs it, and the codec writes the answer. So
// the values of an answer are those of a server with the same options.
//
// - Threads: thread-safe. Several threads may run requests at the same time; the engine batches them.
// - Errors are those of the server, with its reasons and texts. A LocalEngine that was closed, or that a fork has
//   copied into a child process, returns FAILED_PRECONDITION.
// - The calling thread's current GPU stays as it is, for the caller's other libraries.
// - The messages are the client's own, so their size is not limited as the server limits it.

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/serving/engine.h"
#include "voxserve/v1/inference.pb.h"

namespace voxserve {

class LocalEngine {
 public:
  // One request. `head` is a serialized InferRequest without a cloud, `cloud` a serialized PointCloud without data, and
  // `points` the data. The bytes must live until Infer has returned.
  struct Request {
    std::string_view head;
    std::string_view cloud;
    std::string_view points;
    absl::Duration timeout = absl::InfiniteDuration();
  };

  // Opens the devices, loads the models and returns when each is ready or has failed. Errors: those of Engine::Create;
  // FAILED_PRECONDITION (BAD_MODEL), with the first problems, if models were found and none is ready; NOT_FOUND
  // (MODEL_NOT_FOUND) if there is no model in the repository.
  static absl::StatusOr<std::unique_ptr<LocalEngine>> Create(Engine::Options options);
  ~LocalEngine() { Close(); }

  // Runs a request and returns the answer, without a request id. Blocks. `is_interrupted` is called about ten times a
  // second; if it returns true, the request is given up (CANCELLED). A request without a timeout may take any time.
  absl::StatusOr<v1::InferResponse> Infer(const Request& request, absl::FunctionRef<bool()> is_interrupted)
      ABSL_LOCKS_EXCLUDED(mutex_);

  absl::StatusOr<v1::ListModelsResponse> ListModels() const ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<v1::GetModelResponse> GetModel(const std::string& name, int64_t version) const
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the ids of the devices, such as "cpu" or "cuda:0,cuda:1".
  absl::StatusOr<std::string> devices() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Waits for the requests that run, then frees devices and memory. Idempotent.
  void Close() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  explicit LocalEngine(std::shared_ptr<Engine> engine);
  absl::StatusOr<std::shared_ptr<Engine>> Opened() const ABSL_LOCKS_EXCLUDED(mutex_);

  const pid_t process_;
  const bool uses_gpus_;
  mutable absl::Mutex mutex_;
  std::shared_ptr<Engine> engine_ ABSL_GUARDED_BY(mutex_);  // null: closed
};

}  // namespace voxserve
