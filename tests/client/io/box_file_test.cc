#include "client/cpp/io/box_file.h"

#include <nlohmann/json.hpp>

#include "client/cpp/io/npy_header.h"
#include "gmock/gmock.h"
#include "tests/client/temporary_folder.h"

namespace voxserve::client::box_file_test {
namespace {

using ::testing::HasSubstr;

const std::vector<Box> kBoxes = {{.class_id = 3,
                                  .class_name = "car, \"parked\"",
                                  .score = 0.9f,
                                  .x = 1.5f,
                                  .y = -20.25f,
                                  .z = 0.1f,
                                  .length = 4,
                                  .width = 2,
                                  .height = 1.5f,
                                  .yaw = -3.14159f,
                                  .velocity_x = 1e-7f,
                                  .velocity_y = -8},
                                 {.class_id = 0}};

TEST(BoxFileTest, CsvHasALinePerBoxAndQuotesNames) {
  TemporaryFolder folder;
  ASSERT_TRUE(WriteBoxes(folder.path() + "/a.csv", kBoxes).ok());
  EXPECT_EQ(folder.Read("a.csv"),
            "class_id,class_name,score,x,y,z,length,width,height,yaw,velocity_x,velocity_y\n"
            "3,\"car, \"\"parked\"\"\",0.9,1.5,-20.25,0.1,4,2,1.5,-3.14159,1e-07,-8\n"
            "0,,0,0,0,0,0,0,0,0,0,0\n");
}

TEST(BoxFileTest, JsonIsAnArrayOfObjects) {
  TemporaryFolder folder;
  ASSERT_TRUE(WriteBoxes(folder.path() + "/a.JSON", kBoxes).ok());
  const nlohmann::json json = nlohmann::json::parse(folder.Read("a.JSON"));
  ASSERT_EQ(json.size(), 2u);
  EXPECT_EQ(json[0]["class_id"], 3);
  EXPECT_EQ(json[0]["class_name"], "car, \"parked\"");
  EXPECT_EQ(json[0]["score"], 0.9) << "as people write it, not as a float32 in 17 digits";
  EXPECT_EQ(json[0]["y"], -20.25);
  EXPECT_EQ(json[0]["velocity_y"], -8.0);
  EXPECT_EQ(json[1].size(), 12u);
}

TEST(BoxFileTest, NpyIsStructured) {
  TemporaryFolder folder;
  ASSERT_TRUE(WriteBoxes(folder.path() + "/a.npy", kBoxes).ok());
  const std::string contents = folder.Read("a.npy");
  const auto header = ReadNpyHeader(contents);
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->num_items, 2u);
  EXPECT_EQ(header->item_bytes, 44u);
  std::vector<std::string> names;
  for (const NpyHeader::Field& field : header->fields) names.push_back(field.name);
  EXPECT_THAT(names, testing::ElementsAre("class_id", "score", "x", "y", "z", "length", "width", "height", "yaw",
                                          "velocity_x", "velocity_y"));
  EXPECT_EQ(contents.substr(header->data_offset, 12), BytesOf<uint32_t>({3}) + BytesOf<float>({0.9f, 1.5f}));
}

TEST(BoxFileTest, QueriesAreTheLastFieldWhereABoxHasOne) {
  TemporaryFolder folder;
  std::vector<Box> boxes = kBoxes;
  boxes[1].query = 70;
  for (const char* name : {"/q.csv", "/q.json", "/q.npy"}) ASSERT_TRUE(WriteBoxes(folder.path() + name, boxes).ok());
  EXPECT_EQ(folder.Read("q.csv"),
            "class_id,class_name,score,x,y,z,length,width,height,yaw,velocity_x,velocity_y,query\n"
            "3,\"car, \"\"parked\"\"\",0.9,1.5,-20.25,0.1,4,2,1.5,-3.14159,1e-07,-8,-1\n"
            "0,,0,0,0,0,0,0,0,0,0,0,70\n");
  const nlohmann::json json = nlohmann::json::parse(folder.Read("q.json"));
  EXPECT_EQ(json[0]["query"], -1);
  EXPECT_EQ(json[1]["query"], 70);
  const std::string contents = folder.Read("q.npy");
  const auto header = ReadNpyHeader(contents);
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->item_bytes, 48u);
  EXPECT_EQ(header->fields.back().name, "query");
  EXPECT_EQ(contents.substr(contents.size() - 4), BytesOf<int32_t>({70}));
}

TEST(BoxFileTest, WritesNoBoxesToo) {
  TemporaryFolder folder;
  for (const char* name : {"/a.npy", "/a.csv", "/a.json"}) EXPECT_TRUE(WriteBoxes(folder.path() + name, {}).ok());
  EXPECT_EQ(folder.Read("a.json"), "[]\n");
  EXPECT_EQ(ReadNpyHeader(folder.Read("a.npy"))->num_items, 0u);
}

TEST(BoxFileTest, KnowsItsExtensionsAlone) {
  EXPECT_TRUE(IsBoxFile("a.Json"));
  EXPECT_FALSE(IsBoxFile("a.label"));
  const absl::Status status = WriteBoxes("/tmp/a.txt", {});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(".json, .csv or .npy"));
  EXPECT_FALSE(WriteBoxes("/no/such/folder/a.csv", {}).ok());
}

}  // namespace
}  // namespace voxserve::client::box_file_test
