#include "server/codec/grpc_status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/time/time.h"
#include "engine/base/error_reason.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace voxserve::grpc_status_test {
namespace {

google::rpc::Status DetailsOf(const grpc::Status& status) {
  google::rpc::Status details;
  EXPECT_TRUE(details.ParseFromString(status.error_details()));
  return details;
}

TEST(GrpcStatusTest, OkHasNoDetails) {
  const grpc::Status status = ToGrpcStatus(absl::OkStatus());
  EXPECT_TRUE(status.ok());
  EXPECT_TRUE(status.error_details().empty());
}

TEST(GrpcStatusTest, CarriesTheReason) {
  const grpc::Status status = ToGrpcStatus(WithReason(absl::NotFoundError("no model"), error_reason::kModelNotFound));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(status.error_message(), "no model");
  const google::rpc::Status details = DetailsOf(status);
  EXPECT_EQ(details.code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(details.message(), "no model");
  ASSERT_EQ(details.details_size(), 1);
  google::rpc::ErrorInfo info;
  ASSERT_TRUE(details.details(0).UnpackTo(&info));
  EXPECT_EQ(info.reason(), "MODEL_NOT_FOUND");
  EXPECT_EQ(info.domain(), "voxserve");
}

TEST(GrpcStatusTest, EveryErrorHasAReason) {
  google::rpc::ErrorInfo info;
  ASSERT_TRUE(DetailsOf(ToGrpcStatus(absl::InternalError("x"))).details(0).UnpackTo(&info));
  EXPECT_EQ(info.reason(), "INTERNAL");
  ASSERT_TRUE(DetailsOf(ToGrpcStatus(absl::UnavailableError("x"))).details(0).UnpackTo(&info));
  EXPECT_EQ(info.reason(), "UNAVAILABLE");
}

TEST(GrpcStatusTest, TheTypeUrlIsThePublishedOne) {
  const google::rpc::Status details = DetailsOf(ToGrpcStatus(absl::InternalError("x")));
  EXPECT_EQ(details.details(0).type_url(), "type.googleapis.com/google.rpc.ErrorInfo");
}

TEST(GrpcStatusTest, CarriesTheRetryDelay) {
  const absl::Status full = WithRetryDelay(WithReason(absl::ResourceExhaustedError("full"), error_reason::kQueueFull),
                                           absl::Milliseconds(1250));
  const google::rpc::Status details = DetailsOf(ToGrpcStatus(full));
  ASSERT_EQ(details.details_size(), 2);
  google::rpc::RetryInfo retry;
  ASSERT_TRUE(details.details(1).UnpackTo(&retry));
  EXPECT_EQ(retry.retry_delay().seconds(), 1);
  EXPECT_EQ(retry.retry_delay().nanos(), 250'000'000);
}

TEST(GrpcStatusTest, CutsWhatTheWireWouldNotCarry) {
  // Each euro sign has 3 bytes. After "x", the limit of 1,500 bytes falls inside one of them.
  std::string message = "x";
  for (int i = 0; i < 20'000; ++i) message += "\xE2\x82\xAC";
  const grpc::Status status = ToGrpcStatus(absl::NotFoundError(message));
  EXPECT_LT(status.error_message().size(), 1600u);
  // gRPC sends each byte of the message as "%XX", and the details in base64.
  EXPECT_LT(status.error_message().size() * 3 + status.error_details().size() * 4 / 3, 7500u);
  const size_t cut = status.error_message().find("...");
  ASSERT_NE(cut, std::string::npos);
  EXPECT_EQ((cut - 1) % 3, 0u) << "cut inside a character";
  EXPECT_THAT(status.error_message(), testing::HasSubstr("bytes more"));
}

TEST(GrpcStatusTest, KeepsWhatFits) {
  const std::string message(1500, 'a');
  EXPECT_EQ(ToGrpcStatus(absl::NotFoundError(message)).error_message(), message);
}

}  // namespace
}  // namespace voxserve::grpc_status_test
