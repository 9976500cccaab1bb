// Tests that the lines of gRPC and protobuf come to SetLibraryLog's function, in every version of gRPC.

#include "server/grpc/library_log.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <google/protobuf/wrappers.pb.h>
#include <grpcpp/grpcpp.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"

namespace voxserve::library_log_test {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::Each;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

struct Line {
  LogLevel level;
  std::string library;
  std::string text;
};

absl::Mutex mutex(absl::kConstInit);
std::vector<Line>& Lines() {
  static std::vector<Line>& lines = *new std::vector<Line>;
  return lines;
}

std::vector<Line> TakeLines() {
  absl::MutexLock lock(&mutex);
  return std::exchange(Lines(), {});
}

class LibraryLogTest : public testing::Test {
 protected:
  LibraryLogTest() {
    SetLibraryLog([](LogLevel level, const char* library, std::string_view text) {
      absl::MutexLock lock(&mutex);
      Lines().push_back({level, library, std::string(text)});
    });
    TakeLines();
  }
};

void LetProtobufLogAnError() {
  google::protobuf::Int32Value message;
  EXPECT_FALSE(google::protobuf::TextFormat::ParseFromString("value: no_number", &message));
}

void LetGrpcLogAnError() {
  grpc::ServerBuilder builder;
  builder.AddListeningPort("unix:/no/folder/socket", grpc::InsecureServerCredentials());
  EXPECT_EQ(builder.BuildAndStart(), nullptr);
}

TEST_F(LibraryLogTest, AnErrorOfProtobufIsAWarning) {
  LetProtobufLogAnError();
  EXPECT_THAT(TakeLines(), Contains(AllOf(Field(&Line::level, LogLevel::kWarning), Field(&Line::library, "protobuf"),
                                          Field(&Line::text, HasSubstr("no_number")))));
}

TEST_F(LibraryLogTest, AnErrorOfGrpcIsAWarning) {
  LetGrpcLogAnError();
  const std::vector<Line> lines = TakeLines();
  EXPECT_THAT(lines, Not(IsEmpty()));
  EXPECT_THAT(lines, Each(AllOf(Field(&Line::level, LogLevel::kWarning), Field(&Line::library, "grpc"),
                                Field(&Line::text, Not(IsEmpty())))));
}

TEST_F(LibraryLogTest, NothingIsWrittenToStderr) {
  testing::internal::CaptureStderr();
  LetProtobufLogAnError();
  LetGrpcLogAnError();
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  EXPECT_THAT(TakeLines(), Not(IsEmpty()));
}

TEST_F(LibraryLogTest, ALaterFunctionReplacesTheFirst) {
  SetLibraryLog([](LogLevel, const char*, std::string_view) {});
  LetProtobufLogAnError();
  EXPECT_THAT(TakeLines(), IsEmpty());
}

}  // namespace
}  // namespace voxserve::library_log_test
