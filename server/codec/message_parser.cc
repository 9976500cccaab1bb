#include "server/codec/message_parser.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/base/error_reason.h"
#include "engine/base/status_macros.h"
#include "engine/base/utf8.h"

namespace voxserve {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;
using google::protobuf::io::CodedOutputStream;

constexpr int kMaxVarintBytes = 10;  // a number has 64 bits, 7 in a byte
constexpr int kMaxTagBytes = 5;      // tags and lengths have 32 bits; protobuf refuses longer ones

absl::Status Malformed(const std::string& message) {
  return WithReason(absl::InvalidArgumentError(message), error_reason::kMalformed);
}

// Casts const away for gRPC's reader, which takes a non-const buffer but does not change it.
grpc::ByteBuffer* ReaderArgument(const grpc::ByteBuffer& bytes) { return const_cast<grpc::ByteBuffer*>(&bytes); }

// Returns true if the text is UTF-8. Protobuf checks this too, but prints each failure to stderr, which a client could
// flood.
bool IsUtf8(absl::string_view text) {
  while (!text.empty()) {
    const std::optional<Utf8Character> character = FirstUtf8Character(text);
    if (!character.has_value()) return false;
    text.remove_prefix(character->size);
  }
  return true;
}

void AppendVarint(uint64_t value, std::string* out) {
  for (; value >= 0x80; value >>= 7) out->push_back(static_cast<char>(value | 0x80));
  out->push_back(static_cast<char>(value));
}

// SkeletonReader reads the bytes of one message once. It separates the cloud's data (or a tensor's values) from all
// other bytes, which are the skeleton: a message that protobuf can parse.
class SkeletonReader {
 public:
  // Both arguments must outlive the SkeletonReader.
  SkeletonReader(const grpc::ByteBuffer& bytes, CloudAllocator allocate)
      : allocate_(allocate), reader_(ReaderArgument(bytes)), input_(&reader_), num_bytes_(bytes.Length()) {}

  // Appends to the skeleton all bytes of a message of this type but the data.
  absl::Status Gather(const Descriptor& type) {
    if (!reader_.status().ok()) return Malformed("the call has no message");
    if (num_bytes_ > std::numeric_limits<int>::max()) {
      return Malformed(absl::StrCat("the message has ", num_bytes_, " bytes, at most 2 GiB are possible"));
    }
    const CodedInputStream::Limit all = input_.PushLimit(static_cast<int>(num_bytes_));
    RETURN_IF_ERROR(GatherMessage(type, &skeleton_));
    input_.PopLimit(all);
    return absl::OkStatus();
  }

  const std::string& skeleton() const { return skeleton_; }
  // Returns the data of the message's cloud, or its tensor's values; empty if it has none.
  HostBuffer& data() { return data_; }
  TensorParts parts() const { return parts_; }
  // Returns the field of InferStreamRequest.request that the skeleton has, null if none.
  const FieldDescriptor* request() const { return request_; }

  static const FieldDescriptor* ConfigField() {
    static const FieldDescriptor* const field =
        v1::InferStreamRequest::descriptor()->FindFieldByNumber(v1::InferStreamRequest::kConfigFieldNumber);
    return field;
  }
  static const FieldDescriptor* FrameField() {
    static const FieldDescriptor* const field =
        v1::InferStreamRequest::descriptor()->FindFieldByNumber(v1::InferStreamRequest::kFrameFieldNumber);
    return field;
  }
  static const FieldDescriptor* PartField() {
    static const FieldDescriptor* const field =
        v1::InferStreamRequest::descriptor()->FindFieldByNumber(v1::InferStreamRequest::kPartFieldNumber);
    return field;
  }

 private:
  // Gathers a message's fields up to the current limit.
  absl::Status GatherMessage(const Descriptor& type, std::string* out) {
    while (input_.BytesUntilLimit() > 0) {
      ASSIGN_OR_RETURN(const uint32_t tag, ReadTag());
      RETURN_IF_ERROR(GatherValue(tag, &type, out));
    }
    return absl::OkStatus();
  }

  // Gathers one value. type: the message that contains the value; nullptr inside a group, since none of our messages
  // has groups.
  absl::Status GatherValue(uint32_t tag, const Descriptor* type, std::string* out) {
    if (++num_values_ > MessageLimits::kMaxValues) {
      return Malformed(absl::StrCat("the message has ", num_values_, " values or more, at most ",
                                    MessageLimits::kMaxValues, " are allowed"));
    }
    const int number = WireFormatLite::GetTagFieldNumber(tag);
    if (number == 0) return MalformedHere("there is a field of number 0");
    const auto wire_type = WireFormatLite::GetTagWireType(tag);
    if (wire_type == WireFormatLite::WIRETYPE_LENGTH_DELIMITED) {
      return GatherDelimited(tag, type == nullptr ? nullptr : type->FindFieldByNumber(number), out);
    }
    RETURN_IF_ERROR(GatherVarint(tag, out));
    switch (wire_type) {
      case WireFormatLite::WIRETYPE_VARINT: {
        ASSIGN_OR_RETURN(const uint64_t value, ReadVarint(kMaxVarintBytes));
        return GatherVarint(value, out);
      }
      case WireFormatLite::WIRETYPE_FIXED64:
        return GatherBytes(8, "a value", out);
      case WireFormatLite::WIRETYPE_FIXED32:
        return GatherBytes(4, "a value", out);
      case WireFormatLite::WIRETYPE_START_GROUP:
        return GatherGroup(number, out);
      case WireFormatLite::WIRETYPE_END_GROUP:
        return MalformedHere(absl::StrCat("group ", number, " ends, which has not begun"));
      default:
        return MalformedHere(absl::StrCat("field ", number, " has wire type ", static_cast<int>(wire_type)));
    }
  }

  absl::Status GatherGroup(int number, std::string* out) {
    RETURN_IF_ERROR(EnterLevel());
    for (;;) {
      ASSIGN_OR_RETURN(const uint32_t tag, ReadTag());
      if (tag == WireFormatLite::MakeTag(number, WireFormatLite::WIRETYPE_END_GROUP)) {
        --depth_;
        return GatherVarint(tag, out);
      }
      RETURN_IF_ERROR(GatherValue(tag, nullptr, out));
    }
  }

  // Gathers a string, bytes, a message or an unknown field. For an unknown field, `field` is nullptr or has another
  // wire type.
  absl::Status GatherDelimited(uint32_t tag, const FieldDescriptor* field, std::string* out) {
    const absl::string_view name =
        field == nullptr ? "a field that is not known" : absl::string_view(field->full_name());
    ASSIGN_OR_RETURN(const uint64_t length, ReadVarint(kMaxTagBytes));
    if (length > static_cast<uint64_t>(input_.BytesUntilLimit())) return Truncated(name, length);
    const auto num_bytes = static_cast<int>(length);
    if (IsData(field)) return TakeData(*field, num_bytes);

    const size_t begin = out->size();
    RETURN_IF_ERROR(GatherVarint(tag, out));
    if (field != nullptr && field->type() == FieldDescriptor::TYPE_MESSAGE) {
      RETURN_IF_ERROR(GatherSubmessage(*field, num_bytes, out));
      if (IsRequest(*field)) ReplaceRequest(field, begin, out);
      return absl::OkStatus();
    }
    const bool is_text = field != nullptr && field->type() == FieldDescriptor::TYPE_STRING;
    if (is_text && num_bytes > MessageLimits::kMaxTextBytes) {
      return Malformed(
          absl::StrCat(name, " has ", num_bytes, " bytes, at most ", MessageLimits::kMaxTextBytes, " are allowed"));
    }
    RETURN_IF_ERROR(GatherVarint(length, out));
    RETURN_IF_ERROR(GatherBytes(num_bytes, name, out));
    if (is_text && !IsUtf8(absl::string_view(*out).substr(out->size() - length))) {
      return MalformedHere(absl::StrCat(name, " is not UTF-8"));
    }
    return absl::OkStatus();
  }

  absl::Status GatherSubmessage(const FieldDescriptor& field, int num_bytes, std::string* out) {
    if (&field == CloudFieldsField()) {
      RETURN_IF_ERROR(CountSome(&num_cloud_fields_, MessageLimits::kMaxCloudFields, field.full_name()));
    }
    if (field.containing_type() == RawField()->containing_type() && !field.is_map()) {
      RETURN_IF_ERROR(CountSome(&num_tensors_, MessageLimits::kMaxRequestTensors, "inputs and outputs"));
    }
    if (IsRequest(field) && &field != request_) data_ = HostBuffer();  // of the alternative that it replaces
    RETURN_IF_ERROR(EnterLevel());
    const CodedInputStream::Limit outer = input_.PushLimit(num_bytes);
    std::string body;
    RETURN_IF_ERROR(GatherMessage(*field.message_type(), &body));
    input_.PopLimit(outer);
    --depth_;
    RETURN_IF_ERROR(GatherVarint(body.size(), out));
    out->append(body);
    return absl::OkStatus();
  }

  static bool IsRequest(const FieldDescriptor& field) {
    return field.containing_oneof() == ConfigField()->containing_oneof();
  }

  // Config, frame and part are alternatives of one oneof. Drops from the skeleton the fields that one replaces, so that
  // the skeleton has only one of them (see ParseSkeleton). begin: where the field begins in `out`.
  void ReplaceRequest(const FieldDescriptor* field, size_t begin, std::string* out) {
    if (request_ != field && !request_fields_.empty()) {
      // Moves each byte at most once, however often a message changes its mind.
      size_t kept = request_fields_.front().first;
      for (size_t i = 0; i < request_fields_.size(); ++i) {
        const size_t from = request_fields_[i].first + request_fields_[i].second;
        const size_t to = i + 1 < request_fields_.size() ? request_fields_[i + 1].first : out->size();
        std::copy(&(*out)[from], out->data() + to, &(*out)[kept]);
        kept += to - from;
      }
      begin -= out->size() - kept;
      out->resize(kept);
      request_fields_.clear();
    }
    request_ = field;
    request_fields_.emplace_back(begin, out->size() - begin);
  }

  // Makes the only copy of the points.
  absl::Status TakeData(const FieldDescriptor& field, int num_bytes) {
    parts_.num_raw += &field == RawField() ? 1 : 0;
    parts_.num_packed += &field == PackedField() ? 1 : 0;
    data_ = HostBuffer();  // only the last data counts; frees the earlier one first
    ASSIGN_OR_RETURN(data_, allocate_(num_bytes));
    int64_t begin = 0;
    RETURN_IF_ERROR(ForEachSlice(num_bytes, field.full_name(), [&](std::string_view slice) {
      data_.Write(begin, slice);
      begin += static_cast<int64_t>(slice.size());
    }));
    data_.FinishWrites();
    return absl::OkStatus();
  }

  absl::Status GatherBytes(int num_bytes, absl::string_view name, std::string* out) {
    RETURN_IF_ERROR(Count(num_bytes));
    return ForEachSlice(num_bytes, name, [out](std::string_view slice) { out->append(slice); });
  }

  absl::Status GatherVarint(uint64_t value, std::string* out) {
    RETURN_IF_ERROR(Count(static_cast<int64_t>(CodedOutputStream::VarintSize64(value))));
    AppendVarint(value, out);
    return absl::OkStatus();
  }

  // Counts bytes of the skeleton before they are gathered.
  absl::Status Count(int64_t num_bytes) {
    num_skeleton_bytes_ += num_bytes;
    if (num_skeleton_bytes_ <= MessageLimits::kMaxSkeletonBytes) return absl::OkStatus();
    return Malformed(absl::StrCat("the message has ", num_skeleton_bytes_,
                                  " bytes or more beside its cloud's data, at most ", MessageLimits::kMaxSkeletonBytes,
                                  " are allowed"));
  }

  // Counts one value of a sort that has its own limit (`what` names the sort).
  static absl::Status CountSome(int* count, int limit, absl::string_view what) {
    if (++*count <= limit) return absl::OkStatus();
    return Malformed(absl::StrCat("the message has ", *count, " ", what, " or more, at most ", limit, " are allowed"));
  }

  absl::Status EnterLevel() {
    if (++depth_ <= MessageLimits::kMaxDepth) return absl::OkStatus();
    return MalformedHere(absl::StrCat("messages or groups lie in each other ", depth_, " deep, at most ",
                                      MessageLimits::kMaxDepth, " are allowed"));
  }

  // Calls take(std::string_view) for each slice of the next bytes.
  template <typename Take>
  absl::Status ForEachSlice(int num_bytes, absl::string_view name, Take take) {
    while (num_bytes > 0) {
      const void* slice = nullptr;
      int size = 0;
      if (!input_.GetDirectBufferPointer(&slice, &size)) return Truncated(name, num_bytes);
      size = std::min(size, num_bytes);
      take(std::string_view(static_cast<const char*>(slice), static_cast<size_t>(size)));
      input_.Skip(size);
      num_bytes -= size;
    }
    return absl::OkStatus();
  }

  absl::StatusOr<uint32_t> ReadTag() {
    ASSIGN_OR_RETURN(const uint64_t tag, ReadVarint(kMaxTagBytes));
    return static_cast<uint32_t>(tag);  // protobuf ignores higher bits too
  }

  absl::StatusOr<uint64_t> ReadVarint(int max_bytes) {
    uint64_t value = 0;
    for (int i = 0; i < max_bytes; ++i) {
      uint8_t byte = 0;
      if (!input_.ReadRaw(&byte, 1)) return Truncated("a number", 1);
      value |= static_cast<uint64_t>(byte & 0x7F) << (7 * i);
      if (byte < 0x80) return value;
    }
    return MalformedHere(absl::StrCat("a number takes more than ", max_bytes, " bytes"));
  }

  absl::Status Truncated(absl::string_view name, uint64_t num_bytes) const {
    return MalformedHere(absl::StrCat(name, " is truncated: it goes on for ", num_bytes, " bytes, and ",
                                      input_.BytesUntilLimit(), " are left"));
  }

  absl::Status MalformedHere(const std::string& message) const {
    return Malformed(absl::StrCat("byte ", input_.CurrentPosition(), " of the message: ", message));
  }

  // The fields whose bytes are values of points.
  static bool IsData(const FieldDescriptor* field) {
    return field != nullptr && (field == DataField() || field == RawField() || field == PackedField());
  }
  static const FieldDescriptor* RawField() {
    using Request = inference::ModelInferRequest;
    static const FieldDescriptor* const field =
        Request::descriptor()->FindFieldByNumber(Request::kRawInputContentsFieldNumber);
    return field;
  }
  static const FieldDescriptor* PackedField() {
    using Contents = inference::InferTensorContents;
    static const FieldDescriptor* const field =
        Contents::descriptor()->FindFieldByNumber(Contents::kFp32ContentsFieldNumber);
    return field;
  }
  static const FieldDescriptor* DataField() {
    static const FieldDescriptor* const field =
        v1::PointCloud::descriptor()->FindFieldByNumber(v1::PointCloud::kDataFieldNumber);
    return field;
  }
  static const FieldDescriptor* CloudFieldsField() {
    static const FieldDescriptor* const field =
        v1::PointCloud::descriptor()->FindFieldByNumber(v1::PointCloud::kFieldsFieldNumber);
    return field;
  }

  const CloudAllocator allocate_;
  grpc::ProtoBufferReader reader_;
  CodedInputStream input_;
  const size_t num_bytes_;
  std::string skeleton_;
  HostBuffer data_;
  int64_t num_skeleton_bytes_ = 0;
  int num_values_ = 0;
  int num_cloud_fields_ = 0;
  int num_tensors_ = 0;
  TensorParts parts_;
  int depth_ = 0;
  const FieldDescriptor* request_ = nullptr;
  std::vector<std::pair<size_t, size_t>> request_fields_;  // where they begin in the skeleton, and their sizes
};

// Makes sure that the message has this alternative: a config, a frame or a part. Protobuf 3.21 sets a oneof's case
// before it allocates, so that after a failed allocation the message's destructor would delete a message that is not
// there. This allocates first.
void SetAlternative(const FieldDescriptor& field, v1::InferStreamRequest* message) {
  switch (field.number()) {
    case v1::InferStreamRequest::kConfigFieldNumber:
      if (!message->has_config()) message->set_allocated_config(std::make_unique<v1::StreamConfig>().release());
      return;
    case v1::InferStreamRequest::kFrameFieldNumber:
      if (!message->has_frame()) message->set_allocated_frame(std::make_unique<v1::StreamFrame>().release());
      return;
    default:
      if (!message->has_part()) message->set_allocated_part(std::make_unique<v1::FramePart>().release());
  }
}

bool ParseSkeleton(const SkeletonReader& reader, Message* message) {
  message->Clear();
  if (reader.request() != nullptr) SetAlternative(*reader.request(), static_cast<v1::InferStreamRequest*>(message));
  return message->MergeFromString(reader.skeleton());
}

absl::Status ParseWithin(const grpc::ByteBuffer& bytes, CloudAllocator allocate, Message* message, HostBuffer* data,
                         TensorParts* parts = nullptr) {
  absl::Status status;
  try {
    SkeletonReader walk(bytes, allocate);
    status = walk.Gather(*message->GetDescriptor());
    if (status.ok() && !ParseSkeleton(walk, message)) {
      status = Malformed(absl::StrCat("the bytes are no ", message->GetTypeName()));
    }
    *data = std::move(walk.data());
    if (parts != nullptr) *parts = walk.parts();
  } catch (const std::bad_alloc&) {
    status = OutOfMemoryError(absl::StrCat("no memory for a message of ", bytes.Length(), " bytes"));
  }
  if (status.ok()) return status;
  message->Clear();
  *data = HostBuffer();
  return status;
}

// Reads whether a message is a config, a frame or a part, and the frame's id. It looks only at the outermost fields and
// at the fields of frames and parts.
FrameName ReadFrameName(const grpc::ByteBuffer& bytes) {
  using Request = v1::InferStreamRequest;
  constexpr auto kDelimited = WireFormatLite::WIRETYPE_LENGTH_DELIMITED;
  static_assert(v1::StreamFrame::kFrameIdFieldNumber == static_cast<int>(v1::FramePart::kFrameIdFieldNumber));
  const uint32_t config_tag = WireFormatLite::MakeTag(Request::kConfigFieldNumber, kDelimited);
  const uint32_t frame_tag = WireFormatLite::MakeTag(Request::kFrameFieldNumber, kDelimited);
  const uint32_t part_tag = WireFormatLite::MakeTag(Request::kPartFieldNumber, kDelimited);
  const uint32_t id_tag =
      WireFormatLite::MakeTag(v1::StreamFrame::kFrameIdFieldNumber, WireFormatLite::WIRETYPE_VARINT);
  grpc::ProtoBufferReader reader(ReaderArgument(bytes));
  CodedInputStream input(&reader);
  CodedInputStream::Limit outer = 0;
  bool is_within = false;  // a frame or a part
  FrameName name;
  for (int i = 0; i < 2 * MessageLimits::kMaxValues; ++i) {  // each value, and each frame's end
    const uint32_t tag = input.ReadTag();
    const bool is_its_end = tag == 0 && is_within && input.BytesUntilLimit() == 0;
    if (is_its_end) {
      input.PopLimit(outer);
      is_within = false;
      if (!name.frame_id.has_value()) name.frame_id = 0;
    } else if (tag == 0) {
      return name;
    } else if (is_within && tag == id_tag) {
      uint64_t id = 0;
      if (!input.ReadVarint64(&id)) return name;
      name.frame_id = id;
    } else if (!is_within && (tag == frame_tag || tag == part_tag)) {
      uint32_t length = 0;
      const Request::RequestCase kind = tag == part_tag ? Request::kPart : Request::kFrame;
      if (kind != name.kind) name = {.kind = kind};  // protobuf merges two of one kind
      if (!input.ReadVarint32(&length)) return name;
      outer = input.PushLimit(static_cast<int>(length));
      is_within = true;
    } else {
      if (!is_within && tag == config_tag) name = {.kind = Request::kConfig};
      if (!WireFormatLite::SkipField(&input, tag)) return name;
    }
  }
  return name;
}

}  // namespace

absl::Status ParseInferRequest(const grpc::ByteBuffer& bytes, CloudAllocator allocate, v1::InferRequest* message,
                               HostBuffer* data) {
  return ParseWithin(bytes, allocate, message, data);
}

absl::Status ParseModelInferRequest(const grpc::ByteBuffer& bytes, CloudAllocator allocate,
                                    inference::ModelInferRequest* message, HostBuffer* data, TensorParts* parts) {
  return ParseWithin(bytes, allocate, message, data, parts);
}

absl::Status ParseStreamRequest(const grpc::ByteBuffer& bytes, CloudAllocator allocate, v1::InferStreamRequest* message,
                                HostBuffer* data) {
  return ParseWithin(bytes, allocate, message, data);
}

FrameName FrameNameOf(const v1::InferStreamRequest& message) {
  FrameName name = {.kind = message.request_case()};
  if (message.has_frame()) name.frame_id = message.frame().frame_id();
  if (message.has_part()) name.frame_id = message.part().frame_id();
  return name;
}

FrameName FrameNameOf(const grpc::ByteBuffer& bytes) {
  try {
    return ReadFrameName(bytes);
  } catch (const std::bad_alloc&) {
    return {};
  }
}

absl::Status ParseMessage(const grpc::ByteBuffer& bytes, int64_t max_bytes, Message* message) {
  const auto num_bytes = static_cast<int64_t>(bytes.Length());
  if (num_bytes > max_bytes) {
    message->Clear();
    return Malformed(absl::StrCat("the message has ", num_bytes, " bytes, at most ", max_bytes, " are allowed"));
  }
  HostBuffer data;
  return ParseWithin(bytes, HostBuffer::Create, message, &data);
}

absl::StatusOr<grpc::ByteBuffer> Serialize(const Message& message) {
  const size_t num_bytes = message.ByteSizeLong();
  grpc::ByteBuffer bytes;
  bool is_owned = false;
  const bool is_written = num_bytes <= static_cast<size_t>(std::numeric_limits<int>::max()) &&
                          grpc::SerializationTraits<Message>::Serialize(message, &bytes, &is_owned).ok();
  if (is_written) return bytes;
  return WithReason(absl::ResourceExhaustedError(absl::StrCat("a ", message.GetTypeName(), " of ", num_bytes,
                                                              " bytes cannot be written, at most 2 GiB can")),
                    error_reason::kResponseTooLarge);
}

}  // namespace voxserve
