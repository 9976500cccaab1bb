#include "engine/runtime/arena.h"

#include <sys/mman.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "engine/base/error_reason.h"

namespace voxserve {
namespace {

constexpr size_t kHugePageBytes = size_t{2} << 20;

}  // namespace

void Arena::Free::operator()(char* data) const { std::free(data); }

absl::Status Arena::Reserve(int64_t bytes) {
  if (bytes <= capacity_) return absl::OkStatus();
  data_.reset();
  capacity_ = 0;
  const size_t rounded = (static_cast<size_t>(bytes) + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  auto* data = static_cast<char*>(std::aligned_alloc(kHugePageBytes, rounded));
  if (data == nullptr) {
    return WithReason(absl::ResourceExhaustedError(absl::StrCat("no memory for ", bytes, " bytes of features")),
                      error_reason::kOutOfMemory);
  }
  madvise(data, rounded, MADV_HUGEPAGE);  // advice: without it everything works, with more page faults
  data_.reset(data);
  capacity_ = static_cast<int64_t>(rounded);
  return absl::OkStatus();
}

}  // namespace voxserve
