#include "server/calls/shared_memory.h"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/error_reason.h"
#include "gmock/gmock.h"
#include "tests/support/await_true.h"

namespace voxserve::shared_memory_test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kClient[] = "10.0.0.1";
constexpr char kOther[] = "10.0.0.2";

// Creates an object of POSIX shared memory that holds the bytes of `text`, and removes it in the destructor.
class Object {
 public:
  explicit Object(const std::string& text, const std::string& word = "voxserve-test")
      : key_(absl::StrCat("/", word, "-", getpid())) {
    shm_unlink(key_.c_str());
    descriptor_ = shm_open(key_.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
    EXPECT_GE(descriptor_, 0);
    EXPECT_EQ(pwrite(descriptor_, text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
  }
  ~Object() {
    close(descriptor_);
    shm_unlink(key_.c_str());
  }

  const std::string& key() const { return key_; }
  int descriptor() const { return descriptor_; }
  void Shorten(int64_t num_bytes) const { EXPECT_EQ(ftruncate(descriptor_, num_bytes), 0); }
  std::string text() const {
    std::string text(64, '\0');
    text.resize(static_cast<size_t>(pread(descriptor_, text.data(), text.size(), 0)));
    return text;
  }

 private:
  const std::string key_;
  int descriptor_ = -1;
};

std::string Message(const absl::Status& status) { return std::string(status.message()); }

absl::StatusOr<std::string> Read(const SharedMemoryPart& part) {
  std::string all(static_cast<size_t>(part.num_bytes()), '?');
  const absl::Status status = part.Read(
      [&](int64_t begin, std::string_view bytes) { all.replace(static_cast<size_t>(begin), bytes.size(), bytes); });
  if (!status.ok()) return status;
  return all;
}

class SharedMemoryTest : public testing::Test {
 protected:
  absl::Status Register(const std::string& name, int64_t offset, int64_t num_bytes) {
    return memory_.Register(kClient, {.name = name, .key = object_.key(), .offset = offset, .num_bytes = num_bytes});
  }

  Object object_{"0123456789abcdef"};
  SharedMemory memory_{"/voxserve-"};
};

TEST_F(SharedMemoryTest, ReadsAndWritesAPartOfARegion) {
  ASSERT_TRUE(Register("r", 4, 10).ok());
  const auto part = memory_.Find(kClient, "r", 2, 4);
  ASSERT_TRUE(part.ok()) << part.status();
  EXPECT_EQ(*Read(*part), "6789");
  ASSERT_TRUE(part->Write("XY").ok());
  EXPECT_EQ(object_.text(), "012345XY89abcdef");
}

TEST_F(SharedMemoryTest, NothingOutsideOfTheRegionIsReached) {
  ASSERT_TRUE(Register("r", 4, 10).ok());
  for (const auto& [offset, num_bytes] : std::vector<std::pair<int64_t, int64_t>>{
           {0, 11}, {10, 1}, {11, 0}, {-1, 2}, {0, -1}, {INT64_MAX, 1}, {1, INT64_MAX}, {INT64_MAX, INT64_MAX}}) {
    const auto part = memory_.Find(kClient, "r", offset, num_bytes);
    EXPECT_EQ(part.status().code(), absl::StatusCode::kInvalidArgument) << offset << " " << num_bytes;
    EXPECT_EQ(ReasonOf(part.status()), error_reason::kBadParameter);
    EXPECT_THAT(Message(part.status()), HasSubstr("do not lie in region \"r\", which has 10"));
  }
  const auto part = memory_.Find(kClient, "r", 8, 2);
  ASSERT_TRUE(part.ok());
  EXPECT_THAT(Message(part->Write("123")), HasSubstr("an output takes 3 bytes, its part of region \"r\" has 2"));
  EXPECT_EQ(object_.text(), "0123456789abcdef");
}

TEST_F(SharedMemoryTest, ARegionLiesInItsObject) {
  for (const auto& [offset, num_bytes] : std::vector<std::pair<int64_t, int64_t>>{
           {0, 17}, {16, 1}, {1, 16}, {0, 0}, {-1, 4}, {0, -4}, {INT64_MAX, 1}, {1, INT64_MAX}}) {
    EXPECT_THAT(Message(Register("r", offset, num_bytes)), HasSubstr("does not lie in")) << offset << " " << num_bytes;
  }
  EXPECT_TRUE(Register("r", 0, 16).ok());
}

TEST_F(SharedMemoryTest, AnObjectThatBecameShorterIsAnError) {
  ASSERT_TRUE(Register("r", 0, 16).ok());
  const auto part = memory_.Find(kClient, "r", 0, 16);
  ASSERT_TRUE(part.ok());
  object_.Shorten(8);
  EXPECT_THAT(Message(Read(*part).status()), HasSubstr("became shorter"));
}

TEST_F(SharedMemoryTest, WritingToAnObjectThatBecameShorterIsAnError) {
  const std::string text(3 * 4096, 'x');
  const Object object(text, "voxserve-short");
  const SharedMemoryRegion region = {.name = "s", .key = object.key(), .offset = 100, .num_bytes = 3 * 4096 - 100};
  ASSERT_TRUE(memory_.Register(kClient, region).ok());
  const auto part = memory_.Find(kClient, "s", 0, 3 * 4096 - 100);
  ASSERT_TRUE(part.ok());
  object.Shorten(4096);
  EXPECT_THAT(Message(part->Write(std::string(3 * 4096 - 100, 'y'))), HasSubstr("its object became shorter"));
  EXPECT_TRUE(part->Write(std::string(3900, 'z')).ok());
  EXPECT_TRUE(part->Write("").ok());
  EXPECT_EQ(object.text(), std::string(64, 'x')) << "before the region";
  object.Shorten(0);
  EXPECT_THAT(Message(part->Write("y")), HasSubstr("its object became shorter"));
}

// A process that writes to an object from memory that does not come holds the lock of the object's file.
TEST_F(SharedMemoryTest, WritingDoesNotWaitForAnotherWriter) {
  const auto faults = static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK));
  if (faults < 0) GTEST_SKIP() << "userfaultfd: " << std::strerror(errno);
  uffdio_api api = {.api = UFFD_API, .features = 0, .ioctls = 0};
  ASSERT_EQ(ioctl(faults, UFFDIO_API, &api), 0);
  constexpr size_t kPage = 4096;
  void* const absent = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(absent, MAP_FAILED);
  uffdio_register range = {.range = {.start = reinterpret_cast<uint64_t>(absent), .len = kPage},
                           .mode = UFFDIO_REGISTER_MODE_MISSING,
                           .ioctls = 0};
  ASSERT_EQ(ioctl(faults, UFFDIO_REGISTER, &range), 0);
  ASSERT_TRUE(Register("r", 0, 16).ok());
  std::thread other([&] { EXPECT_EQ(pwrite(object_.descriptor(), absent, 4, 0), 4); });
  pollfd fault = {.fd = faults, .events = POLLIN, .revents = 0};
  ASSERT_EQ(poll(&fault, 1, 60'000), 1) << "the other writer waits for its page";

  std::atomic<bool> is_written{false};
  absl::Status status;
  std::thread writer([&] {
    status = memory_.Find(kClient, "r", 8, 8)->Write("ABCDEFGH");
    is_written = true;
  });
  EXPECT_TRUE(support::AwaitTrue([&] { return is_written.load(); }));
  EXPECT_EQ(*Read(*memory_.Find(kClient, "r", 8, 8)), is_written ? "ABCDEFGH" : "89abcdef");

  uffdio_zeropage zeros = {.range = range.range, .mode = 0, .zeropage = 0};  // the page comes
  EXPECT_EQ(ioctl(faults, UFFDIO_ZEROPAGE, &zeros), 0);
  other.join();
  writer.join();
  EXPECT_TRUE(status.ok()) << status;
  munmap(absent, kPage);
  close(faults);
}

TEST(SharedMemoryPartTest, LargePartsComeInPieces) {
  std::string text;
  for (int i = 0; i < 200'000; ++i) absl::StrAppend(&text, i, ",");
  const Object object(text);
  SharedMemory memory("/voxserve-");
  const auto size = static_cast<int64_t>(text.size());
  const SharedMemoryRegion region = {.name = "r", .key = object.key(), .offset = 0, .num_bytes = size};
  ASSERT_TRUE(memory.Register(kClient, region).ok());
  EXPECT_EQ(*Read(*memory.Find(kClient, "r", 0, size)), text);
  EXPECT_EQ(*Read(*memory.Find(kClient, "r", 0, 0)), "");
}

TEST_F(SharedMemoryTest, KeysAreNamesThatTheOperatorAllows) {
  const Object stranger("secret", "other-test");
  for (const auto& [key, text] : std::vector<std::pair<std::string, std::string>>{
           {stranger.key(), "must begin with \"/voxserve-\""},
           {"", "is no name of shared memory"},
           {"/", "is no name"},
           {"/..", "is no name"},
           {"voxserve-x", "is no name"},
           {"/voxserve-/../etc/passwd", "is no name"},
           {"/voxserve-/x", "is no name"},
           {std::string("/voxserve-\0x", 12), "is no name"},
           {"/voxserve-" + std::string(300, 'x'), "is no name"},
           {"/voxserve-there-is-none", "cannot be opened: No such file"}}) {
    const absl::Status status = memory_.Register(kClient, {.name = "r", .key = key, .offset = 0, .num_bytes = 1});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(Message(status), HasSubstr(text));
  }
  EXPECT_THAT(Message(Register("", 0, 1)), HasSubstr("1 to 255 bytes"));
}

// Whoever opens a file that has a lease waits for the lease's holder, 45 seconds by default.
TEST_F(SharedMemoryTest, ALeaseIsAnErrorAtOnce) {
  std::signal(SIGIO, SIG_IGN);  // the system's request to give the lease up
  ASSERT_EQ(fcntl(object_.descriptor(), F_SETLEASE, F_WRLCK), 0);
  const absl::Status refused = Register("r", 0, 16);
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(refused), HasSubstr("another process has a lease on it (fcntl F_SETLEASE); release it first"));
  ASSERT_EQ(fcntl(object_.descriptor(), F_SETLEASE, F_UNLCK), 0);
  EXPECT_TRUE(Register("r", 0, 16).ok());
  std::signal(SIGIO, SIG_DFL);
}

TEST_F(SharedMemoryTest, OnlyARegularFileIsAnObject) {
  const std::string key = absl::StrCat("/voxserve-kinds-", getpid());
  const std::string path = "/dev/shm" + key;
  const auto refusal = [&] {
    return Message(memory_.Register(kClient, {.name = "k", .key = key, .offset = 0, .num_bytes = 1}));
  };
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_THAT(refusal(), HasSubstr("is no shared memory: make it with shm_open, on a tmpfs"));
  unlink(path.c_str());
  ASSERT_EQ(symlink("/etc/hostname", path.c_str()), 0);
  EXPECT_THAT(refusal(), HasSubstr("cannot be opened"));
  unlink(path.c_str());
  ASSERT_EQ(mkdir(path.c_str(), 0700), 0);
  EXPECT_THAT(refusal(), HasSubstr("cannot be opened: Is a directory"));
  rmdir(path.c_str());
}

TEST_F(SharedMemoryTest, ARegionBelongsToItsClient) {
  ASSERT_TRUE(Register("r", 0, 4).ok());
  EXPECT_THAT(Message(memory_.Find(kOther, "r", 0, 4).status()), HasSubstr("there is no region \"r\""));
  EXPECT_THAT(*memory_.List(kOther, ""), IsEmpty());
  EXPECT_FALSE(memory_.List(kOther, "r").ok());
  memory_.Unregister(kOther, "");
  memory_.Unregister(kOther, "r");
  ASSERT_EQ(memory_.List(kClient, "")->size(), 1u);
  EXPECT_EQ(memory_.List(kClient, "r")->front().key, object_.key());
  EXPECT_TRUE(memory_.Register(kOther, {.name = "r", .key = object_.key(), .offset = 8, .num_bytes = 4}).ok());
}

TEST_F(SharedMemoryTest, UnregisteredItIsGoneButForRequestsThatHaveIt) {
  ASSERT_TRUE(Register("a", 0, 4).ok());
  ASSERT_TRUE(Register("b", 4, 4).ok());
  EXPECT_THAT(Message(Register("a", 0, 4)), HasSubstr("is registered already"));
  const auto part = memory_.Find(kClient, "a", 0, 4);
  ASSERT_TRUE(part.ok());
  memory_.Unregister(kClient, "a");
  memory_.Unregister(kClient, "a");  // does nothing
  EXPECT_FALSE(memory_.Find(kClient, "a", 0, 4).ok());
  EXPECT_EQ(*Read(*part), "0123");
  memory_.Unregister(kClient, "");
  EXPECT_THAT(*memory_.List(kClient, ""), IsEmpty());
}

TEST_F(SharedMemoryTest, NumbersOfRegionsAreBounded) {
  for (int i = 0; i < SharedMemory::kMaxRegionsOfClient; ++i) ASSERT_TRUE(Register(absl::StrCat(i), 0, 1).ok());
  const absl::Status status = Register("more", 0, 1);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(status), error_reason::kClientLimit);
  EXPECT_TRUE(memory_.Register(kOther, {.name = "r", .key = object_.key(), .offset = 0, .num_bytes = 1}).ok());
  int num_registered = SharedMemory::kMaxRegionsOfClient + 1;
  for (int i = 0; i < SharedMemory::kMaxRegions; ++i) {
    const std::string client = absl::StrCat("10.1.0.", i);
    const SharedMemoryRegion region = {.name = "r", .key = object_.key(), .offset = 0, .num_bytes = 1};
    num_registered += memory_.Register(client, region).ok();
  }
  EXPECT_EQ(num_registered, SharedMemory::kMaxRegions);
}

TEST(SharedMemoryOffTest, WithoutAPrefixNothingIsServed) {
  SharedMemory memory("");
  EXPECT_FALSE(memory.is_on());
  EXPECT_THAT(Message(memory.Find(kClient, "r", 0, 1).status()), HasSubstr("--shared_memory_prefix allows it"));
}

// Four clients take all regions. Who has none gets one that has not been used for a while, and never one in use.
TEST(SharedMemoryPlacesTest, UnusedRegionsGiveWayToAClientWithoutAny) {
  const Object object("0123456789");
  absl::Time now = absl::UnixEpoch() + absl::Hours(1);
  SharedMemory memory("/voxserve-", [&now] { return now; });
  const auto reg = [&](const std::string& client, const std::string& name) {
    return memory.Register(client, {.name = name, .key = object.key(), .offset = 0, .num_bytes = 10});
  };
  for (int i = 0; i < SharedMemory::kMaxRegions; ++i) {
    ASSERT_TRUE(reg(absl::StrCat("10.0.0.", i / SharedMemory::kMaxRegionsOfClient), absl::StrCat("r", i)).ok());
  }
  const absl::Status refused = reg("198.51.100.1", "mine");
  EXPECT_EQ(ReasonOf(refused), error_reason::kClientLimit);
  EXPECT_THAT(Message(refused), HasSubstr("none of them is unused"));
  now += absl::Seconds(9);
  ASSERT_TRUE(memory.Find("10.0.0.0", "r0", 0, 1).ok());
  now += absl::Seconds(2);
  EXPECT_TRUE(reg("198.51.100.1", "mine").ok());
  EXPECT_TRUE(memory.Find("198.51.100.1", "mine", 0, 1).ok());
  EXPECT_TRUE(memory.Find("10.0.0.0", "r0", 0, 1).ok()) << "it was used a moment ago";
  size_t num_left = 0;
  for (int i = 0; i < 4; ++i) num_left += memory.List(absl::StrCat("10.0.0.", i), "")->size();
  EXPECT_EQ(num_left, static_cast<size_t>(SharedMemory::kMaxRegions - 1));
  EXPECT_FALSE(reg("10.0.0.2", "one more").ok()) << "which has as many as the others";
}

}  // namespace
}  // namespace voxserve::shared_memory_test
