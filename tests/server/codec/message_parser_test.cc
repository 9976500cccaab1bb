#include "server/codec/message_parser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/error_reason.h"
#include "engine/runtime/pinned_pool.h"
#include "server/grpc/library_log.h"
#include "tests/server/codec/wire_bytes.h"
#include "tests/support/fake_pinned_memory.h"
#include "voxserve/v1/admin.pb.h"

// Protobuf's own parser is the oracle for the meaning of every message. Our parser also has limits, which protobuf does
// not have. Random messages stay below these limits, so both parsers must agree on all of them.

namespace voxserve::message_parser_test {
namespace {

using testing::HasSubstr;

// Protobuf's parser logs what it refuses.
void DropLine(LogLevel /*level*/, const char* /*library*/, std::string_view /*text*/) {}

// Parses the whole message, and puts the cloud's data, which the parser keeps apart, back into it.
absl::Status Parse(const grpc::ByteBuffer& bytes, v1::InferRequest* message) {
  HostBuffer data;
  const absl::Status status = ParseInferRequest(bytes, HostBuffer::Create, message, &data);
  EXPECT_TRUE(message->cloud().data().empty()) << "it stands beside the message";
  if (data.size() > 0) message->mutable_cloud()->set_data(std::string(data.bytes()));
  return status;
}
absl::Status Parse(const grpc::ByteBuffer& bytes, v1::InferStreamRequest* message) {
  HostBuffer data;
  const absl::Status status = ParseStreamRequest(bytes, HostBuffer::Create, message, &data);
  EXPECT_TRUE(message->frame().cloud().data().empty()) << "it stands beside the message";
  EXPECT_TRUE(message->part().cloud().data().empty());
  if (data.size() > 0) {
    v1::PointCloud* const cloud =
        message->has_part() ? message->mutable_part()->mutable_cloud() : message->mutable_frame()->mutable_cloud();
    cloud->set_data(std::string(data.bytes()));
  }
  return status;
}
absl::Status Parse(const grpc::ByteBuffer& bytes, v1::TunePlanRequest* message) {
  return ParseMessage(bytes, 1 << 20, message);
}

void ExpectMalformed(const absl::Status& status, const std::string& text) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_EQ(ReasonOf(status), error_reason::kMalformed);
  EXPECT_THAT(std::string(status.message()), HasSubstr(text));
}

template <typename Request>
void ExpectRefused(const std::string& bytes, const std::string& text) {
  Request message;
  ExpectMalformed(Parse(OneSlice(bytes), &message), text);
}

// Parses the bytes with protobuf's parser and with ours, and expects equal results. The message must be small enough
// for all limits of ours. Returns true if both parsers accept it.
template <typename Request>
bool ExpectAsProtobuf(const std::string& bytes, const grpc::ByteBuffer& slices) {
  Request expected, message;
  const bool is_message = expected.ParseFromString(bytes);
  const absl::Status status = Parse(slices, &message);
  EXPECT_EQ(status.ok(), is_message) << status << "\n" << testing::PrintToString(bytes);
  EXPECT_EQ(ReasonOf(status), status.ok() ? "" : error_reason::kMalformed) << status;
  if (!is_message || !status.ok()) return false;
  // Equal bytes mean equal messages, with their unknown fields, presence of fields, and bits of NaN.
  EXPECT_EQ(message.SerializeAsString(), expected.SerializeAsString()) << testing::PrintToString(bytes);
  return true;
}

// A message of this size stays within every limit: on a string's length, and on the number of values, since each value
// takes a byte or more.
constexpr size_t kMaxRandomBytes = MessageLimits::kMaxTextBytes;

template <typename Request>
class EveryRequestTest : public testing::Test {
 protected:
  EveryRequestTest() { SetLibraryLog(DropLine); }
};
using Requests = testing::Types<v1::InferRequest, v1::InferStreamRequest, v1::TunePlanRequest>;
TYPED_TEST_SUITE(EveryRequestTest, Requests);

TYPED_TEST(EveryRequestTest, RandomMessagesMeanWhatTheyMeanToProtobuf) {
  constexpr uint32_t kSeed = 20261;
  constexpr int kCases = 20'000;
  int num_accepted = 0;
  for (int i = 0; i < kCases && !this->HasFailure(); ++i) {
    SCOPED_TRACE(absl::StrCat("seed ", kSeed + i));
    std::mt19937 random(kSeed + i);
    const std::string bytes = RandomMessage(*TypeParam::descriptor(), kMaxRandomBytes / 2, &random);
    if (bytes.size() > kMaxRandomBytes) continue;
    num_accepted += ExpectAsProtobuf<TypeParam>(bytes, RandomSlices(bytes, 1 + i % 40, &random)) ? 1 : 0;
  }
  EXPECT_GT(num_accepted, kCases * 9 / 10) << "seed " << kSeed;
}

TYPED_TEST(EveryRequestTest, MutatedMessagesAreRefusedAsByProtobuf) {
  constexpr uint32_t kSeed = 77'000;
  constexpr int kCases = 40'000;
  int num_accepted = 0, num_refused = 0;
  for (int i = 0; i < kCases && !this->HasFailure(); ++i) {
    SCOPED_TRACE(absl::StrCat("seed ", kSeed + i));
    std::mt19937 random(kSeed + i);
    const std::string bytes = Mutated(RandomMessage(*TypeParam::descriptor(), 100, &random), &random);
    if (bytes.size() > kMaxRandomBytes) continue;
    (ExpectAsProtobuf<TypeParam>(bytes, RandomSlices(bytes, 1 + i % 20, &random)) ? num_accepted : num_refused) += 1;
  }
  EXPECT_GT(num_accepted, kCases / 20) << "seed " << kSeed;
  EXPECT_GT(num_refused, kCases / 20) << "seed " << kSeed;
}

TYPED_TEST(EveryRequestTest, EveryPrefixIsRefusedAsByProtobuf) {
  std::mt19937 random(3);
  for (int i = 0; i < 20; ++i) {
    const std::string bytes = RandomMessage(*TypeParam::descriptor(), kMaxRandomBytes / 2, &random);
    for (size_t size = 0; size <= std::min(bytes.size(), kMaxRandomBytes); ++size) {
      ExpectAsProtobuf<TypeParam>(bytes.substr(0, size), OneSlice(bytes.substr(0, size)));
    }
  }
}

TYPED_TEST(EveryRequestTest, RandomBytesHurtNobody) {
  std::mt19937 random(9);
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes(i % 64, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    ExpectAsProtobuf<TypeParam>(bytes, OneSlice(bytes));
  }
}

TYPED_TEST(EveryRequestTest, DepthIsBoundedAsInProtobuf) {
  for (const int depth : {1, 50, 99, 100, 101, 110}) {
    std::string bytes = VarintField(1000, 1);
    for (int i = 0; i < depth; ++i) bytes = GroupField(1000, bytes);
    TypeParam message;
    EXPECT_EQ(Parse(OneSlice(bytes), &message).ok(), depth <= 100) << depth;
    EXPECT_EQ(TypeParam().ParseFromString(bytes), depth <= 100) << depth;
  }
  ExpectRefused<TypeParam>(Repeated(Varint(1000 << 3 | 3), 2000), "101 deep, at most 100 are allowed");
}

TEST(MessageParserTest, DepthWithinMessagesCountsThemToo) {
  for (const int depth : {97, 98, 99}) {
    std::string bytes = VarintField(1000, 1);
    for (int i = 0; i < depth; ++i) bytes = GroupField(1000, bytes);
    bytes = DelimitedField(kFrame, DelimitedField(kFrameCloud, bytes));
    v1::InferStreamRequest message;
    EXPECT_EQ(Parse(OneSlice(bytes), &message).ok(), depth <= 98) << depth;
    EXPECT_EQ(v1::InferStreamRequest().ParseFromString(bytes), depth <= 98) << depth;
  }
}

// The parser's bound on memory relies on each value on the wire becoming at most one object. A packed field would
// become many.
TEST(MessageParserTest, RequestsHaveNoPackedFields) {
  const auto expect_none = [](const auto& self, const google::protobuf::Descriptor& type) -> void {
    for (int i = 0; i < type.field_count(); ++i) {
      EXPECT_FALSE(type.field(i)->is_packable()) << type.field(i)->full_name();
      if (type.field(i)->message_type() != nullptr) self(self, *type.field(i)->message_type());
    }
  };
  for (const auto* type :
       {v1::InferRequest::descriptor(), v1::InferStreamRequest::descriptor(), v1::TunePlanRequest::descriptor(),
        v1::LoadModelRequest::descriptor(), v1::UnloadModelRequest::descriptor(), v1::GetModelRequest::descriptor()}) {
    expect_none(expect_none, *type);
  }
}

// ---- a cloud's data

std::string RandomData(size_t size) {
  std::mt19937 random(5);
  std::string data(size, '\0');
  for (char& byte : data) byte = static_cast<char>(random());
  return data;
}

TEST(MessageParserTest, DataOfManySlicesArrivesWhole) {
  std::mt19937 random(1);
  v1::InferRequest request;
  request.set_model("net");
  request.mutable_cloud()->set_data(RandomData(6'000'001));
  request.mutable_cloud()->add_fields()->set_name("x");
  request.set_request_id("after the cloud");
  const std::string bytes = request.SerializeAsString();
  for (const size_t max_slice_bytes : {size_t{100}, size_t{16'384}, bytes.size()}) {
    v1::InferRequest message;
    const absl::Status status = Parse(RandomSlices(bytes, max_slice_bytes, &random), &message);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_TRUE(message.SerializeAsString() == bytes) << max_slice_bytes;
  }
}

// The message comes in slices that end anywhere: in a number, a length, a name or the data. The pieces of the data have
// any alignment.
TEST(MessageParserTest, DataOfOddSlicesArrivesWholeInPinnedMemory) {
  support::FakePinnedMemory memory;
  const auto pool = PinnedPool::Create({.source = memory.Source()});
  const auto allocate = [&](int64_t bytes) { return pool->Take(bytes, BufferLife::kRequest); };
  const std::string data = RandomData(200'003);
  support::MakeReady(*pool, static_cast<int64_t>(data.size()), 1);
  v1::InferStreamRequest request;
  request.mutable_frame()->set_frame_id(7);
  request.mutable_frame()->mutable_cloud()->set_num_points(11);
  request.mutable_frame()->mutable_cloud()->set_data(data);
  request.mutable_frame()->mutable_cloud()->set_frame_id("after the data");
  const std::string bytes = request.SerializeAsString();
  request.mutable_frame()->mutable_cloud()->clear_data();
  std::mt19937 random(8);
  for (const size_t max_slice_bytes : {1, 2, 3, 15, 64, 100, 257, 1000, 4097, 16'384, 100'000}) {
    SCOPED_TRACE(max_slice_bytes);
    v1::InferStreamRequest message;
    HostBuffer parsed;
    const absl::Status status =
        ParseStreamRequest(RandomSlices(bytes, max_slice_bytes, &random), allocate, &message, &parsed);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(message.SerializeAsString(), request.SerializeAsString());
    EXPECT_TRUE(parsed.is_pinned());
    EXPECT_TRUE(memory.Holds(parsed.data(), parsed.size()));
    EXPECT_TRUE(parsed.bytes() == data);
  }
  EXPECT_EQ(memory.num_allocations(), 1) << "each message's memory was the next one's";
}

TEST(MessageParserTest, DataThatIsNotTakenGivesItsMemoryBack) {
  support::FakePinnedMemory memory;
  const auto pool = PinnedPool::Create({.source = memory.Source()});
  int num_pinned = 0;
  const auto allocate = [&](int64_t bytes) {
    absl::StatusOr<HostBuffer> buffer = pool->Take(bytes, BufferLife::kRequest);
    num_pinned += buffer.ok() && buffer->is_pinned() ? 1 : 0;
    return buffer;
  };
  const std::string data = RandomData(100'000);
  support::MakeReady(*pool, static_cast<int64_t>(data.size()), 1);
  const std::string frame = DelimitedField(kFrame, DelimitedField(kFrameCloud, DelimitedField(kData, data)));
  const std::string config = DelimitedField(kConfig, DelimitedField(1, "net"));
  v1::InferStreamRequest message;
  HostBuffer parsed;
  ASSERT_TRUE(ParseStreamRequest(OneSlice(frame + frame + frame), allocate, &message, &parsed).ok());
  EXPECT_EQ(num_pinned, 3) << "one is given back before the next is taken";
  EXPECT_TRUE(parsed.bytes() == data);
  parsed = HostBuffer();
  const std::string part = DelimitedField(kPart, VarintField(kFrameId, 5));
  for (const std::string& later : {config, part}) {
    ASSERT_TRUE(ParseStreamRequest(OneSlice(frame + later), allocate, &message, &parsed).ok());
    EXPECT_EQ(parsed.size(), 0);
  }
  ASSERT_TRUE(ParseStreamRequest(OneSlice(config + frame + frame), allocate, &message, &parsed).ok());
  EXPECT_TRUE(parsed.bytes() == data);
  parsed = HostBuffer();
  EXPECT_FALSE(ParseStreamRequest(OneSlice(frame + "\x0f"), allocate, &message, &parsed).ok());
  EXPECT_EQ(parsed.size(), 0);
  EXPECT_FALSE(ParseStreamRequest(OneSlice(frame.substr(0, 99'999)), allocate, &message, &parsed).ok());
  EXPECT_TRUE(pool->Take(100'000, BufferLife::kRequest)->is_pinned());
}

TEST(MessageParserTest, AnAllocatorsErrorIsTheMessages) {
  const auto refuse = [](int64_t bytes) -> absl::StatusOr<HostBuffer> {
    return WithReason(absl::ResourceExhaustedError(absl::StrCat("no ", bytes)), error_reason::kOutOfMemory);
  };
  v1::InferRequest message;
  HostBuffer data = *HostBuffer::CopyOf("of an earlier message");
  const absl::Status status =
      ParseInferRequest(OneSlice(DelimitedField(kCloud, DelimitedField(kData, "12345"))), refuse, &message, &data);
  EXPECT_EQ(status.message(), "no 5");
  EXPECT_EQ(ReasonOf(status), error_reason::kOutOfMemory);
  EXPECT_EQ(message.ByteSizeLong(), 0u);
  EXPECT_EQ(data.size(), 0);
}

TEST(MessageParserTest, TheLastDataWins) {
  const std::string first = DelimitedField(kCloud, DelimitedField(kData, "first"));
  const std::string second = DelimitedField(kCloud, DelimitedField(kData, "2") + VarintField(2, 7));
  const std::string empty = DelimitedField(kCloud, DelimitedField(kData, ""));
  for (const std::string& bytes : {first + second, second + first, first + empty, empty + first, empty,
                                   first + DelimitedField(kCloud, "") + second + empty + second}) {
    EXPECT_TRUE(ExpectAsProtobuf<v1::InferRequest>(bytes, OneSlice(bytes)));
  }
}

TEST(MessageParserTest, TheLastOfConfigAndFrameWins) {
  const std::string config = DelimitedField(kConfig, DelimitedField(1, "net"));
  const std::string other = DelimitedField(kConfig, VarintField(2, 3));
  const std::string frame =
      DelimitedField(kFrame, VarintField(kFrameId, 5) + DelimitedField(kFrameCloud, DelimitedField(kData, "points")));
  const std::string id = DelimitedField(kFrame, VarintField(kFrameId, 6));
  const std::string empty = DelimitedField(kFrame, "");
  const std::string unknown = DelimitedField(15, "unknown"), number = VarintField(14, 300);
  for (const std::string& bytes :
       {config, frame, config + frame, frame + config, frame + config + empty, config + frame + other + config,
        frame + id, id + frame + empty, frame + config + id + frame, std::string(), unknown + config + number + frame,
        frame + unknown + id + number + config + unknown + other, config + number + id + unknown + config + number}) {
    EXPECT_TRUE(ExpectAsProtobuf<v1::InferStreamRequest>(bytes, OneSlice(bytes)));
  }
}

TEST(MessageParserTest, APreviousMessageIsGone) {
  v1::InferRequest message;
  message.mutable_cloud()->set_data("old");
  message.set_request_id("old");
  ASSERT_TRUE(Parse(OneSlice(DelimitedField(kModel, "new")), &message).ok());
  EXPECT_EQ(message.SerializeAsString(), DelimitedField(kModel, "new"));
  message.set_request_id("old");
  EXPECT_FALSE(Parse(OneSlice("\x0a"), &message).ok());
  EXPECT_EQ(message.ByteSizeLong(), 0u) << "a bad message leaves nothing";
}

// ---- what is refused

TEST(MessageParserTest, NamesWhatIsWrong) {
  ExpectRefused<v1::InferRequest>("\x08", "byte 1 of the message: a number is truncated");
  ExpectRefused<v1::InferRequest>(std::string("\x00\x00", 2), "byte 1 of the message: there is a field of number 0");
  ExpectRefused<v1::InferRequest>("\x1a\x05\x0a",
                                  "byte 2 of the message: voxserve.v1.InferRequest.cloud is truncated: "
                                  "it goes on for 5 bytes, and 1 are left");
  ExpectRefused<v1::InferRequest>("\x1a\x02\x0a\x05hello",
                                  "voxserve.v1.PointCloud.data is truncated: it goes on for 5 bytes, and 0 are left");
  ExpectRefused<v1::InferRequest>("\x11zz", "a value is truncated: it goes on for 6 bytes, and 0 are left");
  ExpectRefused<v1::InferRequest>("\x15zz", "a value is truncated: it goes on for 2 bytes, and 0 are left");
  ExpectRefused<v1::InferRequest>("\x0f", "field 1 has wire type 7");
  ExpectRefused<v1::InferRequest>("\x0c", "group 1 ends, which has not begun");
  ExpectRefused<v1::InferRequest>("\x0b\x14", "group 2 ends, which has not begun");
  ExpectRefused<v1::InferRequest>("\x0b", "a number is truncated");
  ExpectRefused<v1::InferRequest>(Repeated("\xff", 20), "byte 5 of the message: a number takes more than 5 bytes");
  ExpectRefused<v1::InferRequest>(VarintField(2, 0).substr(0, 1) + Repeated("\xff", 20),
                                  "a number takes more than 10 bytes");
  ExpectRefused<v1::InferRequest>("\x0a\xff\xff\xff\xff\x0f", "model is truncated: it goes on for 4294967295 bytes");
  ExpectRefused<v1::InferRequest>(DelimitedField(kModel, "caf\xe9"), "voxserve.v1.InferRequest.model is not UTF-8");
}

TEST(MessageParserTest, RefusesACallWithoutAMessage) {
  v1::InferRequest message;
  ExpectMalformed(Parse(grpc::ByteBuffer(), &message), "the call has no message");
  EXPECT_TRUE(Parse(OneSlice(""), &message).ok()) << "an empty message is one";
}

TEST(MessageParserTest, TextIsUtf8AsProtobufHasIt) {
  SetLibraryLog(DropLine);
  int num_text = 0;
  // Tests every first byte with every second byte, and the third and fourth bytes at the ends of their ranges.
  for (int lead = 0; lead < 256; ++lead) {
    for (int second = 0; second < 256; ++second) {
      for (const char* rest : {"", "\x80", "\xbf", "\x7f", "\xc0", "\x80\x80", "\xbf\xbf", "\x80z"}) {
        const std::string text =
            absl::StrCat(std::string(1, static_cast<char>(lead)), std::string(1, static_cast<char>(second)), rest);
        const std::string bytes = DelimitedField(kModel, text);
        if (ExpectAsProtobuf<v1::InferRequest>(bytes, OneSlice(bytes))) {
          ++num_text;
        } else {
          ExpectRefused<v1::InferRequest>(bytes, "is not UTF-8");  // protobuf's own check would write to stderr
        }
      }
    }
  }
  EXPECT_GT(num_text, 20'000);
}

int num_log_lines = 0;

TEST(MessageParserTest, NoClientWritesToTheLog) {
  SetLibraryLog([](LogLevel, const char*, std::string_view) { ++num_log_lines; });
  ExpectRefused<v1::InferRequest>(DelimitedField(kModel, "\xff"), "not UTF-8");
  ExpectRefused<v1::InferRequest>("\x0f", "wire type");
  EXPECT_EQ(num_log_lines, 0);
  v1::InferRequest().ParseFromString(DelimitedField(kModel, "\xff"));
  EXPECT_EQ(num_log_lines, 1) << "protobuf alone does";
  SetLibraryLog(DropLine);
}

// Tests a cloud at each limit, and one beyond it.
TEST(MessageParserTest, FieldsOfACloudAreBounded) {
  const std::string field = DelimitedField(kFields, DelimitedField(kName, "x"));
  v1::InferRequest message;
  const std::string most = DelimitedField(kCloud, Repeated(field, 256));
  ASSERT_TRUE(Parse(OneSlice(most), &message).ok());
  EXPECT_EQ(message.cloud().fields_size(), 256);
  const std::string text = "the message has 257 voxserve.v1.PointCloud.fields or more, at most 256 are allowed";
  ExpectRefused<v1::InferRequest>(DelimitedField(kCloud, Repeated(field, 257)), text);
  ExpectRefused<v1::InferRequest>(most + DelimitedField(kCloud, field), text);
}

TEST(MessageParserTest, ACloudOfManyFullFieldsIsWithinAllLimits) {
  v1::InferRequest request, message;
  request.set_model("net");
  for (int i = 0; i < MessageLimits::kMaxCloudFields; ++i) {
    v1::PointField& field = *request.mutable_cloud()->add_fields();
    field.set_name(std::string(200, 'n'));
    field.set_offset(100'000);
    field.set_type(v1::POINT_FIELD_TYPE_FLOAT32);
    field.set_count(300);
    field.set_scale(0.5);
    field.set_shift(2);
  }
  const absl::Status status = Parse(OneSlice(request.SerializeAsString()), &message);
  EXPECT_TRUE(status.ok()) << status;
}

TEST(MessageParserTest, TextIsBounded) {
  v1::InferRequest message;
  EXPECT_TRUE(Parse(OneSlice(DelimitedField(kModel, std::string(256, 'n'))), &message).ok());
  ExpectRefused<v1::InferRequest>(DelimitedField(kModel, std::string(257, 'n')),
                                  "voxserve.v1.InferRequest.model has 257 bytes, at most 256 are allowed");
  const std::string field = DelimitedField(kFields, DelimitedField(kName, std::string(1000, 'n')));
  ExpectRefused<v1::InferRequest>(DelimitedField(kCloud, field), "voxserve.v1.PointField.name has 1000 bytes");
}

TEST(MessageParserTest, ValuesAreBounded) {
  v1::InferRequest message;
  EXPECT_TRUE(Parse(OneSlice(Repeated(VarintField(1000, 1), 2048)), &message).ok());
  const std::string text = "the message has 2049 values or more, at most 2048 are allowed";
  ExpectRefused<v1::InferRequest>(Repeated(VarintField(1000, 1), 2049), text);
  ExpectRefused<v1::InferRequest>(Repeated(DelimitedField(kModel, ""), 2049), text);
  ExpectRefused<v1::InferRequest>(DelimitedField(kCloud, Repeated(DelimitedField(kData, ""), 2048)), text);
  ExpectRefused<v1::InferRequest>(GroupField(1000, Repeated(VarintField(1, 1), 2048)), text);
}

TEST(MessageParserTest, TheSkeletonIsBounded) {
  constexpr size_t kMost = MessageLimits::kMaxSkeletonBytes;
  const std::string most = DelimitedField(1000, std::string(kMost - 5, '\xff'));
  ASSERT_EQ(most.size(), kMost);
  v1::InferRequest message;
  EXPECT_TRUE(Parse(OneSlice(most), &message).ok());
  const std::string with_data = most + DelimitedField(kCloud, DelimitedField(kData, "points"));
  ExpectRefused<v1::InferRequest>(with_data, "65537 bytes or more beside its cloud's data, at most 65536 are allowed");
  const std::string data = DelimitedField(kCloud, DelimitedField(kData, std::string(kMost, 'd')));
  EXPECT_TRUE(Parse(OneSlice(data), &message).ok()) << "data does not count";
}

TEST(MessageParserTest, SmallMessagesHaveTheirOwnLimit) {
  v1::TunePlanRequest request, message;
  request.set_model("net");
  request.set_max_wait_seconds(0.5);
  const std::string bytes = request.SerializeAsString();
  const auto size = static_cast<int64_t>(bytes.size());
  ASSERT_TRUE(ParseMessage(OneSlice(bytes), size, &message).ok());
  EXPECT_EQ(message.SerializeAsString(), bytes);
  ExpectMalformed(ParseMessage(OneSlice(bytes), size - 1, &message), "has 14 bytes, at most 13 are allowed");
  EXPECT_EQ(message.ByteSizeLong(), 0u);
}

// ---- a malformed frame's id

FrameName Refused(const std::string& bytes) {
  v1::InferStreamRequest message;
  message.mutable_frame()->set_frame_id(99);  // the id of the previous frame
  ExpectMalformed(Parse(OneSlice(bytes), &message), "");
  EXPECT_EQ(message.request_case(), v1::InferStreamRequest::REQUEST_NOT_SET);
  return FrameNameOf(OneSlice(bytes));
}

TEST(FrameIdTest, IsReadBeforeAndAfterTheBadPart) {
  const std::string id = VarintField(kFrameId, 1'234'567'890'123);
  const std::string no_cloud = DelimitedField(kFrameCloud, "\x0f");
  const std::string large = DelimitedField(kFrameCloud, Repeated(DelimitedField(kFields, ""), 300));
  const std::string text = DelimitedField(kFrameCloud, DelimitedField(9, std::string(300, 'n')));
  const std::string data = DelimitedField(kFrameCloud, DelimitedField(kData, std::string(1000, 'd')));
  for (const std::string& frame : {id + no_cloud, no_cloud + id, id + large, large + id, text + id, data + text + id,
                                   VarintField(kFrameId, 3) + no_cloud + id, id + "\x0f"}) {
    const FrameName name = Refused(DelimitedField(kFrame, frame));
    EXPECT_EQ(name.kind, v1::InferStreamRequest::kFrame);
    EXPECT_EQ(name.frame_id, 1'234'567'890'123u);
  }
  EXPECT_EQ(Refused(DelimitedField(kFrame, id + data).substr(0, 100)).frame_id, 1'234'567'890'123u)
      << "cut off within the cloud";
}

TEST(FrameIdTest, IsNotThereWhereItCannotBeRead) {
  const std::string id = VarintField(kFrameId, 7);
  EXPECT_FALSE(Refused(DelimitedField(kFrame, Varint(kFrameCloud << 3 | 2) + Varint(1000) + id)).frame_id.has_value())
      << "the cloud seems to reach beyond the frame";
  EXPECT_FALSE(Refused(DelimitedField(kFrame, "\x0f" + id)).frame_id.has_value());
  EXPECT_FALSE(Refused("\x12").frame_id.has_value());
  EXPECT_EQ(Refused("\x12").kind, v1::InferStreamRequest::kFrame);
}

TEST(FrameIdTest, IsZeroInAFrameThatIsReadToItsEndWithoutOne) {
  const std::string bad = DelimitedField(kFrameCloud, "\x0f");
  EXPECT_EQ(Refused(DelimitedField(kFrame, bad)).frame_id, 0u);
  EXPECT_EQ(Refused(DelimitedField(kPart, bad)).frame_id, 0u);
  EXPECT_FALSE(Refused(DelimitedField(kFrame, bad).substr(0, 3)).frame_id.has_value()) << "cut off";
  EXPECT_EQ(FrameNameOf(OneSlice(DelimitedField(kPart, ""))).frame_id, 0u);
  EXPECT_FALSE(FrameNameOf(OneSlice(DelimitedField(kConfig, ""))).frame_id.has_value());
}

TEST(FrameIdTest, SaysWhatTheMessageIs) {
  EXPECT_EQ(Refused("\x0f").kind, v1::InferStreamRequest::REQUEST_NOT_SET);
  EXPECT_EQ(Refused(DelimitedField(kConfig, "\x0f")).kind, v1::InferStreamRequest::kConfig);
  const std::string frame = DelimitedField(kFrame, VarintField(kFrameId, 7));
  const std::string config = DelimitedField(kConfig, "");
  EXPECT_EQ(Refused(frame + config + "\x0f").kind, v1::InferStreamRequest::kConfig);
  EXPECT_FALSE(Refused(frame + config + "\x0f").frame_id.has_value());
  const std::string part = DelimitedField(kPart, VarintField(kFrameId, 8) + DelimitedField(kFrameCloud, "\x0f"));
  for (const std::string& earlier : {std::string(), frame, config}) {
    EXPECT_EQ(Refused(earlier + part).kind, v1::InferStreamRequest::kPart);
    EXPECT_EQ(Refused(earlier + part).frame_id, 8u);
  }
  EXPECT_EQ(Refused(part + frame + "\x0f").kind, v1::InferStreamRequest::kFrame);
  EXPECT_EQ(Refused(part + frame + "\x0f").frame_id, 7u);
  EXPECT_EQ(Refused(config + frame + "\x0f").frame_id, 7u);
}

// ---- what is sent

TEST(SerializeTest, WritesWhatAClientReads) {
  for (const size_t size : {size_t{0}, size_t{5}, size_t{3'000'000}}) {
    v1::InferResponse response;
    response.mutable_segmentation()->set_labels(std::string(size, 'l'));
    const absl::StatusOr<grpc::ByteBuffer> bytes = Serialize(response);
    ASSERT_TRUE(bytes.ok()) << bytes.status();
    std::vector<grpc::Slice> slices;
    ASSERT_TRUE(bytes->Dump(&slices).ok());
    std::string text;
    for (const grpc::Slice& slice : slices) text.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
    EXPECT_TRUE(text == response.SerializeAsString()) << size;
  }
  EXPECT_EQ(Serialize(v1::InferResponse())->Length(), 0u);
}

}  // namespace
}  // namespace voxserve::message_parser_test
