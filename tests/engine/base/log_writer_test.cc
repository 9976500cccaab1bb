// Tests LogWriter, which writes log lines to stderr from a queue. A pipe takes the place of stderr. The test reads the
// pipe at once, late or never.

#include "engine/base/log_writer.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "engine/base/logging.h"
#include "tests/support/failing_heap.h"

namespace voxserve::log_writer_test {
namespace {

using testing::EndsWith;
using testing::SizeIs;

constexpr char kDropped[] =
    "WARNING log lines were dropped: stderr is not read quickly enough, or memory was short num_lines=";

class LogWriterTest : public testing::Test {
 protected:
  // Makes a pipe with a buffer of 4 KiB, which fills up soon.
  void SetUp() override {
    signal(SIGPIPE, SIG_IGN);
    ASSERT_EQ(pipe2(pipe_, O_CLOEXEC), 0);
    ASSERT_GT(fcntl(pipe_[1], F_SETPIPE_SZ, 4096), 0);
  }
  void TearDown() override {
    writer_.reset();
    StopReading();
  }

  void StartWriter(int64_t max_queued_bytes = int64_t{1} << 20) {
    writer_ = std::make_unique<LogWriter>(LogWriter::Options{
        .descriptor = pipe_[1], .max_queued_bytes = max_queued_bytes, .flush_limit = absl::Milliseconds(100)});
  }

  void StartReading() {
    reader_ = std::thread([this] {
      char buffer[4096];
      for (ssize_t size; (size = read(pipe_[0], buffer, sizeof(buffer))) > 0;) text_.append(buffer, size);
    });
  }

  // Closes the pipe. Returns all lines that were read.
  std::vector<std::string> StopReading() {
    if (pipe_[1] >= 0) close(pipe_[1]);
    pipe_[1] = -1;
    if (reader_.joinable()) reader_.join();
    if (pipe_[0] >= 0) close(pipe_[0]);
    pipe_[0] = -1;
    std::vector<std::string> lines = absl::StrSplit(text_, '\n');
    EXPECT_EQ(lines.back(), "") << "the last line has an end";
    lines.pop_back();
    return lines;
  }

  int pipe_[2] = {-1, -1};
  std::thread reader_;
  std::string text_;
  std::unique_ptr<LogWriter> writer_;
};

// Returns how many dropped lines a line reports, or 0 if it is an ordinary line.
int64_t DroppedBefore(const std::string& line) {
  const size_t found = line.find(kDropped);
  int64_t count = 0;
  if (found == std::string::npos) return 0;
  EXPECT_TRUE(absl::SimpleAtoi(line.substr(found + sizeof(kDropped) - 1), &count)) << line;
  return count;
}

TEST_F(LogWriterTest, WritesLinesInOrder) {
  StartWriter();
  StartReading();
  for (int i = 0; i < 1000; ++i) Log(LogLevel::kInfo, "line", {{"i", i}});
  EXPECT_TRUE(LogWriter::Flush(absl::Seconds(10)));
  writer_.reset();
  const std::vector<std::string> lines = StopReading();
  ASSERT_THAT(lines, SizeIs(1000));
  for (int i = 0; i < 1000; ++i) EXPECT_THAT(lines[i], EndsWith(absl::StrCat(" INFO line i=", i)));
}

TEST_F(LogWriterTest, NobodyWaitsForAPipeThatIsNotRead) {
  constexpr int kThreads = 4;
  constexpr int kLinesPerThread = 25'000;
  StartWriter();
  const absl::Time start = absl::Now();
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([thread] {
      for (int i = 0; i < kLinesPerThread; ++i) Log(LogLevel::kInfo, "nobody reads", {{"thread", thread}, {"i", i}});
    });
  }
  for (std::thread& thread : threads) thread.join();
  const absl::Duration took = absl::Now() - start;
  EXPECT_LT(took, absl::Seconds(20));
  EXPECT_FALSE(LogWriter::Flush(absl::Milliseconds(20))) << "the queue cannot be empty";

  StartReading();
  EXPECT_TRUE(LogWriter::Flush(absl::Seconds(60)));
  Log(LogLevel::kInfo, "read again");
  EXPECT_TRUE(LogWriter::Flush(absl::Seconds(10)));
  writer_.reset();
  const std::vector<std::string> lines = StopReading();

  int64_t num_dropped = 0;
  int64_t num_written = 0;
  std::vector<int> next(kThreads, 0);  // the next number expected from each thread, whose lines keep their order
  for (const std::string& line : lines) {
    num_dropped += DroppedBefore(line);
    const size_t found = line.find(" INFO nobody reads thread=");
    if (found == std::string::npos) continue;
    const std::vector<std::string> words = absl::StrSplit(line.substr(found + 1), absl::ByAnyChar(" ="));
    ASSERT_THAT(words, SizeIs(7)) << line;
    int thread = -1;
    int i = -1;
    ASSERT_TRUE(absl::SimpleAtoi(words[4], &thread) && absl::SimpleAtoi(words[6], &i)) << line;
    EXPECT_GE(i, next[thread]) << line;
    next[thread] = i + 1;
    ++num_written;
  }
  EXPECT_GT(num_dropped, 0);
  EXPECT_GT(num_written, 1000);
  EXPECT_EQ(num_written + num_dropped, int64_t{kThreads} * kLinesPerThread);
  EXPECT_THAT(lines.back(), EndsWith(" INFO read again"));
  RecordProperty("written", num_written);
  std::printf("100,000 lines took %s: %ld written, %ld dropped\n", absl::FormatDuration(took).c_str(), num_written,
              num_dropped);
}

TEST_F(LogWriterTest, SaysHowManyAreMissingWithoutAFurtherLine) {
  StartWriter(/*max_queued_bytes=*/2000);
  for (int i = 0; i < 1000; ++i) Log(LogLevel::kInfo, "lost", {{"i", i}});
  StartReading();
  ASSERT_TRUE(LogWriter::Flush(absl::Seconds(10)));
  writer_.reset();
  int64_t num_dropped = 0;
  int64_t num_written = 0;
  for (const std::string& line : StopReading()) {
    const int64_t before = DroppedBefore(line);
    num_dropped += before;
    num_written += before == 0 ? 1 : 0;
  }
  EXPECT_GT(num_dropped, 0);
  EXPECT_EQ(num_dropped + num_written, 1000);
}

TEST_F(LogWriterTest, LongLinesStayWhole) {
  StartWriter();
  StartReading();
  const std::string text(20'000, 'x');
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&] {
      for (int i = 0; i < 10; ++i) Log(LogLevel::kInfo, text);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(LogWriter::Flush(absl::Seconds(10)));
  writer_.reset();
  const std::vector<std::string> lines = StopReading();
  ASSERT_THAT(lines, SizeIs(40));
  for (const std::string& line : lines) EXPECT_THAT(line, EndsWith(absl::StrCat(" INFO ", text)));
}

TEST_F(LogWriterTest, EndsInTimeWhereNobodyReads) {
  StartWriter();
  for (int i = 0; i < 1000; ++i) Log(LogLevel::kInfo, "line", {{"i", i}});
  const absl::Time start = absl::Now();
  writer_.reset();
  EXPECT_LT(absl::Now() - start, absl::Seconds(10));
}

TEST_F(LogWriterTest, WritesWhatIsQueuedBeforeItEnds) {
  StartWriter();
  StartReading();
  for (int i = 0; i < 100; ++i) Log(LogLevel::kInfo, "line", {{"i", i}});
  writer_.reset();
  EXPECT_THAT(StopReading(), SizeIs(100));
}

TEST_F(LogWriterTest, AReaderThatIsGoneIsNoObstacle) {
  StartWriter();
  close(pipe_[0]);
  pipe_[0] = -1;
  for (int i = 0; i < 10'000; ++i) Log(LogLevel::kInfo, "line", {{"i", i}});
  EXPECT_TRUE(LogWriter::Flush(absl::Seconds(10)));
}

TEST_F(LogWriterTest, ThePipeStaysABlockingOne) {
  StartWriter();
  Log(LogLevel::kInfo, "line");
  EXPECT_TRUE(LogWriter::Flush(absl::Seconds(10)));
  EXPECT_EQ(fcntl(pipe_[1], F_GETFL) & O_NONBLOCK, 0) << "other processes share the flag";
}

TEST(LogLineTest, IsTimeLevelMessageAndFields) {
  EXPECT_THAT(LogLine(LogLevel::kError, "no model", {{"name", "a b"}, {"n", 3}, {"empty", ""}}),
              EndsWith("Z ERROR no model name=\"a b\" n=3 empty=\"\"\n"));
  EXPECT_THAT(LogLine(LogLevel::kInfo, "x", {{"sent", "two\nlines"}}), EndsWith(" x sent=\"two\\nlines\"\n"));
}

TEST(LogLineTest, IsShortenedAndSaysSo) {
  const std::string long_line = LogLine(LogLevel::kInfo, "x", {{"sent", std::string(100'000, 'a')}});
  EXPECT_LE(long_line.size(), kMaxLogLineBytes);
  EXPECT_THAT(long_line, EndsWith("aaa ...[shortened]\n"));
  std::string characters;
  for (int i = 0; i < 30'000; ++i) characters += "\u00e9";
  for (const char* shift : {"", "x"}) {
    const std::string line = LogLine(LogLevel::kInfo, absl::StrCat(shift, characters), {});
    EXPECT_THAT(line, EndsWith("\u00e9 ...[shortened]\n")) << "no half character";
  }
}

TEST_F(LogWriterTest, ALineThatFindsNoMemoryIsCounted) {
  StartWriter();
  StartReading();
  for (int64_t i = 0; i < 3; ++i) {
    support::FailAllocation(i);
    Log(LogLevel::kInfo, "a line that is longer than what a string keeps without memory", {{"number", 7}});
    EXPECT_TRUE(support::HasFailed()) << i;
    support::FailAllocation(-1);
    ASSERT_TRUE(LogWriter::Flush(absl::Seconds(30)));
  }
  Log(LogLevel::kInfo, "second");
  ASSERT_TRUE(LogWriter::Flush(absl::Seconds(30)));
  writer_.reset();
  const std::vector<std::string> lines = StopReading();
  ASSERT_THAT(lines, SizeIs(4));
  for (int i = 0; i < 3; ++i) EXPECT_THAT(lines[i], EndsWith(absl::StrCat(kDropped, 1)));
  EXPECT_THAT(lines[3], EndsWith(" INFO second"));
}

// The writer first writes to /dev/full, which refuses every byte as a full disk does. Then a pipe takes the place of
// /dev/full.
TEST_F(LogWriterTest, LinesThatADiskHadNoRoomForAreCountedOnceItHas) {
  const int descriptor = open("/dev/full", O_WRONLY | O_CLOEXEC);
  ASSERT_GE(descriptor, 0);
  writer_ = std::make_unique<LogWriter>(LogWriter::Options{.descriptor = descriptor});
  for (int i = 0; i < 3; ++i) LogWriter::Write("lost\n");
  ASSERT_TRUE(LogWriter::Flush(absl::Seconds(30)));
  ASSERT_EQ(dup3(pipe_[1], descriptor, O_CLOEXEC), descriptor);
  StartReading();
  LogWriter::Write("first\n");
  LogWriter::Write("second\n");
  ASSERT_TRUE(LogWriter::Flush(absl::Seconds(30)));
  writer_.reset();
  close(descriptor);
  const std::vector<std::string> lines = StopReading();
  ASSERT_THAT(lines, SizeIs(4));
  EXPECT_EQ(lines[0], "") << "ends a line of which a part may have been written";
  EXPECT_THAT(lines[1], EndsWith("WARNING log lines were lost: stderr could not be written num_lines=3"));
  EXPECT_EQ(lines[2], "first");
  EXPECT_EQ(lines[3], "second");
}

}  // namespace
}  // namespace voxserve::log_writer_test
