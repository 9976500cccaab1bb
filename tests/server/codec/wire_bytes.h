#pragma once

// Makes the bytes of valid and invalid protobuf messages, as clients may send them. The tests of the server's parser of
// requests use them.

#include <google/protobuf/descriptor.h>
#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <random>
#include <string>

#include "voxserve/v1/inference.pb.h"

namespace voxserve {

// The field numbers of the messages.
inline constexpr int kCloud = v1::InferRequest::kCloudFieldNumber;
inline constexpr int kModel = v1::InferRequest::kModelFieldNumber;
inline constexpr int kData = v1::PointCloud::kDataFieldNumber;
inline constexpr int kFields = v1::PointCloud::kFieldsFieldNumber;
inline constexpr int kName = v1::PointField::kNameFieldNumber;
inline constexpr int kConfig = v1::InferStreamRequest::kConfigFieldNumber;
inline constexpr int kFrame = v1::InferStreamRequest::kFrameFieldNumber;
inline constexpr int kPart = v1::InferStreamRequest::kPartFieldNumber;
inline constexpr int kFrameId = v1::StreamFrame::kFrameIdFieldNumber;
inline constexpr int kFrameCloud = v1::StreamFrame::kCloudFieldNumber;

// Returns one varint. It has at least num_bytes bytes, so that it may be longer than necessary.
std::string Varint(uint64_t value, int num_bytes = 1);
// Returns one field with its tag.
std::string VarintField(int number, uint64_t value);
std::string DelimitedField(int number, const std::string& value);
std::string GroupField(int number, const std::string& body);

// Returns the bytes repeated `times` times.
std::string Repeated(const std::string& bytes, size_t times);

// Returns the bytes as one slice.
grpc::ByteBuffer OneSlice(const std::string& bytes);
// Returns the bytes in slices of random sizes up to max_slice_bytes. Some slices are empty.
grpc::ByteBuffer RandomSlices(const std::string& bytes, size_t max_slice_bytes, std::mt19937* random);

// Returns a random message of about max_bytes bytes that protobuf parses as this type. It has fields in any order and
// several times, fields that the type does not have, groups, fields of a wrong wire type, and varints that are longer
// than necessary.
std::string RandomMessage(const google::protobuf::Descriptor& type, size_t max_bytes, std::mt19937* random);

// Returns the bytes with one to four changes: flips of bits, or bytes inserted, removed, copied or cut off at the end.
std::string Mutated(std::string bytes, std::mt19937* random);

}  // namespace voxserve
