#include "client/cpp/io/tensor_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "client/cpp/io/file.h"
#include "client/cpp/io/npy_header.h"
#include "tests/client/temporary_folder.h"

namespace voxserve::client::tensor_file_test {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;

Tensor Sites() {
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  const std::vector<int32_t> coordinates = {-1, 2, 3, 4, 5, -6};
  Tensor tensor{.name = "deep", .kind = v1::TENSOR_ROWS_SITES, .shape = {2, 3}, .unit = {2, 2, 0.5}};
  tensor.data.assign(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  tensor.coordinate_bytes.assign(reinterpret_cast<const char*>(coordinates.data()),
                                 coordinates.size() * sizeof(int32_t));
  return tensor;
}

TEST(TensorFileTest, WritesAFileForEachArray) {
  const TemporaryFolder folder;
  const Tensor half{.name = "vector",
                    .kind = v1::TENSOR_ROWS_SAMPLES,
                    .type = v1::ELEMENT_TYPE_FLOAT16,
                    .shape = {1, 2},
                    .data = "abcd"};
  const auto written = WriteTensors(folder.path() + "/out.npy", {Sites(), half});
  ASSERT_TRUE(written.ok()) << written.status();
  ASSERT_THAT(*written, ElementsAre(EndsWith("/out.deep.npy"), EndsWith("/out.deep.coordinates.npy"),
                                    EndsWith("/out.deep.unit.npy"), EndsWith("/out.vector.npy")));
  const std::string contents = *ReadFile((*written)[0]);
  const auto header = ReadNpyHeader(contents);
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_THAT(header->shape, ElementsAre(2, 3));
  EXPECT_EQ(contents.substr(header->data_offset), Sites().data);
  const std::string coordinates = *ReadFile((*written)[1]);
  EXPECT_EQ(coordinates.substr(ReadNpyHeader(coordinates)->data_offset), Sites().coordinate_bytes);
  EXPECT_THAT(*ReadFile((*written)[2]), HasSubstr("'<f8'"));
  const std::string vector = *ReadFile((*written)[3]);
  EXPECT_THAT(vector, HasSubstr("'<f2'"));
  EXPECT_THAT(vector, EndsWith("abcd"));
}

TEST(TensorFileTest, RefusesOtherFilesAndNamesThatLieElsewhere) {
  const TemporaryFolder folder;
  EXPECT_EQ(WriteTensors(folder.path() + "/out.npz", {}).status().code(), absl::StatusCode::kInvalidArgument);
  for (const char* name : {"a/b", "..\\b", "/"}) {
    Tensor tensor = Sites();
    tensor.name = name;
    const auto written = WriteTensors(folder.path() + "/out.npy", {tensor});
    EXPECT_THAT(std::string(written.status().message()), HasSubstr("is no name of a file"));
  }
}

TEST(TensorFileTest, WritesNothingWhereTwoTensorsShareAFile) {
  const TemporaryFolder folder;
  const Tensor vector{.name = "deep.unit", .kind = v1::TENSOR_ROWS_SAMPLES, .shape = {1, 1}, .data = "abcd"};
  const auto written = WriteTensors(folder.path() + "/out.npy", {Sites(), vector});
  EXPECT_EQ(written.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(written.status().message()), HasSubstr("out.deep.unit.npy would be written twice"));
  EXPECT_FALSE(ReadFile(folder.path() + "/out.deep.npy").ok());
}

TEST(TensorFileTest, AFileThatIsThereIsReplaced) {
  const TemporaryFolder folder;
  folder.Write("out.deep.npy", std::string(1000, 'x'));
  ASSERT_TRUE(WriteTensors(folder.path() + "/out.npy", {Sites()}).ok());
  const std::string contents = *ReadFile(folder.path() + "/out.deep.npy");
  EXPECT_EQ(contents.substr(ReadNpyHeader(contents)->data_offset), Sites().data);
}

}  // namespace
}  // namespace voxserve::client::tensor_file_test
