#include "client/cpp/io/label_file.h"

#include "gmock/gmock.h"
#include "tests/client/temporary_folder.h"

namespace voxserve::client::label_file_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(LabelFileTest, WritesNumpyOfOneAndTwoBytes) {
  TemporaryFolder folder;
  ASSERT_TRUE(WriteLabels(folder.path() + "/a.npy", {1, 255, 0}, 1).ok());
  const std::string narrow = folder.Read("a.npy");
  EXPECT_THAT(narrow, HasSubstr("'descr': '|u1'"));
  EXPECT_EQ(narrow.size(), 128u + 3);
  EXPECT_EQ(narrow.substr(128), std::string("\x01\xff\x00", 3));
  ASSERT_TRUE(WriteLabels(folder.path() + "/b.npy", {1, 300}, 2).ok());
  const std::string wide = folder.Read("b.npy");
  EXPECT_THAT(wide, HasSubstr("'descr': '<u2'"));
  EXPECT_EQ(wide.substr(128), std::string("\x01\x00\x2c\x01", 4));
}

TEST(LabelFileTest, WritesSemanticKitti) {
  TemporaryFolder folder;
  ASSERT_TRUE(WriteLabels(folder.path() + "/a.label", {40, 300}, 1).ok());
  EXPECT_EQ(folder.Read("a.label"), BytesOf<uint32_t>({40, 300}));
}

TEST(LabelFileTest, ReadsWhatItWrites) {
  TemporaryFolder folder;
  for (const char* name : {"/a.npy", "/a.label"}) {
    ASSERT_TRUE(WriteLabels(folder.path() + name, {7, 0, 65535}, 2).ok());
    EXPECT_THAT(*ReadLabels(folder.path() + name, 3), ElementsAre(7, 0, 65535)) << name;
  }
}

TEST(LabelFileTest, ReadsRawLabelsByTheirSize) {
  TemporaryFolder folder;
  EXPECT_THAT(*ReadLabels(folder.Write("a.u8", "\x05\xff"), 2), ElementsAre(5, 255));
  // The upper half of a SemanticKITTI label is the instance.
  EXPECT_THAT(*ReadLabels(folder.Write("b.bin", BytesOf<uint32_t>({0x00070028, 252})), 2), ElementsAre(40, 252));
  EXPECT_THAT(*ReadLabels(folder.Write("c.label", BytesOf<uint32_t>({0x00070028})), 1), ElementsAre(40));
  EXPECT_THAT(*ReadLabels(folder.Write("d.u8", ""), 0), ElementsAre());
}

TEST(LabelFileTest, NamesBothNumbersWhenTheyDisagree) {
  TemporaryFolder folder;
  const std::string path = folder.Write("a.u8", "abc");
  const auto labels = ReadLabels(path, 2);
  EXPECT_EQ(labels.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(labels.status().message()),
              testing::AllOf(HasSubstr(path), HasSubstr("3 bytes"), HasSubstr("2 labels")));
  EXPECT_EQ(ReadLabels(folder.path() + "/none.u8", 2).status().code(), absl::StatusCode::kNotFound);
}

TEST(LabelFileTest, RefusesFloatsAndUnknownExtensions) {
  TemporaryFolder folder;
  std::string floats = "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }";
  floats = std::string("\x93NUMPY\x01\x00", 8) + Bytes(static_cast<uint16_t>(floats.size())) + floats + Bytes(1.0f);
  EXPECT_THAT(std::string(ReadLabels(folder.Write("f.npy", floats), 1).status().message()), HasSubstr("integers"));
  EXPECT_THAT(std::string(WriteLabels(folder.path() + "/a.txt", {1}, 1).message()), HasSubstr(".npy or .label"));
  EXPECT_FALSE(WriteLabels(folder.path() + "/none/a.npy", {1}, 1).ok());
}

}  // namespace
}  // namespace voxserve::client::label_file_test
