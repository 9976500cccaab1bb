#pragma once

// SharedMemory keeps the regions of the system's shared memory (shm_open(3)) that clients have registered for the open
// inference protocol. A request may take its points from a region, and may have its outputs written into a region.
//
// - Security: shared memory is off unless the operator names a prefix (--shared_memory_prefix). Clients may register
//   only objects whose names begin with the prefix. Every client that may run models may then read and write all such
//   objects that the server's user may open.
// - Ownership: a region belongs to the client (Caller::client) that registered it; other clients neither see nor use
//   it. The region stays registered until the client unregisters it, or until the client has had no connection for a
//   while (Services::OnConnectionGone).
// - Limits: if all regions are taken, one that has not been used for a while gives way to another client
//   (SharedPlaces).
// - Access: the server reads and writes only inside regions. A client that shortens an object gets an error, not the
//   server SIGBUS: bytes are read by pread, and written by process_vm_writev into a mapping (shared_memory.cc).
// - Errors: INVALID_ARGUMENT (BAD_PARAMETER) if a name, key, offset or size is wrong, or if the system cannot open,
//   read or write the object; RESOURCE_EXHAUSTED (CLIENT_LIMIT) if too many regions are registered.
// - Objects: regular files of /dev/shm, which must be a tmpfs. Register refuses a file that another process has leased,
//   and one on which another file system is mounted, since opening it could wait for another process.
// - Threads: thread-safe. Reads and writes copy memory, and wait for no other process.

#include <cstdint>
#include <functional>
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
#include "absl/time/time.h"
#include "engine/base/steady_time.h"
#include "server/sockets/descriptor.h"
#include "server/sockets/shared_places.h"

namespace voxserve {

// A region of shared memory that a client has registered.
struct SharedMemoryRegion {
  std::string name;    // chosen by the client
  std::string key;     // the object's name for shm_open: "/points"
  int64_t offset = 0;  // bytes from the object's begin
  int64_t num_bytes = 0;
};

// A part of a region that one request reads or writes. It stays usable after the region has been unregistered.
class SharedMemoryPart {
 public:
  SharedMemoryPart(std::shared_ptr<const Descriptor> object, std::string region, int64_t begin, int64_t num_bytes)
      : object_(std::move(object)), region_(std::move(region)), begin_(begin), num_bytes_(num_bytes) {}

  const std::string& region() const { return region_; }
  int64_t num_bytes() const { return num_bytes_; }

  // Reads the whole part, in pieces: calls `take` for each piece, in order. begin: the piece's first byte, counted from
  // the part's begin.
  absl::Status Read(absl::FunctionRef<void(int64_t begin, std::string_view bytes)> take) const;
  // Writes the bytes to the part, from its begin. INVALID_ARGUMENT if the part is too small for them.
  absl::Status Write(std::string_view bytes) const;

 private:
  std::shared_ptr<const Descriptor> object_;
  std::string region_;
  int64_t begin_;  // bytes from the object's begin
  int64_t num_bytes_;
};

class SharedMemory {
 public:
  static constexpr int kMaxRegionsOfClient = 64;
  static constexpr int kMaxRegions = 256;  // of all clients; each region keeps a file descriptor open

  // prefix: begins the name of every object that clients may register; "": shared memory is off.
  // now: the clock by which regions are unused.
  explicit SharedMemory(std::string prefix, std::function<absl::Time()> now = SteadyNow)
      : prefix_(std::move(prefix)), now_(std::move(now)) {}

  bool is_on() const { return !prefix_.empty(); }

  // Opens the region's object, and keeps it open. A name that the client has registered already is an error.
  absl::Status Register(const std::string& client, SharedMemoryRegion region) ABSL_LOCKS_EXCLUDED(mutex_);
  // Unregisters the client's region of this name, or all its regions if the name is "". As in Triton, it is no error if
  // there is no such region.
  void Unregister(const std::string& client, const std::string& name) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the client's region of this name, or all its regions if the name is "". A name without a region is an
  // error.
  absl::StatusOr<std::vector<SharedMemoryRegion>> List(const std::string& client, const std::string& name) const
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns a part of the client's region of this name. offset: bytes from the region's begin.
  absl::StatusOr<SharedMemoryPart> Find(const std::string& client, const std::string& name, int64_t offset,
                                        int64_t num_bytes) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  using Place = std::pair<std::string, std::string>;  // a client and a region's name
  struct Entry {
    SharedMemoryRegion region;
    std::shared_ptr<const Descriptor> object;
    SharedPlaces::Id id = 0;
    absl::Time used;
  };

  absl::Status CheckKey(const std::string& key) const;
  // Makes room for one more region of the client, or returns CLIENT_LIMIT.
  absl::Status MakeRoom(const std::string& client) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Add(const Place& place, Entry entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Remove(std::map<Place, Entry>::iterator entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string prefix_;
  const std::function<absl::Time()> now_;
  mutable absl::Mutex mutex_;
  std::map<Place, Entry> entries_ ABSL_GUARDED_BY(mutex_);
  SharedPlaces::Id next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<SharedPlaces::Id, Place> by_id_ ABSL_GUARDED_BY(mutex_);
  SharedPlaces places_ ABSL_GUARDED_BY(mutex_){{.over_share_idle = absl::Seconds(10), .any_idle = absl::Minutes(1)}};
};

}  // namespace voxserve
