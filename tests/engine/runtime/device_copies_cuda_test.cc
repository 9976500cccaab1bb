#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/runtime/device_copies.h"
#include "engine/runtime/pinned_buffer.h"
#include "tests/support/test_device.h"

namespace voxserve::device_copies_cuda_test {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// Returns bytes that stand for a sweep.
std::shared_ptr<const std::string> Bytes(int64_t size, char first) {
  std::string bytes(static_cast<size_t>(size), '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(first + static_cast<char>(i % 61));
  return std::make_shared<const std::string>(std::move(bytes));
}

// Stands for a context that reads copies: it has a stream and pinned memory.
class Reader {
 public:
  Reader() : stream_(*Stream::CreateOn(0)) {}

  DeviceCopies::Lease Find(DeviceCopies& copies, const std::shared_ptr<const std::string>& bytes) {
    auto lease = copies.Find(bytes, stream_.view());
    EXPECT_TRUE(lease.ok()) << lease.status();
    return *lease;
  }
  DeviceCopies::Lease Add(DeviceCopies& copies, const std::shared_ptr<const std::string>& bytes) {
    const auto size = static_cast<int64_t>(bytes->size());
    EXPECT_TRUE(pinned_.Reserve(size).ok());
    std::copy(bytes->begin(), bytes->end(), pinned_.data());
    auto lease = copies.Add(bytes, pinned_.data(), size, stream_.view());
    EXPECT_TRUE(lease.ok()) << lease.status();
    return *lease;
  }
  std::string Read(const DeviceCopies::Lease& lease, size_t size) {
    EXPECT_TRUE(stream_.view().Synchronize().ok());
    std::string read(size, '\0');
    support::CopyFromDevice(support::Device::kCuda, read.data(), lease->data(), size);
    return read;
  }

 private:
  Stream stream_;
  PinnedBuffer pinned_;
};

class DeviceCopiesTest : public testing::Test {
 protected:
  void SetUp() override {
    SKIP_WITHOUT(support::Device::kCuda);
    auto pool = DevicePool::Create({});
    ASSERT_TRUE(pool.ok()) << pool.status();
    pool_ = *std::move(pool);
    Start(64 * kMiB);
    reader_ = std::make_unique<Reader>();
  }
  void Start(int64_t max_bytes) {
    copies_.reset();
    auto copies = DeviceCopies::Create(pool_.get(), max_bytes);
    ASSERT_TRUE(copies.ok()) << copies.status();
    copies_ = *std::move(copies);
  }

  std::unique_ptr<DevicePool> pool_;
  std::unique_ptr<DeviceCopies> copies_;
  std::unique_ptr<Reader> reader_;
};

TEST_F(DeviceCopiesTest, FindsWhatWasAddedByItsOwnerAlone) {
  const auto bytes = Bytes(100'000, 'a'), equal = Bytes(100'000, 'a');
  EXPECT_EQ(reader_->Find(*copies_, bytes), nullptr);
  const DeviceCopies::Lease added = reader_->Add(*copies_, bytes);
  ASSERT_NE(added, nullptr);
  EXPECT_EQ(reader_->Read(added, bytes->size()), *bytes);
  Reader other;
  EXPECT_EQ(other.Find(*copies_, bytes), added);
  EXPECT_EQ(other.Read(added, bytes->size()), *bytes);
  EXPECT_EQ(other.Find(*copies_, equal), nullptr);
  EXPECT_EQ(other.Add(*copies_, bytes), added);  // Add finds the copy that is there
  EXPECT_EQ(copies_->allocated_bytes(), kMiB);
}

TEST_F(DeviceCopiesTest, MemoryOfOwnersThatAreGoneServesTheNextOne) {
  auto first = Bytes(2 * kMiB - 5, 'a');
  DeviceCopies::Lease lease = reader_->Add(*copies_, first);
  const char* const memory = lease->data();
  first.reset();
  const auto second = Bytes(2 * kMiB, 'b');
  const DeviceCopies::Lease while_read = reader_->Add(*copies_, second);
  EXPECT_NE(while_read->data(), memory);  // the copy of `first` is still leased
  EXPECT_EQ(copies_->allocated_bytes(), 4 * kMiB);
  reader_->Read(lease, 1);
  lease.reset();
  const auto third = Bytes(kMiB + 1, 'c');
  const DeviceCopies::Lease reused = reader_->Add(*copies_, third);
  EXPECT_EQ(reused->data(), memory);
  EXPECT_EQ(reader_->Read(reused, third->size()), *third);
  EXPECT_EQ(reader_->Read(while_read, second->size()), *second);
  EXPECT_EQ(copies_->allocated_bytes(), 4 * kMiB);
}

TEST_F(DeviceCopiesTest, NothingIsKeptWhereThereIsNoRoom) {
  Start(3 * kMiB);
  auto first = Bytes(2 * kMiB, 'a');
  EXPECT_NE(reader_->Add(*copies_, first), nullptr);
  const auto second = Bytes(2 * kMiB, 'b'), large = Bytes(4 * kMiB, 'c');
  EXPECT_EQ(reader_->Add(*copies_, second), nullptr);
  EXPECT_EQ(reader_->Add(*copies_, large), nullptr);
  EXPECT_EQ(reader_->Find(*copies_, second), nullptr);
  EXPECT_EQ(copies_->allocated_bytes(), 2 * kMiB);
  reader_->Read(reader_->Find(*copies_, first), 1);
  // The memory of `first` is too small for the next copy, so it is freed to make room.
  first.reset();
  const auto three = Bytes(3 * kMiB, 'd');
  const DeviceCopies::Lease lease = reader_->Add(*copies_, three);
  ASSERT_NE(lease, nullptr);
  EXPECT_EQ(reader_->Read(lease, three->size()), *three);
  EXPECT_EQ(copies_->allocated_bytes(), 3 * kMiB);
}

TEST_F(DeviceCopiesTest, NothingIsKeptWhereThePoolHasNoRoom) {
  auto pool = DevicePool::Create({.limit_bytes = kMiB});
  ASSERT_TRUE(pool.ok());
  auto copies = DeviceCopies::Create(pool->get(), 64 * kMiB);
  ASSERT_TRUE(copies.ok());
  EXPECT_EQ(reader_->Add(**copies, Bytes(2 * kMiB, 'a')), nullptr);
  EXPECT_NE(reader_->Add(**copies, Bytes(1, 'b')), nullptr);
  EXPECT_EQ((*copies)->allocated_bytes(), kMiB);
}

TEST_F(DeviceCopiesTest, ClearForgetsAllAndWhatIsLeasedStaysReadable) {
  const auto bytes = Bytes(kMiB, 'a'), other = Bytes(kMiB, 'b');
  DeviceCopies::Lease lease = reader_->Add(*copies_, bytes);
  reader_->Read(lease, 1);
  reader_->Read(reader_->Add(*copies_, other), 1);
  copies_->Clear();
  EXPECT_EQ(copies_->allocated_bytes(), 0);
  EXPECT_EQ(reader_->Find(*copies_, bytes), nullptr);
  EXPECT_EQ(pool_->used_bytes(), kMiB);
  EXPECT_EQ(reader_->Read(lease, bytes->size()), *bytes);
  lease.reset();
  EXPECT_EQ(pool_->used_bytes(), 0);
}

TEST_F(DeviceCopiesTest, TrimGivesBackWhatNobodyHasNeededSinceTheLastOne) {
  const auto kept = Bytes(kMiB, 'k');
  auto gone = Bytes(2 * kMiB, 'g'), leased = Bytes(3 * kMiB, 'l');
  reader_->Read(reader_->Add(*copies_, kept), 1);
  reader_->Read(reader_->Add(*copies_, gone), 1);
  DeviceCopies::Lease lease = reader_->Add(*copies_, leased);
  reader_->Read(lease, 1);
  gone.reset();
  leased.reset();
  EXPECT_TRUE(copies_->Trim().ok());
  EXPECT_EQ(copies_->allocated_bytes(), 6 * kMiB) << "another may need it soon";
  const auto next = Bytes(2 * kMiB, 'n');
  reader_->Read(reader_->Add(*copies_, next), 1);
  EXPECT_TRUE(copies_->Trim().ok());
  EXPECT_EQ(copies_->allocated_bytes(), 6 * kMiB) << "it took it, and the third is leased";
  lease.reset();
  EXPECT_TRUE(copies_->Trim().ok());
  EXPECT_EQ(copies_->allocated_bytes(), 6 * kMiB);
  EXPECT_TRUE(copies_->Trim().ok());
  EXPECT_EQ(copies_->allocated_bytes(), 3 * kMiB);
  EXPECT_EQ(pool_->used_bytes(), 3 * kMiB);
  for (const auto& bytes : {kept, next}) {
    const DeviceCopies::Lease found = reader_->Find(*copies_, bytes);
    ASSERT_NE(found, nullptr);
    EXPECT_EQ(reader_->Read(found, bytes->size()), *bytes);
  }
}

TEST_F(DeviceCopiesTest, ReadersOfSeveralThreadsSeeTheirOwnersBytes) {
  constexpr int kThreads = 4, kRounds = 400, kOwners = 12;
  Start(9 * kMiB);  // less than all copies need
  absl::Mutex mutex;
  std::vector<std::shared_ptr<const std::string>> owners(kOwners);
  for (int i = 0; i < kOwners; ++i) owners[static_cast<size_t>(i)] = Bytes(kMiB - i * 1000, static_cast<char>(i));
  std::atomic<int> num_wrong{0}, num_found{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      EXPECT_TRUE(pool_->MakeCurrent().ok());
      std::mt19937 random(static_cast<uint32_t>(t));
      Reader reader;
      for (int round = 0; round < kRounds; ++round) {
        const size_t index = random() % kOwners;
        std::shared_ptr<const std::string> bytes;
        {
          absl::MutexLock lock(&mutex);
          if (random() % 4 == 0) owners[index] = Bytes(kMiB - static_cast<int64_t>(random() % 9999), 'x');
          bytes = owners[index];
        }
        DeviceCopies::Lease lease = reader.Find(*copies_, bytes);
        num_found += lease != nullptr ? 1 : 0;
        if (lease == nullptr) lease = reader.Add(*copies_, bytes);
        if (lease != nullptr && reader.Read(lease, bytes->size()) != *bytes) ++num_wrong;
        if (random() % 50 == 0) copies_->Clear();
        if (random() % 20 == 0) {
          EXPECT_TRUE(copies_->Trim().ok());
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_wrong, 0);
  EXPECT_GT(num_found, 0);
  copies_->Clear();
  EXPECT_EQ(pool_->used_bytes(), 0);
}

}  // namespace
}  // namespace voxserve::device_copies_cuda_test
