#pragma once

// Bytes of messages as clients send them, good and bad ones: for tests of the parser.

#include <google/protobuf/descriptor.h>
#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <random>
#include <string>

#include "voxserve/v1/inference.pb.h"

namespace voxserve {

// Fields of the messages, by number.
inline constexpr int kCloud = v1::InferRequest::kCloudFieldNumber;
inline constexpr int kModel = v1::InferRequest::kModelFieldNumber;
inline constexpr int kData = v1::PointCloud::kDataFieldNumber;
inline constexpr int kFields = v1::PointCloud::kFieldsFieldNumber;
inline constexpr int kName = v1::PointField::kNameFieldNumber;
inline constexpr int kConfig = v1::InferStreamRequest::kConfigFieldNumber;
inline constexpr int kFrame = v1::InferStreamRequest::kFrameFieldNumber;
inline constexpr int kFrameId = v1::StreamFrame::kFrameIdFieldNumber;
inline constexpr int kFrameCloud = v1::StreamFrame::kCloudFieldNumber;

// One varint; num_bytes: how many it takes at least, so that it may be longer than it need be.
std::string Varint(uint64_t value, int num_bytes = 1);
// One field with its tag.
std::string VarintField(int number, uint64_t value);
std::string DelimitedField(int number, const std::string& value);
std::string GroupField(int number, const std::string& body);

// The bytes `times` times.
std::string Repeated(const std::string& bytes, size_t times);

// The bytes in one slice.
grpc::ByteBuffer OneSlice(const std::string& bytes);
// The bytes in slices of random sizes up to max_slice_bytes, empty ones among them.
grpc::ByteBuffer RandomSlices(const std::string& bytes, size_t max_slice_bytes, std::mt19937* random);

// A random message of the type that protobuf takes, in about max_bytes: fields in any order and several times, fields
// that the type does not have, groups, fields of a wrong wire type, varints longer than they need be.
std::string RandomMessage(const google::protobuf::Descriptor& type, size_t max_bytes, std::mt19937* random);

// The bytes with one to four changes: bits flipped, bytes inserted, removed or copied, the end cut off.
std::string Mutated(std::string bytes, std::mt19937* random);

}  // namespace voxserve
