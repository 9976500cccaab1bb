#pragma once

// SharedMemory knows the regions of the system's shared memory (shm_open(3)) that clients have registered for the open
// inference protocol: requests may take their points from one, and have their outputs written into one.
//
// - It is off unless the operator names a prefix: a client may register only objects whose names begin so. Whoever may
//   connect may then read and write the objects of that name which the server's user may open.
// - A region belongs to the client that registered it; others neither see nor use it. It stays until it is
//   unregistered, when the client is gone, too.
// - Nothing outside a region is read or written. Regions are never mapped: a client that shortens its object under a
//   mapping would end the server by SIGBUS. They are read and written by pread and pwrite.
// - Errors: INVALID_ARGUMENT, reason BAD_PARAMETER; RESOURCE_EXHAUSTED, reason CLIENT_LIMIT, for too many regions.
// - Threads: thread-safe. It blocks only as memory does.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/sockets/descriptor.h"

namespace voxserve {

// A region of shared memory that a client has registered.
struct SharedMemoryRegion {
  std::string name;  // chosen by the client
  std::string key;   // of shm_open: "/points"
  int64_t offset = 0;
  int64_t num_bytes = 0;
};

// A part of a region, for one request. It stays usable after the region was unregistered.
class SharedMemoryPart {
 public:
  SharedMemoryPart(std::shared_ptr<const Descriptor> object, std::string region, int64_t begin, int64_t num_bytes)
      : object_(std::move(object)), region_(std::move(region)), begin_(begin), num_bytes_(num_bytes) {}

  const std::string& region() const { return region_; }
  int64_t num_bytes() const { return num_bytes_; }

  // Reads all of the part, piece by piece. begin: of a piece, in the part.
  absl::Status Read(absl::FunctionRef<void(int64_t begin, std::string_view bytes)> take) const;
  // Writes at its begin. INVALID_ARGUMENT if the bytes are more than the part has.
  absl::Status Write(std::string_view bytes) const;

 private:
  std::shared_ptr<const Descriptor> object_;
  std::string region_;
  int64_t begin_;  // in the object
  int64_t num_bytes_;
};

class SharedMemory {
 public:
  static constexpr int kMaxRegionsOfClient = 64;
  static constexpr int kMaxRegions = 256;  // each takes a descriptor

  // prefix: of the objects' names that clients may register; "": none.
  explicit SharedMemory(std::string prefix) : prefix_(std::move(prefix)) {}

  bool is_on() const { return !prefix_.empty(); }

  absl::Status Register(const std::string& client, SharedMemoryRegion region) ABSL_LOCKS_EXCLUDED(mutex_);
  // name: ""; then all of the client's. A name that is not registered is no error, as in Triton.
  void Unregister(const std::string& client, const std::string& name) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the client's regions, or the one of this name.
  absl::StatusOr<std::vector<SharedMemoryRegion>> List(const std::string& client, const std::string& name) const
      ABSL_LOCKS_EXCLUDED(mutex_);
  // offset: from the region's begin.
  absl::StatusOr<SharedMemoryPart> Find(const std::string& client, const std::string& name, int64_t offset,
                                        int64_t num_bytes) const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Entry {
    SharedMemoryRegion region;
    std::shared_ptr<const Descriptor> object;
  };

  absl::Status CheckKey(const std::string& key) const;

  const std::string prefix_;
  mutable absl::Mutex mutex_;
  std::map<std::pair<std::string, std::string>, Entry> entries_ ABSL_GUARDED_BY(mutex_);  // by client and name
};

}  // namespace voxserve
