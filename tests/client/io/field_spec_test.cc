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

TEST(FieldSpecTest, ReadsNewNames) {
  const auto spec = ParseFieldSpec("x:f32, intensity=reflectivity*0.5+-1 ,ring=channel");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->point_step, 4u);
  ASSERT_EQ(spec->renames.size(), 2u);
  EXPECT_EQ(spec->renames[0].name, "intensity");
  EXPECT_EQ(spec->renames[0].source, "reflectivity");
  EXPECT_EQ(spec->renames[0].scale, 0.5);
  EXPECT_EQ(spec->renames[0].shift, -1);
  EXPECT_EQ(spec->renames[1].source, "channel");
  EXPECT_EQ(spec->renames[1].scale, std::nullopt);
  EXPECT_EQ(ParseFieldSpec("a=b")->point_step, 0u);
}

PointCloud Ouster() {
  const float points[] = {1, 2, 3, 40, 50, 60};
  return PointCloudFromFloats({"x", "y", "z", "intensity", "Reflectivity", "ambient"}, points, 1);
}

TEST(FieldSpecTest, FindsAFieldInAnotherCase) {
  PointCloud cloud = Ouster();
  ASSERT_TRUE(ApplySpecByName(*ParseFieldSpec("reflectivity:f32*0.5"), &cloud).ok());
  EXPECT_EQ(FieldValues(cloud, "Reflectivity")->front(), 25);
}

TEST(FieldSpecTest, RenamesFields) {
  PointCloud cloud = Ouster();
  ASSERT_TRUE(ApplyRenames(ParseFieldSpec("intensity=reflectivity*0.5")->renames, &cloud).ok());
  EXPECT_EQ(cloud.fields_size(), 5);
  EXPECT_EQ(FieldValues(cloud, "intensity")->front(), 25);
  EXPECT_EQ(FindField(cloud, "reflectivity"), nullptr);
  PointCloud swapped = Ouster();
  ASSERT_TRUE(ApplyRenames(ParseFieldSpec("intensity=ambient,ambient=intensity")->renames, &swapped).ok());
  EXPECT_EQ(FieldValues(swapped, "intensity")->front(), 60);
  EXPECT_EQ(FieldValues(swapped, "ambient")->front(), 40);
}

TEST(FieldSpecTest, RefusesAFieldThatTheCloudLacksWithThoseThatItHas) {
  PointCloud cloud = Ouster();
  const absl::Status status = ApplyRenames(ParseFieldSpec("intensity=signal")->renames, &cloud);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(status.message()),
            "--fields says intensity=signal, but the points have x, y, z, intensity, Reflectivity, ambient");
  EXPECT_THAT(std::string(ApplyRenames(ParseFieldSpec("a=X,b=x")->renames, &cloud).message()), HasSubstr("two names"));
}

TEST(FieldSpecTest, QuotesTheEntryThatIsWrong) {
  for (const auto& [text, complaint] :
       std::vector<std::pair<std::string, std::string>>{{"", "''"},
                                                        {"x:f32,,y:f32", "''"},
                                                        {"x", "'x'"},
                                                        {"=b", "lacks a name"},
                                                        {"a=", "lacks a name"},
                                                        {"a=-", "lacks a name"},
                                                        {"a=b:f32", "neither NAME:TYPE nor NEW=OLD"},
                                                        {"a:f32=b", "neither NAME:TYPE nor NEW=OLD"},
                                                        {"a=b=c", "neither NAME:TYPE nor NEW=OLD"},
                                                        {"a=b,a=c", "'a' occurs twice"},
                                                        {"a=c,b=c", "'c' gets two names"},
                                                        {"a=b*0", "scale"},
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
