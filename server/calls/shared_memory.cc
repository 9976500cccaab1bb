#include "server/calls/shared_memory.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <linux/openat2.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <optional>

#include "absl/strings/str_cat.h"
#include "engine/base/error_reason.h"
#include "engine/base/quoted.h"
#include "engine/base/status_macros.h"

namespace voxserve {
namespace {

constexpr size_t kMaxRegionNameBytes = 255;
constexpr int64_t kPieceBytes = 256 << 10;

constexpr char kFolder[] = "/dev/shm";  // where shm_open(3) has its objects

absl::Status Refuse(const std::string& why) {
  return WithReason(absl::InvalidArgumentError(why), error_reason::kBadParameter);
}

// Opens an object of kFolder without waiting for another process, as shm_open(3) could not:
// - O_NONBLOCK: open fails (EAGAIN) where another process has a lease on the file (fcntl F_SETLEASE). It would wait for
//   that process, 45 seconds by default.
// - RESOLVE_NO_XDEV: open fails (EXDEV) where another file system is mounted on the name. If a process serves that file
//   system (FUSE), it would wait for that process without limit.
// - RESOLVE_CACHED: only the kernel's cache of names is asked, which has every file of a tmpfs. A look into the folder
//   would wait for a process that holds the folder's lock, as one does that removes a file whose own lock another
//   holds.
// name: without a slash. Returns a negative number and sets errno on failure.
int OpenAtOnce(const std::string& name) {
  constexpr int kFlags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  constexpr int kTries = 3;  // a change elsewhere in the cache may fail one (EAGAIN)
  const Descriptor folder(open(kFolder, O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!folder) return -1;
  const auto open_cached = [&](int flags, uint64_t resolve) {
    const open_how how = {
        .flags = static_cast<uint64_t>(flags), .mode = 0, .resolve = resolve | RESOLVE_NO_SYMLINKS | RESOLVE_CACHED};
    int opened = -1;
    for (int i = 0; i < kTries && opened < 0 && (i == 0 || errno == EAGAIN); ++i) {
      opened = static_cast<int>(syscall(SYS_openat2, folder.get(), name.c_str(), &how, sizeof(how)));
    }
    return opened;
  };
  // O_PATH does not heed leases, so EAGAIN has another meaning for it: the name is not in the cache, or a mount is.
  constexpr int kNameAlone = O_PATH | O_CLOEXEC | O_NOFOLLOW;
  const Descriptor found(open_cached(kNameAlone, RESOLVE_NO_XDEV));
  if (found) return open_cached(kFlags, RESOLVE_NO_XDEV);
  if (errno == EAGAIN) {
    const Descriptor mounted(open_cached(kNameAlone, 0));
    errno = mounted ? EXDEV : ENOENT;
    return -1;
  }
  if (errno != ENOSYS && errno != EPERM && errno != EINVAL) return -1;
  // Linux before 5.12 has no such openat2, and some containers do not allow it.
  return openat(folder.get(), name.c_str(), kFlags);
}

std::string WhyNotOpened(int error) {
  switch (error) {
    case EAGAIN:
      return "another process has a lease on it (fcntl F_SETLEASE); release it first";
    case EXDEV:
      return "another file system is mounted on it";
    default:
      return std::strerror(error);
  }
}

// A mapping of a file for one write.
// - pwrite would wait for a process that holds the file's lock. A process holds it as long as it likes if it writes to
//   the file from memory whose pages another process has to bring (userfaultfd, FUSE).
// - A store to the mapping would end the server by SIGBUS if the file has become shorter. process_vm_writev to the
//   server's own memory returns EFAULT then.
class Mapping {
 public:
  // offset: a multiple of the page's size.
  Mapping(int file, int64_t offset, int64_t num_bytes)
      : num_bytes_(static_cast<size_t>(num_bytes)),
        begin_(mmap(nullptr, num_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, offset)) {}
  ~Mapping() {
    if (begin_ != MAP_FAILED) munmap(begin_, num_bytes_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  // Null: the system does not map the file; errno says why.
  char* begin() const { return begin_ == MAP_FAILED ? nullptr : static_cast<char*>(begin_); }

 private:
  const size_t num_bytes_;
  void* const begin_;
};

// A file system on a disk or a network may wait for a device or for another machine. Memory does not.
bool IsInMemory(const Descriptor& object) {
  struct statfs system = {};
  return fstatfs(object.get(), &system) == 0 && system.f_type == TMPFS_MAGIC;
}

}  // namespace

absl::Status SharedMemoryPart::Read(absl::FunctionRef<void(int64_t begin, std::string_view bytes)> take) const {
  std::vector<char> piece(kPieceBytes);
  for (int64_t done = 0; done < num_bytes_;) {
    const int64_t size = std::min<int64_t>(num_bytes_ - done, kPieceBytes);
    const ssize_t count = pread(object_->get(), piece.data(), static_cast<size_t>(size), begin_ + done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return Refuse(absl::StrCat("region ", Quoted(region_), " cannot be read: ", std::strerror(errno)));
    if (count == 0) return Refuse(absl::StrCat("the object of region ", Quoted(region_), " became shorter"));
    take(done, {piece.data(), static_cast<size_t>(count)});
    done += count;
  }
  return absl::OkStatus();
}

absl::Status SharedMemoryPart::Write(std::string_view bytes) const {
  const auto num_bytes = static_cast<int64_t>(bytes.size());
  if (num_bytes > num_bytes_) {
    return Refuse(absl::StrCat("an output takes ", num_bytes, " bytes, its part of region ", Quoted(region_), " has ",
                               num_bytes_));
  }
  if (num_bytes == 0) return absl::OkStatus();
  const auto cannot = [this](const char* why) {
    return Refuse(absl::StrCat("region ", Quoted(region_), " cannot be written: ", why));
  };
  const int64_t in_page = begin_ % sysconf(_SC_PAGESIZE);
  const Mapping mapping(object_->get(), begin_ - in_page, in_page + num_bytes);
  if (mapping.begin() == nullptr) return cannot(std::strerror(errno));
  for (int64_t done = 0; done < num_bytes;) {
    const iovec from = {.iov_base = const_cast<char*>(bytes.data()) + done,
                        .iov_len = static_cast<size_t>(num_bytes - done)};
    const iovec to = {.iov_base = mapping.begin() + in_page + done, .iov_len = from.iov_len};
    const ssize_t count = process_vm_writev(getpid(), &from, 1, &to, 1, 0);
    if (count < 0 && errno == EFAULT) return cannot("its object became shorter, or has no room left");
    if (count <= 0) return cannot(std::strerror(errno));
    done += count;
  }
  return absl::OkStatus();
}

absl::Status SharedMemory::CheckKey(const std::string& key) const {
  if (key.size() < 2 || key.size() > kMaxRegionNameBytes || key[0] != '/' || key.find('/', 1) != std::string::npos ||
      key.find('\0') != std::string::npos || key == "/." || key == "/..") {
    return Refuse(absl::StrCat("key ", Quoted(key), " is no name of shared memory; such a name is \"/points\""));
  }
  if (key.compare(0, prefix_.size(), prefix_) != 0) {
    return Refuse(absl::StrCat("key ", Quoted(key), " must begin with ", Quoted(prefix_), " on this server"));
  }
  return absl::OkStatus();
}

absl::Status SharedMemory::Register(const std::string& client, SharedMemoryRegion region) {
  if (region.name.empty() || region.name.size() > kMaxRegionNameBytes) {
    return Refuse(absl::StrCat("a region's name has 1 to ", kMaxRegionNameBytes, " bytes"));
  }
  RETURN_IF_ERROR(CheckKey(region.key));
  Descriptor object(OpenAtOnce(region.key.substr(1)));
  if (!object) {
    return Refuse(absl::StrCat("shared memory ", Quoted(region.key), " cannot be opened: ", WhyNotOpened(errno)));
  }
  struct stat status = {};
  if (fstat(object.get(), &status) != 0 || !S_ISREG(status.st_mode) || !IsInMemory(object)) {
    return Refuse(absl::StrCat(Quoted(region.key), " is no shared memory: make it with shm_open, on a tmpfs"));
  }
  if (region.offset < 0 || region.num_bytes < 1 || region.num_bytes > status.st_size ||
      region.offset > status.st_size - region.num_bytes) {
    return Refuse(absl::StrCat("region ", Quoted(region.name), " of ", region.num_bytes, " bytes from byte ",
                               region.offset, " does not lie in ", Quoted(region.key), ", which has ", status.st_size));
  }
  absl::MutexLock lock(&mutex_);
  const std::pair<std::string, std::string> place = {client, region.name};
  if (entries_.count(place) > 0) {
    return Refuse(absl::StrCat("region ", Quoted(region.name), " is registered already; unregister it first"));
  }
  RETURN_IF_ERROR(MakeRoom(client));
  Add(place, {.region = std::move(region), .object = std::make_shared<const Descriptor>(std::move(object))});
  return absl::OkStatus();
}

absl::Status SharedMemory::MakeRoom(const std::string& client) {
  if (places_.NumOf(client) >= kMaxRegionsOfClient) {
    return ClientLimitError(absl::StrCat("a client may register ", kMaxRegionsOfClient, " regions"));
  }
  if (entries_.size() < static_cast<size_t>(kMaxRegions)) return absl::OkStatus();
  const auto unused_since = [this](SharedPlaces::Id id)
                                ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return entries_.at(by_id_.at(id)).used; };
  const std::optional<SharedPlaces::Id> unused = places_.WhoGivesWay(client, now_(), unused_since);
  if (!unused.has_value()) {
    return ClientLimitError(
        absl::StrCat("all clients together may register ", kMaxRegions, " regions, and none of them is unused"));
  }
  Remove(entries_.find(by_id_.at(*unused)));
  return absl::OkStatus();
}

void SharedMemory::Add(const Place& place, Entry entry) {
  entry.id = next_id_++;
  entry.used = now_();
  places_.Add(place.first, entry.id, entry.used);
  by_id_.emplace(entry.id, place);
  entries_.emplace(place, std::move(entry));
}

void SharedMemory::Remove(std::map<Place, Entry>::iterator entry) {
  places_.Remove(entry->second.id);
  by_id_.erase(entry->second.id);
  entries_.erase(entry);
}

void SharedMemory::Unregister(const std::string& client, const std::string& name) {
  absl::MutexLock lock(&mutex_);
  for (auto entry = entries_.lower_bound({client, name}); entry != entries_.end() && entry->first.first == client;) {
    const auto next = std::next(entry);
    if (name.empty() || entry->first.second == name) Remove(entry);
    entry = next;
  }
}

absl::StatusOr<std::vector<SharedMemoryRegion>> SharedMemory::List(const std::string& client,
                                                                   const std::string& name) const {
  std::vector<SharedMemoryRegion> regions;
  absl::MutexLock lock(&mutex_);
  for (auto entry = entries_.lower_bound({client, name}); entry != entries_.end() && entry->first.first == client;
       ++entry) {
    if (name.empty() || entry->first.second == name) regions.push_back(entry->second.region);
  }
  if (!name.empty() && regions.empty()) return Refuse(absl::StrCat("there is no region ", Quoted(name)));
  return regions;
}

absl::StatusOr<SharedMemoryPart> SharedMemory::Find(const std::string& client, const std::string& name, int64_t offset,
                                                    int64_t num_bytes) {
  if (!is_on()) return Refuse("shared memory is off on this server; --shared_memory_prefix allows it");
  absl::MutexLock lock(&mutex_);
  const auto found = entries_.find({client, name});
  if (found == entries_.end()) return Refuse(absl::StrCat("there is no region ", Quoted(name)));
  const SharedMemoryRegion& region = found->second.region;
  if (offset < 0 || num_bytes < 0 || num_bytes > region.num_bytes || offset > region.num_bytes - num_bytes) {
    return Refuse(absl::StrCat(num_bytes, " bytes from byte ", offset, " do not lie in region ", Quoted(name),
                               ", which has ", region.num_bytes));
  }
  found->second.used = now_();
  return SharedMemoryPart(found->second.object, name, region.offset + offset, num_bytes);
}

}  // namespace voxserve
