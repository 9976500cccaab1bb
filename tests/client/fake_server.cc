#include "tests/client/fake_server.h"

#include <arpa/inet.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <limits>
#include <mutex>
#include <optional>
#include <set>

#include "tests/client/fake_admin.h"
#include "tests/client/fake_errors.h"
#include "voxserve/v1/inference.grpc.pb.h"

namespace voxserve::client {
namespace {

constexpr uint32_t kIgnoreLabel = 255;

const char* const kClassNames[] = {"road", "car", "person"};

bool HasBoxes(const std::string& model) { return model == "detector" || model == "both" || model == "crooked"; }
bool HasLabels(const std::string& model) { return model == "both" || (!HasBoxes(model) && model != "mute"); }

v1::ModelVersion Describe(const std::string& name, int64_t version) {
  v1::ModelVersion model;
  model.set_name(name);
  model.set_version(version);
  model.set_state(v1::MODEL_STATE_READY);
  model.set_ignore_label(kIgnoreLabel);
  model.set_has_labels(HasLabels(name));
  model.set_has_scores(HasLabels(name));
  model.set_has_boxes(HasBoxes(name));
  model.set_has_velocities(HasBoxes(name));
  model.set_num_parameters(5441036);
  model.set_device("cpu");
  model.set_max_points(2000000);
  for (int i = 0; i < 3; ++i) model.add_voxel_size(0.05f);
  const uint32_t colors[] = {0x804080, 0x285aff, 0xffff00};
  for (uint32_t i = 0; i < 3; ++i) {
    v1::ClassInfo* info = model.add_classes();
    info->set_id(i);
    info->set_name(kClassNames[i]);
    info->set_color_rgb(colors[i]);
  }
  for (const char* axis : {"x", "y", "z"}) {
    v1::FeatureInfo* feature = model.add_features();
    feature->set_name(axis);
    feature->set_unit("m");
  }
  v1::FeatureInfo* intensity = model.add_features();
  intensity->set_name("intensity");
  intensity->set_unit("1");
  intensity->set_default_value(0.25);
  if (name == "ranged") intensity->mutable_range()->set_high(1);
  if (name == "limited") {  // the others are those of a server that does not tell
    model.set_max_voxels(60000);
    model.set_voxel_overflow(v1::VOXEL_OVERFLOW_FIRST_SEEN);
    model.set_max_message_bytes(67108864);
    model.mutable_reach()->add_distance(9.9f);
    model.mutable_reach()->add_distance(9.9f);
    model.mutable_reach()->add_distance(std::numeric_limits<float>::infinity());
    model.mutable_reach()->set_unbounded_by("pool");
  }
  return model;
}

// A version that is not ready describes no inputs and no outputs.
v1::ModelVersion Loading() {
  v1::ModelVersion model;
  model.set_name("loading");
  model.set_version(1);
  model.set_state(v1::MODEL_STATE_LOADING);
  model.add_classes()->set_name("road");
  return model;
}

v1::ModelVersion Broken() {
  v1::ModelVersion model;
  model.set_name("broken");
  model.set_version(1);
  model.set_state(v1::MODEL_STATE_FAILED);
  model.add_problems("conv1: no tensor conv1.weight");
  model.add_problems("conv2: 4 channels in, 5 expected");
  return model;
}

std::string TraceparentOf(const grpc::ServerContext& context) {
  const auto found = context.client_metadata().find("traceparent");
  return found == context.client_metadata().end() ? "" : std::string(found->second.data(), found->second.size());
}

float ValueOfX(const v1::PointCloud& cloud, uint64_t i) {
  for (const v1::PointField& field : cloud.fields()) {
    if (field.name() != "x" || field.type() != v1::POINT_FIELD_TYPE_FLOAT32) continue;
    float value;
    std::memcpy(&value, cloud.data().data() + i * cloud.point_step() + field.offset(), sizeof(value));
    return value;
  }
  return 0;
}

}  // namespace

class FakeServer::Impl final : public v1::InferenceService::Service {
  using InferStreamer = grpc::ServerReaderWriter<v1::InferStreamResponse, v1::InferStreamRequest>;

 public:
  explicit Impl(int port) {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:" + std::to_string(port), grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    builder.RegisterService(&admin_);
    builder.SetMaxReceiveMessageSize(64 << 20);
    builder.SetMaxSendMessageSize(64 << 20);
    server_ = builder.BuildAndStart();
  }

  ~Impl() override {
    ReleaseStreams();
    server_->Shutdown(std::chrono::system_clock::now());
  }

  grpc::Status Infer(grpc::ServerContext* context, const v1::InferRequest* request,
                     v1::InferResponse* response) override {
    const CallCounter counter(this);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      last_request_ = *request;
      last_traceparent_ = TraceparentOf(*context);
      peers_.insert(context->peer());
      ++num_infer_calls_;
      if (num_refusals_ > 0) {
        --num_refusals_;
        return {grpc::StatusCode::UNAVAILABLE, "refused by the test"};
      }
    }
    const std::string& model = request->model();
    if (model == "full") return Error(grpc::StatusCode::RESOURCE_EXHAUSTED, "the queue is full", "QUEUE_FULL", 250);
    if (model == "loading") return Error(grpc::StatusCode::UNAVAILABLE, "the model is loading", "MODEL_LOADING");
    if (model == "broken") return Error(grpc::StatusCode::UNAVAILABLE, "2 problems", "MODEL_FAILED");
    if (model == "slow") return AwaitCancellation(context);
    const std::set<std::string> known = {"segmenter", "wide",    "liar", "sampler", "far",     "detector",
                                         "both",      "crooked", "mute", "ranged",  "distant", "narrow"};
    if (known.count(model) == 0) return ModelNotFound(model);
    Answer(*request, response);
    if (model == "ranged") {
      v1::FeatureWarning& warning = *response->add_warnings();
      warning.set_feature("intensity");
      warning.mutable_range()->set_high(1);
      warning.set_largest(200);
    }
    if (model == "distant") response->mutable_counts()->set_out_of_range(990);
    if (model == "narrow") response->mutable_counts()->set_not_finite(1);
    return grpc::Status::OK;
  }

  grpc::Status InferStream(grpc::ServerContext* context, InferStreamer* stream) override {
    v1::InferStreamRequest message;
    if (!stream->Read(&message) || !message.has_config()) {
      return Error(grpc::StatusCode::INVALID_ARGUMENT, "no config", "BAD_STREAM");
    }
    const v1::StreamConfig config = message.config();
    const std::string& model = config.model();
    std::optional<EarlyEnd> early_end;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ++num_streams_;
      if (num_early_ends_ > 0) {
        --num_early_ends_;
        early_end = early_end_;
      }
      last_stream_config_ = config;
      last_traceparent_ = TraceparentOf(*context);
      frames_.clear();
    }
    if (model == "missing") return ModelNotFound(model);
    if (model == "slow") return AwaitCancellation(context);
    if (model == "held") {
      std::unique_lock<std::mutex> lock(mutex_);
      released_.wait(lock, [this] { return streams_are_released_; });
    }
    if (early_end) return EndEarly(*early_end, config, stream);
    uint32_t num_sweeps = 0;
    v1::StreamFrame frame;
    while (stream->Read(&message)) {
      if (message.has_part()) {
        bool is_complete = AddPart(message.part(), &frame);
        if (model == "hasty") is_complete = message.part().index() == 0;
        if (model == "departing" && message.part().index() == 0) {
          v1::InferStreamResponse departure;
          departure.mutable_going_away();
          stream->Write(departure);
        }
        if (!is_complete) continue;
      } else {
        frame = message.frame();
      }
      Keep(frame);
      num_sweeps = std::min(frame.reset_sweeps() ? 1 : num_sweeps + 1, config.sweeps().num_sweeps());
      if (model == "forgetful") continue;
      v1::InferStreamResponse response;
      if (model == "leaving") {
        response.mutable_going_away();
        stream->Write(response);
      }
      AnswerFrame(config, frame, response.mutable_result());
      response.mutable_result()->set_num_sweeps(num_sweeps);
      stream->Write(response);
      if (model == "leaving" || model == "departing") {
        return Error(grpc::StatusCode::UNAVAILABLE, "the server is draining", "DRAINING");
      }
    }
    return grpc::Status::OK;
  }

  void EndStreams(int count, const EarlyEnd& end) {
    const std::lock_guard<std::mutex> lock(mutex_);
    num_early_ends_ = count;
    early_end_ = end;
  }

  void RefuseCalls(int count) {
    const std::lock_guard<std::mutex> lock(mutex_);
    num_refusals_ = count;
  }

  void ReleaseStreams() {
    const std::lock_guard<std::mutex> lock(mutex_);
    streams_are_released_ = true;
    released_.notify_all();
  }

  grpc::Status ListModels(grpc::ServerContext*, const v1::ListModelsRequest*,
                          v1::ListModelsResponse* response) override {
    *response->add_models() = Broken();
    *response->add_models() = Describe("segmenter", 1);
    *response->add_models() = Describe("segmenter", 2);
    return grpc::Status::OK;
  }

  grpc::Status GetModel(grpc::ServerContext* context, const v1::GetModelRequest* request,
                        v1::GetModelResponse* response) override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      last_get_model_timeout_ = context->deadline() - std::chrono::system_clock::now();
    }
    if (request->model() == "missing") return ModelNotFound(request->model());
    if (request->model() == "broken") {
      *response->mutable_model() = Broken();
    } else if (request->model() == "loading") {
      *response->mutable_model() = Loading();
    } else {
      *response->mutable_model() = Describe(request->model(), request->version() > 0 ? request->version() : 2);
    }
    return grpc::Status::OK;
  }

  int port() const { return port_; }
  grpc::Server& server() { return *server_; }
  const FakeAdmin& admin() const { return admin_; }

  v1::InferRequest last_request() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return last_request_;
  }
  std::string last_traceparent() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return last_traceparent_;
  }
  v1::StreamConfig last_stream_config() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return last_stream_config_;
  }
  std::vector<v1::StreamFrame> frames() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return frames_;
  }
  std::vector<v1::FramePart> parts() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return parts_;
  }
  size_t num_streams() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return num_streams_;
  }
  std::vector<uint64_t> all_frame_ids() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return all_frame_ids_;
  }
  size_t num_connections() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return peers_.size();
  }
  size_t num_infer_calls() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return num_infer_calls_;
  }
  std::chrono::nanoseconds last_get_model_timeout() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return last_get_model_timeout_;
  }
  size_t max_concurrent_calls() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return max_calls_;
  }

 private:
  // While a CallCounter lives, its call counts as under way.
  class CallCounter {
   public:
    explicit CallCounter(Impl* impl) : impl_(impl) {
      const std::lock_guard<std::mutex> lock(impl_->mutex_);
      impl_->max_calls_ = std::max(impl_->max_calls_, ++impl_->calls_);
    }
    ~CallCounter() {
      const std::lock_guard<std::mutex> lock(impl_->mutex_);
      --impl_->calls_;
    }

   private:
    Impl* const impl_;
  };

  grpc::Status EndEarly(const EarlyEnd& end, const v1::StreamConfig& config, InferStreamer* stream) {
    v1::InferStreamRequest message;
    std::vector<v1::StreamFrame> frames;
    while (frames.size() < end.num_frames && stream->Read(&message)) {
      frames.push_back(message.frame());
      if (message.has_part()) {
        AddPart(message.part(), &frames.back());
      } else {
        Keep(message.frame());
      }
    }
    for (size_t i = 0; i < std::min(end.num_answers, frames.size()); ++i) {
      v1::InferStreamResponse response;
      if (end.drains && i + 1 == end.num_answers) {
        response.mutable_going_away();
        stream->Write(response);
      }
      AnswerFrame(config, frames[i], response.mutable_result());
      stream->Write(response);
    }
    if (end.drains) return Error(grpc::StatusCode::UNAVAILABLE, "the server is draining", "DRAINING");
    return {grpc::StatusCode::UNAVAILABLE, "Socket closed"};
  }

  void Keep(const v1::StreamFrame& frame) {
    const std::lock_guard<std::mutex> lock(mutex_);
    frames_.push_back(frame);
    all_frame_ids_.push_back(frame.frame_id());
  }

  // Adds a part to the frame, and returns true if it was the last.
  bool AddPart(const v1::FramePart& part, v1::StreamFrame* frame) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      parts_.push_back(part);
    }
    if (part.index() == 0) {
      *frame = v1::StreamFrame();
      frame->set_frame_id(part.frame_id());
      *frame->mutable_cloud() = part.cloud();
    } else {
      v1::PointCloud& cloud = *frame->mutable_cloud();
      cloud.mutable_data()->append(part.cloud().data());
      cloud.set_num_points(cloud.num_points() + part.cloud().num_points());
    }
    frame->set_reset_sweeps(frame->reset_sweeps() || part.reset_sweeps());
    return part.is_last();
  }

  static void AnswerFrame(const v1::StreamConfig& config, const v1::StreamFrame& frame, v1::FrameResult* result) {
    result->set_frame_id(frame.frame_id() + (config.model() == "stranger" ? 1000 : 0));
    if (config.model() == "full") {
      const grpc::Status status = Error(grpc::StatusCode::RESOURCE_EXHAUSTED, "the queue is full", "QUEUE_FULL", 250);
      result->mutable_status()->ParseFromString(status.error_details());
      return;
    }
    v1::InferRequest request;
    request.set_model(config.model());
    request.set_version(config.version());
    request.set_return_scores(config.return_scores());
    if (config.has_sample()) *request.mutable_sample() = config.sample();
    *request.mutable_cloud() = frame.cloud();
    Answer(request, result->mutable_response());
  }

  static void AnswerLabels(const v1::InferRequest& request, v1::Segmentation* segmentation) {
    const v1::PointCloud& cloud = request.cloud();
    const bool is_wide = request.model() == "wide";
    std::string labels, scores;
    for (uint64_t i = 0; i < cloud.num_points(); ++i) {
      const float x = ValueOfX(cloud, i);
      const uint32_t own = static_cast<uint32_t>(std::isnan(x) ? 0 : std::abs(x)) % 3;
      const uint32_t label = std::isnan(x) ? kIgnoreLabel : own + (is_wide ? 300 : 0);
      labels += static_cast<char>(label & 0xff);
      if (is_wide) labels += static_cast<char>(label >> 8);
      for (uint32_t c = 0; c < 3 && request.return_scores(); ++c) {
        const float score = c == own ? 1.0f : -1.0f;
        scores.append(reinterpret_cast<const char*>(&score), sizeof(score));
      }
    }
    if (request.model() == "liar" && !labels.empty()) labels.pop_back();
    segmentation->set_labels(labels);
    segmentation->set_scores(scores);
    segmentation->set_bytes_per_label(is_wide ? 2 : 1);
    segmentation->set_ignore_label(kIgnoreLabel);
    segmentation->set_num_classes(3);
  }

  static void AnswerBoxes(const v1::InferRequest& request, v1::Detections* detections) {
    for (uint64_t i = 0; i < request.cloud().num_points(); ++i) {
      const float x = ValueOfX(request.cloud(), i);
      if (std::isnan(x)) continue;
      const uint32_t class_id = static_cast<uint32_t>(std::abs(x)) % 3;
      v1::Box& box = *detections->add_boxes();
      box.set_class_id(class_id);
      box.set_class_name(kClassNames[class_id]);
      box.set_score(1 / (1 + static_cast<float>(i)));
      box.set_x(x);
      box.set_y(x / 2);
      box.set_z(1);
      box.set_length(4);
      box.set_width(2);
      box.set_height(1.5);
      box.set_yaw(request.model() == "crooked" ? std::nanf("") : 0.5f);
      box.set_velocity_x(3);
      box.set_velocity_y(4);
      if (i == 2) box.set_query(9);
    }
  }

  static void Answer(const v1::InferRequest& request, v1::InferResponse* response) {
    const v1::PointCloud& cloud = request.cloud();
    if (HasLabels(request.model())) AnswerLabels(request, response->mutable_segmentation());
    if (HasBoxes(request.model())) AnswerBoxes(request, response->mutable_detections());
    uint64_t num_invalid = 0;
    for (uint64_t i = 0; i < cloud.num_points(); ++i) num_invalid += std::isnan(ValueOfX(cloud, i));
    response->set_model(request.model());
    response->set_version(request.version() > 0 ? request.version() : 2);
    response->set_request_id(request.request_id());
    response->set_device("cpu");
    response->mutable_counts()->set_used(cloud.num_points() - num_invalid);
    response->mutable_counts()->set_invalid(num_invalid);
    response->mutable_counts()->set_voxels((cloud.num_points() + 1) / 2);
    const uint32_t start = request.sample().has_seed() ? 1 : request.sample().start_index();
    for (uint32_t i = 0; i < request.sample().num_points(); ++i) {
      response->add_sampled_points(static_cast<uint32_t>((start + i) % cloud.num_points()));
    }
    if (request.sample().use() == v1::FarthestPointSample::USE_NETWORK) {
      response->mutable_counts()->set_unsampled(cloud.num_points() - request.sample().num_points());
    }
    if (request.model() == "sampler") response->add_sampled_points(0);
    if (request.model() == "far") response->set_sampled_points(0, static_cast<uint32_t>(cloud.num_points()));
    v1::StageDuration* decode = response->add_stages();
    decode->set_name("decode");
    decode->set_microseconds(100);
    v1::StageDuration* features = response->add_stages();
    features->set_name("features");
    features->set_microseconds(2500);
  }

  FakeAdmin admin_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  mutable std::mutex mutex_;
  v1::InferRequest last_request_;
  v1::StreamConfig last_stream_config_;
  std::string last_traceparent_;
  std::vector<v1::StreamFrame> frames_;
  std::vector<v1::FramePart> parts_;
  std::condition_variable released_;
  bool streams_are_released_ = false;
  size_t num_streams_ = 0;
  std::vector<uint64_t> all_frame_ids_;
  int num_early_ends_ = 0;
  EarlyEnd early_end_;
  int num_refusals_ = 0;
  std::set<std::string> peers_;
  size_t num_infer_calls_ = 0;
  std::chrono::nanoseconds last_get_model_timeout_{0};
  size_t calls_ = 0, max_calls_ = 0;
};

FakeServer::FakeServer(int port) : impl_(std::make_unique<Impl>(port)) {}
FakeServer::~FakeServer() = default;

std::string FakeServer::address() const { return "127.0.0.1:" + std::to_string(impl_->port()); }

void FakeServer::SetServing(bool serving) { impl_->server().GetHealthCheckService()->SetServingStatus(serving); }

void FakeServer::EndStreams(int count, const EarlyEnd& end) { impl_->EndStreams(count, end); }
void FakeServer::RefuseCalls(int count) { impl_->RefuseCalls(count); }
size_t FakeServer::num_streams() const { return impl_->num_streams(); }
std::vector<uint64_t> FakeServer::all_frame_ids() const { return impl_->all_frame_ids(); }
void FakeServer::ReleaseStreams() { impl_->ReleaseStreams(); }

std::string FakeServer::last_traceparent() const { return impl_->last_traceparent(); }
v1::StreamConfig FakeServer::last_stream_config() const { return impl_->last_stream_config(); }
std::vector<v1::StreamFrame> FakeServer::frames() const { return impl_->frames(); }
std::vector<v1::FramePart> FakeServer::parts() const { return impl_->parts(); }
v1::TunePlanRequest FakeServer::last_tune_request() const { return impl_->admin().last_request(); }
v1::InferRequest FakeServer::last_request() const { return impl_->last_request(); }
size_t FakeServer::num_connections() const { return impl_->num_connections(); }
size_t FakeServer::num_infer_calls() const { return impl_->num_infer_calls(); }
std::chrono::nanoseconds FakeServer::last_get_model_timeout() const { return impl_->last_get_model_timeout(); }
size_t FakeServer::max_concurrent_calls() const { return impl_->max_concurrent_calls(); }

std::string UnusedAddress() {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  bind(listener, reinterpret_cast<sockaddr*>(&address), size);
  getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
  close(listener);
  return "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
}

}  // namespace voxserve::client
