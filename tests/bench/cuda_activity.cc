#include "tests/bench/cuda_activity.h"

#include <cuda_runtime_api.h>
#include <cupti.h>
#include <dlfcn.h>
#include <generated_nvtx_meta.h>

#include <atomic>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace voxserve::bench {
namespace {

using Kind = DeviceActivity::Kind;

constexpr size_t kBufferBytes = size_t{8} << 20;
constexpr size_t kBufferAlignment = 8;  // CUPTI requires it

constexpr CUpti_ActivityKind kKinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
                                         CUPTI_ACTIVITY_KIND_MEMCPY2, CUPTI_ACTIVITY_KIND_MEMSET};

absl::Status CuptiStatus(CUptiResult result, const char* call) {
  if (result == CUPTI_SUCCESS) return absl::OkStatus();
  const char* text = nullptr;
  if (cuptiGetResultString(result, &text) != CUPTI_SUCCESS || text == nullptr) text = "unknown error";
  return absl::UnavailableError(absl::StrCat("CUPTI: ", call, ": ", text));
}

#define RETURN_IF_CUPTI(call) RETURN_IF_ERROR(CuptiStatus((call), #call))

Kind KindOfCopy(uint8_t copy_kind) {
  switch (copy_kind) {
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOD:
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOA:
      return Kind::kCopyToDevice;
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOH:
    case CUPTI_ACTIVITY_MEMCPY_KIND_ATOH:
      return Kind::kCopyToHost;
    default:
      return Kind::kCopyOnDevice;
  }
}

// The CUDA calls and NVTX ranges that this thread has begun and not ended.
struct ThreadState {
  int call_depth = 0;  // depth of nested CUDA calls
  std::vector<std::string> ranges;
};
ThreadState& ThisThread() {
  thread_local ThreadState state;
  return state;
}

}  // namespace

struct CudaActivity::Session {
  // A record, and the id of the call that launched it.
  struct Record {
    DeviceActivity activity;
    uint32_t correlation_id = 0;
  };

  CUpti_SubscriberHandle subscriber = nullptr;
  std::atomic<bool> is_counting = false;

  std::mutex mutex;  // guards everything below
  std::map<std::string, int64_t> calls;
  std::unordered_map<uint32_t, std::vector<std::string>> ranges;  // by correlation id; missing if outside of any range
  std::vector<Record> records;
  std::vector<DeviceActivity> activities;  // of the records before the last Stop
  int64_t dropped_records = 0;

  void OnCall(const CUpti_CallbackData& call);
  void OnRecord(const CUpti_Activity& record);

  static void CUPTIAPI OnCallback(void* session, CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* data);
  static void CUPTIAPI OnBufferRequested(uint8_t** buffer, size_t* bytes, size_t* max_records);
  static void CUPTIAPI OnBufferCompleted(CUcontext context, uint32_t stream, uint8_t* buffer, size_t bytes,
                                         size_t valid_bytes);
};

namespace {
// CUPTI passes no argument of ours to its buffer callbacks.
std::atomic<void*> current_session = nullptr;
}  // namespace

void CudaActivity::Session::OnCall(const CUpti_CallbackData& call) {
  ThreadState& thread = ThisThread();
  if (call.callbackSite == CUPTI_API_EXIT) {
    if (thread.call_depth > 0) --thread.call_depth;
    return;
  }
  const bool is_outermost = thread.call_depth++ == 0;
  if (!is_counting) return;
  const std::lock_guard<std::mutex> lock(mutex);
  if (is_outermost) ++calls[call.functionName];
  // Also stores the ranges of inner calls, since a kernel's record has the id either of the runtime's call or of the
  // driver's call inside it.
  if (!thread.ranges.empty()) ranges[call.correlationId] = thread.ranges;
}

void CUPTIAPI CudaActivity::Session::OnCallback(void* session, CUpti_CallbackDomain domain, CUpti_CallbackId id,
                                                const void* data) {
  if (domain != CUPTI_CB_DOMAIN_NVTX) {
    static_cast<Session*>(session)->OnCall(*static_cast<const CUpti_CallbackData*>(data));
    return;
  }
  std::vector<std::string>& ranges = ThisThread().ranges;
  if (id == CUPTI_CBID_NVTX_nvtxRangePushA) {
    const auto* nvtx = static_cast<const CUpti_NvtxData*>(data);
    const auto* params = static_cast<const nvtxRangePushA_params*>(nvtx->functionParams);
    ranges.emplace_back(params != nullptr && params->message != nullptr ? params->message : "");
  } else if (id == CUPTI_CBID_NVTX_nvtxRangePop && !ranges.empty()) {
    ranges.pop_back();
  }
}

void CUPTIAPI CudaActivity::Session::OnBufferRequested(uint8_t** buffer, size_t* bytes, size_t* max_records) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(kBufferAlignment, kBufferBytes));
  *bytes = *buffer == nullptr ? 0 : kBufferBytes;
  *max_records = 0;  // as many as fit
}

void CUPTIAPI CudaActivity::Session::OnBufferCompleted(CUcontext context, uint32_t stream, uint8_t* buffer,
                                                       size_t /*bytes*/, size_t valid_bytes) {
  if (auto* session = static_cast<Session*>(current_session.load()); session != nullptr) {
    const std::lock_guard<std::mutex> lock(session->mutex);
    CUpti_Activity* record = nullptr;
    while (valid_bytes > 0 && cuptiActivityGetNextRecord(buffer, valid_bytes, &record) == CUPTI_SUCCESS) {
      session->OnRecord(*record);
    }
    size_t dropped = 0;
    if (cuptiActivityGetNumDroppedRecords(context, stream, &dropped) == CUPTI_SUCCESS) {
      session->dropped_records += static_cast<int64_t>(dropped);
    }
  }
  std::free(buffer);
}

// Later versions of a record begin with the fields of earlier ones.
void CudaActivity::Session::OnRecord(const CUpti_Activity& record) {
  switch (record.kind) {
    case CUPTI_ACTIVITY_KIND_KERNEL:
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
      const auto& kernel = reinterpret_cast<const CUpti_ActivityKernel10&>(record);
      records.push_back({.activity = {.kind = Kind::kKernel,
                                      .kernel = kernel.name != nullptr ? kernel.name : "",
                                      .begin_ns = kernel.start,
                                      .end_ns = kernel.end},
                         .correlation_id = kernel.correlationId});
      return;
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY: {
      const auto& copy = reinterpret_cast<const CUpti_ActivityMemcpy6&>(record);
      records.push_back({.activity = {.kind = KindOfCopy(copy.copyKind),
                                      .begin_ns = copy.start,
                                      .end_ns = copy.end,
                                      .bytes = copy.bytes},
                         .correlation_id = copy.correlationId});
      return;
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY2: {  // between devices
      const auto& copy = reinterpret_cast<const CUpti_ActivityMemcpyPtoP4&>(record);
      records.push_back(
          {.activity = {.kind = Kind::kCopyOnDevice, .begin_ns = copy.start, .end_ns = copy.end, .bytes = copy.bytes},
           .correlation_id = copy.correlationId});
      return;
    }
    case CUPTI_ACTIVITY_KIND_MEMSET: {
      const auto& fill = reinterpret_cast<const CUpti_ActivityMemset4&>(record);
      records.push_back(
          {.activity = {.kind = Kind::kMemset, .begin_ns = fill.start, .end_ns = fill.end, .bytes = fill.bytes},
           .correlation_id = fill.correlationId});
      return;
    }
    default:
      return;
  }
}

absl::StatusOr<std::unique_ptr<CudaActivity>> CudaActivity::Create() {
  auto session = std::make_unique<Session>();
  void* none = nullptr;
  if (!current_session.compare_exchange_strong(none, session.get())) {
    return absl::FailedPreconditionError("CudaActivity: there is one already");
  }
  // From here on, the destructor cleans up.
  std::unique_ptr<CudaActivity> activity(new CudaActivity(std::move(session)));
  Session& s = *activity->session_;

  // The program includes NVTX as a header. At its first use NVTX loads the library that this variable names.
  Dl_info cupti = {};
  if (dladdr(reinterpret_cast<const void*>(&cuptiSubscribe), &cupti) != 0 && cupti.dli_fname != nullptr) {
    setenv("NVTX_INJECTION64_PATH", cupti.dli_fname, /*overwrite=*/0);
  }
  RETURN_IF_CUPTI(cuptiSubscribe(&s.subscriber, &Session::OnCallback, &s));
  RETURN_IF_CUPTI(cuptiEnableDomain(1, s.subscriber, CUPTI_CB_DOMAIN_RUNTIME_API));
  RETURN_IF_CUPTI(cuptiEnableDomain(1, s.subscriber, CUPTI_CB_DOMAIN_DRIVER_API));
  for (const CUpti_CallbackId id : {CUPTI_CBID_NVTX_nvtxRangePushA, CUPTI_CBID_NVTX_nvtxRangePop}) {
    // If this fails, there are no ranges, and stages follow from kernels' names.
    (void)cuptiEnableCallback(1, s.subscriber, CUPTI_CB_DOMAIN_NVTX, id);
  }
  RETURN_IF_CUPTI(cuptiActivityRegisterCallbacks(&Session::OnBufferRequested, &Session::OnBufferCompleted));
  return activity;
}

CudaActivity::CudaActivity(std::unique_ptr<Session> session) : session_(std::move(session)) {}

CudaActivity::~CudaActivity() {
  session_->is_counting = false;
  if (session_->subscriber != nullptr) {
    for (const CUpti_ActivityKind kind : kKinds) (void)cuptiActivityDisable(kind);
    (void)cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    (void)cuptiUnsubscribe(session_->subscriber);
  }
  current_session = nullptr;
}

absl::Status CudaActivity::Start() {
  {
    const std::lock_guard<std::mutex> lock(session_->mutex);
    session_->calls.clear();
    session_->ranges.clear();
    session_->records.clear();
    session_->dropped_records = 0;
  }
  for (const CUpti_ActivityKind kind : kKinds) RETURN_IF_CUPTI(cuptiActivityEnable(kind));
  session_->is_counting = true;
  return absl::OkStatus();
}

absl::StatusOr<ActivitySummary> CudaActivity::Stop() {
  session_->is_counting = false;
  const cudaError_t waited = cudaDeviceSynchronize();
  if (waited != cudaSuccess) {
    return absl::InternalError(absl::StrCat("CudaActivity::Stop: ", cudaGetErrorString(waited)));
  }
  RETURN_IF_CUPTI(cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED));
  for (const CUpti_ActivityKind kind : kKinds) RETURN_IF_CUPTI(cuptiActivityDisable(kind));

  const std::lock_guard<std::mutex> lock(session_->mutex);
  std::vector<DeviceActivity>& activities = session_->activities;
  activities.clear();
  activities.reserve(session_->records.size());
  for (Session::Record& record : session_->records) {
    if (const auto ranges = session_->ranges.find(record.correlation_id); ranges != session_->ranges.end()) {
      record.activity.ranges = ranges->second;
    }
    activities.push_back(std::move(record.activity));
  }
  session_->records.clear();
  ActivitySummary summary = Summarize(activities, session_->calls);
  summary.dropped_records = session_->dropped_records;
  return summary;
}

const std::vector<DeviceActivity>& CudaActivity::activities() const { return session_->activities; }

}  // namespace voxserve::bench
