#include "client/cpp/io/field_spec.h"

#include "gmock/gmock.h"

namespace voxserve::client::field_spec_test {
namespace {

using ::testing::HasSubstr;

TEST(FieldSpecTest, LaysFieldsOutOneAfterTheOther) {
  const auto spec = ParseFieldSpec("x:f32,y:f64,z:i16,a:u8,b:i8,c:u16,d:i32,e:u32,f:f16");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->point_step, 4 + 8 + 2 + 1 + 1 + 2 + 4 + 4 + 2);
  const std::vector<uint32_t> offsets = {0, 4, 12, 14, 15, 16, 18, 22, 26};
  ASSERT_EQ(spec->fields.size(), offsets.size());
  for (size_t i = 0; i < offsets.size(); ++i) EXPECT_EQ(spec->fields[i].offset(), offsets[i]) << i;
  EXPECT_EQ(spec->fields[1].type(), v1::POINT_FIELD_TYPE_FLOAT64);
  EXPECT_FALSE(spec->fields[0].has_scale());
}

TEST(FieldSpecTest, ReadsScaleAndShift) {
  const auto spec = ParseFieldSpec("a:u8*0.5+2,b:f32+-1.5,c:f32*1e+2,d:f32*2e+1+3e+0, e:f32*-4");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->fields[0].scale(), 0.5);
  EXPECT_EQ(spec->fields[0].shift(), 2);
  EXPECT_EQ(spec->fields[1].shift(), -1.5);
  EXPECT_EQ(spec->fields[2].scale(), 100);
  EXPECT_EQ(spec->fields[2].shift(), 0);
  EXPECT_EQ(spec->fields[3].scale(), 20);
  EXPECT_EQ(spec->fields[3].shift(), 3);
  EXPECT_EQ(spec->fields[4].scale(), -4);
}

TEST(FieldSpecTest, SkipsTheBytesOfADash) {
  const auto spec = ParseFieldSpec("-:f64,x:f32,-:u8,-:u16,y:f32");
  ASSERT_TRUE(spec.ok()) << spec.status();
  ASSERT_EQ(spec->fields.size(), 2u);
  EXPECT_EQ(spec->fields[0].offset(), 8u);
  EXPECT_EQ(spec->fields[1].offset(), 15u);
  EXPECT_EQ(spec->point_step, 19u);
}

TEST(FieldSpecTest, QuotesTheEntryThatIsWrong) {
  for (const auto& [text, complaint] :
       std::vector<std::pair<std::string, std::string>>{{"", "''"},
                                                        {"x:f32,,y:f32", "''"},
                                                        {"x", "'x'"},
                                                        {":f32", "':f32'"},
                                                        {"x:float", "type 'float'"},
                                                        {"x:", "type ''"},
                                                        {"x:f32,x:f32", "'x' occurs twice"},
                                                        {"x:f32*0", "scale"},
                                                        {"x:f32*abc", "scale"},
                                                        {"x:f32*inf", "scale"},
                                                        {"x:f32+nan", "shift"},
                                                        {"x:f32+", "shift"}}) {
    const auto spec = ParseFieldSpec(text);
    ASSERT_FALSE(spec.ok()) << text;
    EXPECT_EQ(spec.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(spec.status().message()), HasSubstr(complaint)) << text;
  }
}

TEST(FieldSpecTest, DescribesFieldsInItsOwnSyntax) {
  const std::string text = "x:f32,intensity:u8*0.5+1";
  EXPECT_EQ(Describe(ParseFieldSpec(text)->fields), text);
}

}  // namespace
}  // namespace voxserve::client::field_spec_test
