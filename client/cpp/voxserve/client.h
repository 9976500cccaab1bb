#pragma once

// Client is the C++ client of a voxserve server: it sends a point cloud, and gets a label per point, boxes or tensors.
//
//   auto client = voxserve::Client::Create(voxserve::ClientOptions("localhost:8500"));
//   auto cloud = voxserve::PointCloud::Read("scan.bin");
//   auto result = client->Infer(voxserve::InferOptions("minkunet"), *std::move(cloud));
//   if (result.ok()) Use(result->labels());
//
// Thread-safe but for moves: one client serves a whole process. These headers need C++20 and the standard library
// alone.

#include <voxserve/answer.h>
#include <voxserve/export.h>
#include <voxserve/model.h>
#include <voxserve/options.h>
#include <voxserve/point_cloud.h>
#include <voxserve/status.h>
#include <voxserve/stream.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

namespace voxserve::detail {
struct ClientData;
}

namespace voxserve {
inline namespace abi0 {

// Returns the version of the library that the program runs with, such as "0.1.0".
VOXSERVE_API std::string_view LibraryVersion() noexcept;

class VOXSERVE_API Client {
 public:
  // Connects lazily: only the first call fails if there is no server. INVALID_ARGUMENT for bad options.
  static Result<Client> Create(const ClientOptions& options);

  explicit Client(std::unique_ptr<detail::ClientData> data) noexcept;  // private to the library
  // Cancels asynchronous calls and waits until their callbacks have returned. Not within such a callback, and no
  // callback may own the client or one of its streams.
  ~Client();
  Client(Client&& other) noexcept;
  Client& operator=(Client&& other) noexcept;

  // Return the labels, boxes or only the tensors of a model. Block. A cloud that is moved in is not copied. Errors are
  // the server's, and the client's own of status.h; INVALID_ARGUMENT (UNSUPPORTED_OUTPUT) if the model has no such
  // output, with a message that names the call to make instead.
  Result<Segmentation> Infer(const InferOptions& options, PointCloud cloud);
  Result<Detections> Detect(const InferOptions& options, PointCloud cloud);
  Result<Answer> InferTensors(const InferOptions& options, PointCloud cloud);

  // Return at once. `done` is called exactly once: on a thread of the library, or on the caller's if the client itself
  // refuses the request. It must not block.
  void InferAsync(const InferOptions& options, PointCloud cloud, std::function<void(Result<Segmentation>)> done);
  void DetectAsync(const InferOptions& options, PointCloud cloud, std::function<void(Result<Detections>)> done);

  // Open a stream of one vehicle's frames, to a model with labels, boxes or tensors. Return at once: on_end reports an
  // address without a server, or a model that does not exist. The stream may outlive the client.
  Result<Stream> OpenStream(const StreamOptions& options, OnResult<Segmentation> on_result, StreamEvents events = {});
  Result<Stream> OpenDetectionStream(const StreamOptions& options, OnResult<Detections> on_result,
                                     StreamEvents events = {});
  Result<Stream> OpenTensorStream(const StreamOptions& options, OnResult<Answer> on_result, StreamEvents events = {});

  Result<std::vector<Model>> ListModels();  // every version of every model, also those that failed to load
  Result<Model> GetModel(std::string_view name, int64_t version = 0);  // 0: the newest that is ready
  // Load a version of a model (0: as its policy says) or take it out of service (0: all). Return the versions loaded or
  // taken out.
  Result<std::vector<int64_t>> LoadModel(std::string_view name, int64_t version = 0);
  Result<std::vector<int64_t>> UnloadModel(std::string_view name, int64_t version = 0);
  // Returns whether the server should get requests; UNAVAILABLE (NO_SERVER) if there is no server.
  Result<bool> IsServing();

 private:
  std::unique_ptr<detail::ClientData> data_;  // null after the client was moved from
};

}  // namespace abi0
}  // namespace voxserve
