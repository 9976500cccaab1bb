// Tests the memory that the functions of message_parser.h take, and how they behave when allocations fail. The
// operators new of this file, which the whole program uses, count the allocations of a thread and can make them fail.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <new>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/error_reason.h"
#include "server/codec/message_parser.h"
#include "tests/server/codec/wire_bytes.h"

namespace {

struct Heap {
  int64_t live_bytes = 0;  // allocated since the counting began, and not yet freed
  int64_t peak_bytes = 0;
  int64_t num_large = 0;  // allocations of at least large_bytes
  // The number of allocations that succeed before one fails. If negative, none fails.
  int64_t allocations_left = 0;
  size_t large_bytes = 0;
  size_t max_bytes = 0;  // a larger allocation fails
};

thread_local Heap* heap = nullptr;  // if null, nothing is counted

bool Fails(size_t size) {
  if (heap == nullptr) return false;
  if (size > heap->max_bytes) return true;
  return heap->allocations_left >= 0 && heap->allocations_left-- == 0;
}

}  // namespace

void* operator new(size_t size) {
  void* const block = Fails(size) ? nullptr : std::malloc(std::max<size_t>(size, 1));
  if (block == nullptr) throw std::bad_alloc();
  if (heap != nullptr) {
    heap->live_bytes += static_cast<int64_t>(malloc_usable_size(block));
    heap->peak_bytes = std::max(heap->peak_bytes, heap->live_bytes);
    if (size >= heap->large_bytes) ++heap->num_large;
  }
  return block;
}

void operator delete(void* block) noexcept {
  if (heap != nullptr && block != nullptr) heap->live_bytes -= static_cast<int64_t>(malloc_usable_size(block));
  std::free(block);
}

void operator delete(void* block, size_t /*size*/) noexcept { operator delete(block); }

// The standard library's operators of arrays call the functions above. Those of the sanitizers' libraries do not.
void* operator new[](size_t size) { return operator new(size); }

void* operator new[](size_t size, const std::nothrow_t& /*tag*/) noexcept {
  try {
    return operator new(size);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

void operator delete[](void* block) noexcept { operator delete(block); }

void operator delete[](void* block, size_t /*size*/) noexcept { operator delete(block); }

namespace voxserve {
namespace {

using testing::HasSubstr;

// Counts allocations while `parse` runs.
template <typename Parse>
Heap Counted(Heap counted, const Parse& parse) {
  // Protobuf creates the descriptors of its messages at their first use. These calls keep them out of the count.
  v1::InferRequest::descriptor();
  v1::PointCloud::descriptor();
  inference::ModelInferRequest::descriptor();
  heap = &counted;
  parse();
  heap = nullptr;
  return counted;
}

constexpr Heap kUnlimited = {.allocations_left = -1, .large_bytes = size_t{1} << 20, .max_bytes = ~size_t{0}};

struct Case {
  std::string name;
  std::string bytes;
};

// Returns messages of 60 MiB, each with values that are small on the wire and large in memory.
std::vector<Case> Floods() {
  constexpr size_t kBytes = size_t{60} << 20;
  const auto filled = [](const std::string& value) { return Repeated(value, kBytes / value.size()); };
  return {{"empty fields", DelimitedField(kCloud, filled(DelimitedField(kFields, "")))},
          {"clouds with an empty field", filled(DelimitedField(kCloud, DelimitedField(kFields, "")))},
          {"empty clouds", filled(DelimitedField(kCloud, ""))},
          {"empty data", DelimitedField(kCloud, filled(DelimitedField(kData, "")))},
          {"unknown numbers", filled(VarintField(15, 1))},
          {"unknown bytes", filled(DelimitedField(15, ""))},
          {"unknown groups", filled(GroupField(15, ""))},
          {"groups in groups", filled(Varint(15 << 3 | 3))},
          {"unknown numbers in a field", DelimitedField(kCloud, DelimitedField(kFields, filled(VarintField(15, 1))))},
          {"one unknown field", DelimitedField(15, std::string(kBytes, 'u'))},
          {"one name", DelimitedField(kCloud, DelimitedField(kFields, DelimitedField(kName, filled("n"))))},
          {"names", filled(DelimitedField(kModel, std::string(200, 'm')))}};
}

TEST(ParserMemoryTest, AFloodOfSmallValuesCostsNoMoreThanTheBound) {
  for (const Case& flood : Floods()) {
    SCOPED_TRACE(flood.name);
    const grpc::ByteBuffer bytes = OneSlice(flood.bytes);
    v1::InferRequest message;
    HostBuffer data;
    absl::Status status;
    const Heap heap =
        Counted(kUnlimited, [&] { status = ParseInferRequest(bytes, HostBuffer::Create, &message, &data); });
    EXPECT_EQ(ReasonOf(status), error_reason::kMalformed) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("allowed"));
    EXPECT_LE(heap.peak_bytes, 256 << 10);
    EXPECT_LE(heap.live_bytes, 4 << 10) << "no more than the error";
    RecordProperty(absl::StrCat("peak bytes of ", flood.name), absl::StrCat(heap.peak_bytes));
  }
}

TEST(ParserMemoryTest, NorDoesAFloodOfTheOpenInferenceProtocol) {
  using Request = inference::ModelInferRequest;
  constexpr size_t kBytes = size_t{60} << 20;
  const auto filled = [](const std::string& value) { return Repeated(value, kBytes / value.size()); };
  const std::string contents = DelimitedField(Request::InferInputTensor::kContentsFieldNumber,
                                              Repeated(std::string("\x35\x00\x00\x80\x3F", 5), 2000));
  inference::ModelInferRequest parameters;
  for (int i = 0; i < 10'000; ++i) (*parameters.mutable_parameters())[absl::StrCat(i)].set_bool_param(true);
  const std::vector<Case> floods = {{"inputs", filled(DelimitedField(Request::kInputsFieldNumber, ""))},
                                    {"outputs", filled(DelimitedField(Request::kOutputsFieldNumber, ""))},
                                    {"raw contents", filled(DelimitedField(Request::kRawInputContentsFieldNumber, ""))},
                                    {"parameters", parameters.SerializeAsString()},
                                    {"unpacked floats", filled(DelimitedField(Request::kInputsFieldNumber, contents))}};
  for (const Case& flood : floods) {
    SCOPED_TRACE(flood.name);
    const grpc::ByteBuffer bytes = OneSlice(flood.bytes);
    Request message;
    HostBuffer data;
    TensorParts parts;
    absl::Status status;
    const Heap heap = Counted(
        kUnlimited, [&] { status = ParseModelInferRequest(bytes, HostBuffer::Create, &message, &data, &parts); });
    EXPECT_EQ(ReasonOf(status), error_reason::kMalformed) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("allowed"));
    EXPECT_LE(heap.peak_bytes, 256 << 10);
    EXPECT_LE(heap.live_bytes, 4 << 10) << "no more than the error";
  }
}

TEST(ParserMemoryTest, ARequestOfTheOpenInferenceProtocolAtTheLimitsStaysInTheBound) {
  using Request = inference::ModelInferRequest;
  constexpr int kValues = MessageLimits::kMaxValues;
  constexpr int kTensors = MessageLimits::kMaxRequestTensors;
  constexpr int kInputs = Request::kInputsFieldNumber;
  Request parameters;
  for (int i = 0; i < 400; ++i) (*parameters.mutable_parameters())[absl::StrCat(i)].set_bool_param(true);
  const std::string contents = DelimitedField(Request::InferInputTensor::kContentsFieldNumber, "");
  const std::vector<Case> cases = {
      {"inputs", Repeated(DelimitedField(kInputs, ""), kTensors)},
      {"inputs with contents", Repeated(DelimitedField(kInputs, contents), kTensors)},
      {"outputs", Repeated(DelimitedField(Request::kOutputsFieldNumber, ""), kTensors)},
      {"parameters", parameters.SerializeAsString()},
      {"raw contents", Repeated(DelimitedField(Request::kRawInputContentsFieldNumber, ""), kValues)}};
  for (const Case& largest : cases) {
    SCOPED_TRACE(largest.name);
    const grpc::ByteBuffer bytes = OneSlice(largest.bytes);
    Request message;
    HostBuffer data;
    TensorParts parts;
    absl::Status status;
    const Heap heap = Counted(
        kUnlimited, [&] { status = ParseModelInferRequest(bytes, HostBuffer::Create, &message, &data, &parts); });
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_LE(heap.peak_bytes, MessageLimits::kMaxBytesBesideData);
  }
}

// Returns messages at the limits, with the values that take the most memory.
std::vector<Case> LargestSkeletons() {
  constexpr int kValues = MessageLimits::kMaxValues;
  const auto cloud = [](const std::string& body) { return DelimitedField(kCloud, body); };
  const std::string long_name = DelimitedField(kName, std::string(200, 'n'));
  std::vector<Case> cases = {
      {"nothing", ""},
      {"a cloud", cloud("")},
      {"a field", cloud(DelimitedField(kFields, ""))},
      {"an unknown number", VarintField(15, 1)},
      {"a small request", DelimitedField(kModel, "a model of this name") + cloud(DelimitedField(kData, "data"))},
      {"fields", cloud(Repeated(DelimitedField(kFields, ""), 256))},
      {"one unknown field", DelimitedField(15, std::string(65'000, 'u'))},
      {"named fields", cloud(Repeated(DelimitedField(kFields, long_name), 256))},
      {"unknown numbers", Repeated(VarintField(15, 1), kValues)},
      {"unknown bytes", Repeated(DelimitedField(15, "123456789012345678901234"), kValues)},
      {"empty unknown bytes", Repeated(DelimitedField(15, ""), kValues)},
      {"unknown groups", Repeated(GroupField(15, ""), kValues)},
      {"unknown groups of numbers", Repeated(GroupField(15, VarintField(1, 1)), kValues / 2)}};
  std::string nested = VarintField(15, 1);
  for (int i = 0; i < 90; ++i) nested = GroupField(15, nested);
  cases.push_back({"groups in groups", Repeated(nested, kValues / 91)});
  const std::string unknown = Repeated(VarintField(15, 1), 5);
  cases.push_back(
      {"fields with unknown numbers",
       cloud(Repeated(DelimitedField(kFields, DelimitedField(kName, "a name on the heap") + unknown), 256))});
  cases.push_back({"fields with unknown groups",
                   cloud(Repeated(DelimitedField(kFields, Repeated(GroupField(15, VarintField(1, 1)), 3)), 256))});
  return cases;
}

TEST(ParserMemoryTest, AMessageTakesNoMoreThanItsDataAndABound) {
  for (const size_t data_bytes : {size_t{0}, size_t{1000}, size_t{5'000'000}}) {
    for (const Case& largest : LargestSkeletons()) {
      SCOPED_TRACE(absl::StrCat(largest.name, " and ", data_bytes, " bytes of data"));
      const bool is_full = largest.name.find("unknown") != std::string::npos;
      if (data_bytes > 0 && is_full) continue;
      const std::string cloud = DelimitedField(kCloud, DelimitedField(kData, std::string(data_bytes, 'd')));
      const std::string wire = data_bytes > 0 ? largest.bytes + cloud : largest.bytes;
      std::mt19937 random(2);
      const grpc::ByteBuffer bytes = RandomSlices(wire, 100'000, &random);
      absl::Status status;
      v1::InferRequest message;
      HostBuffer data;
      const Heap heap =
          Counted(kUnlimited, [&] { status = ParseInferRequest(bytes, HostBuffer::Create, &message, &data); });
      ASSERT_TRUE(status.ok()) << status;
      const int64_t bound = static_cast<int64_t>(data_bytes) + MessageLimits::kMaxBytesBesideData;
      EXPECT_LE(heap.peak_bytes, bound);
      EXPECT_LE(static_cast<int64_t>(message.SpaceUsedLong()) + data.size(), bound);
      RecordProperty(absl::StrCat(largest.name, ", ", data_bytes, " bytes of data"), absl::StrCat(heap.peak_bytes));
    }
  }
}

TEST(ParserMemoryTest, DataIsCopiedOnce) {
  v1::InferStreamRequest request;
  request.mutable_frame()->set_frame_id(3);
  request.mutable_frame()->mutable_cloud()->set_data(std::string(5'000'000, 'd'));
  std::mt19937 random(4);
  const grpc::ByteBuffer bytes = RandomSlices(request.SerializeAsString(), 16'384, &random);
  v1::InferStreamRequest message;
  HostBuffer data;
  absl::Status status;
  const Heap heap =
      Counted(kUnlimited, [&] { status = ParseStreamRequest(bytes, HostBuffer::Create, &message, &data); });
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(heap.num_large, 1) << "the place where it stays";
  EXPECT_LT(heap.peak_bytes, 5'010'000);
}

TEST(ParserMemoryTest, DataThatComesAgainIsHeldOnce) {
  const std::string cloud = DelimitedField(kCloud, DelimitedField(kData, std::string(5'000'000, 'd')));
  const grpc::ByteBuffer bytes = OneSlice(cloud + cloud + cloud);
  v1::InferRequest message;
  HostBuffer data;
  absl::Status status;
  const Heap heap =
      Counted(kUnlimited, [&] { status = ParseInferRequest(bytes, HostBuffer::Create, &message, &data); });
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_LT(heap.peak_bytes, 5'010'000);
}

TEST(ParserMemoryTest, DataWithoutMemoryIsAnError) {
  v1::InferStreamRequest request, message;
  request.mutable_frame()->set_frame_id(3);
  request.mutable_frame()->mutable_cloud()->set_data(std::string(5'000'000, 'd'));
  const grpc::ByteBuffer bytes = OneSlice(request.SerializeAsString());
  Heap limited = kUnlimited;
  limited.max_bytes = size_t{1} << 20;
  HostBuffer data;
  absl::Status status;
  Counted(limited, [&] { status = ParseStreamRequest(bytes, HostBuffer::Create, &message, &data); });
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_EQ(ReasonOf(status), error_reason::kOutOfMemory);
  EXPECT_EQ(message.ByteSizeLong(), 0u);
  FrameName name;
  Counted(limited, [&] { name = FrameNameOf(bytes); });
  EXPECT_EQ(name.frame_id, 3u) << "which the answer needs";
  const std::string cloud = DelimitedField(kCloud, DelimitedField(kData, std::string(5'000'000, 'd')));
  v1::InferRequest infer;
  const grpc::ByteBuffer infer_bytes = OneSlice(cloud);
  Counted(limited, [&] { status = ParseInferRequest(infer_bytes, HostBuffer::Create, &infer, &data); });
  EXPECT_EQ(ReasonOf(status), error_reason::kOutOfMemory);
  EXPECT_EQ(infer.ByteSizeLong(), 0u);
}

// Fails each allocation in turn. The messages have no PointField and no group: protobuf 3.21 leaks such an object if
// the list that should hold it cannot grow. A config and another frame come first: protobuf would allocate the last
// frame after it has said that there is one, and delete it at the end.
TEST(ParserMemoryTest, NoFailedAllocationLeavesAnException) {
  const std::string text(100, 't');
  const std::string cloud =
      DelimitedField(9, text) + DelimitedField(8, VarintField(1, 1)) + DelimitedField(kData, text);
  const std::string frame =
      DelimitedField(kFrame, VarintField(kFrameId, 3) + VarintField(15, 1) + DelimitedField(kFrameCloud, cloud));
  const std::string part =
      DelimitedField(kPart, VarintField(kFrameId, 3) + VarintField(5, 1) + DelimitedField(kFrameCloud, cloud));
  const std::string wire = frame + DelimitedField(kConfig, DelimitedField(1, text)) + part + frame;
  const grpc::ByteBuffer bytes = OneSlice(wire);
  {
    // Protobuf looks up the types of fields at their first use, once. ThreadSanitizer's std::call_once never returns
    // after an exception in it.
    v1::InferStreamRequest message;
    HostBuffer data;
    ASSERT_TRUE(ParseStreamRequest(bytes, HostBuffer::Create, &message, &data).ok());
  }
  int num_failed = 0;
  for (int i = 0; i < 1000; ++i) {
    Heap failing = kUnlimited;
    failing.allocations_left = i;
    v1::InferStreamRequest message;
    HostBuffer data;
    absl::Status status;
    const Heap heap =
        Counted(failing, [&] { status = ParseStreamRequest(bytes, HostBuffer::Create, &message, &data); });
    const bool was_reached = heap.allocations_left < 0;
    EXPECT_EQ(status.ok(), !was_reached) << i << ": " << status;
    if (!was_reached) break;
    ++num_failed;
    EXPECT_EQ(ReasonOf(status), error_reason::kOutOfMemory) << i;
  }
  EXPECT_GT(num_failed, 10);
  EXPECT_LT(num_failed, 1000);
}

}  // namespace
}  // namespace voxserve
