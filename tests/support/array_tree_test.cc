// Tests ArrayTree on files that NumPy wrote (testdata/, made by make_npz.py).
#include "tests/support/array_tree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/paths.h"

namespace voxserve::support::array_tree_test {
namespace {

using ::testing::ElementsAre;

class ArrayTreeTest : public ::testing::Test {
 protected:
  const ArrayTree file_ = ArrayTree::Read(SourceDir() + "/tests/support/testdata/tree.npz").value();
};

TEST_F(ArrayTreeTest, ValuesByTheirPath) {
  const ArrayTree one = file_.at("cases").items().at(1);
  EXPECT_EQ(one.at("id").AsString(), "second");
  EXPECT_TRUE(one.at("flag").AsBool());
  EXPECT_EQ(one.at("count").AsInt(), -3);
  EXPECT_THAT(one.at("shape").AsInts(), ElementsAre(4, 5));
  EXPECT_THAT(one.at("shape").AsFloats(), ElementsAre(4.0, 5.0));
  EXPECT_THAT(one.at("range").AsFloats(), ElementsAre(0.5, 2.0));
  EXPECT_THAT(one.at("expect").at("rows").tensor().values<float>(), ElementsAre(1.0f, 2.0f));
}

TEST_F(ArrayTreeTest, ItemsAreInOrder) {
  const std::vector<ArrayTree> cases = file_.at("cases").items();
  ASSERT_EQ(cases.size(), 11u);
  EXPECT_EQ(cases[2].at("count").AsInt(), 2);
  EXPECT_EQ(cases[10].at("count").AsInt(), 10);
  EXPECT_TRUE(cases[0].items().empty());
}

TEST_F(ArrayTreeTest, KeysAreWhole) {
  EXPECT_TRUE(file_.Has("cases"));
  EXPECT_FALSE(file_.Has("case"));
  EXPECT_FALSE(file_.Has("cases2"));
  EXPECT_TRUE(file_.at("cases").items()[1].Has("expect"));
  EXPECT_FALSE(file_.at("cases").items()[0].Has("expect"));
}

TEST_F(ArrayTreeTest, AskingForWhatIsNotThereEndsTheTest) {
  EXPECT_DEATH(file_.at("cases").at("11"), "there is no 'cases/11'");
  EXPECT_DEATH(file_.at("cases").tensor(), "'cases' is no array");
  EXPECT_DEATH(file_.at("cases").at("1").at("shape").AsString(), "the array is <i8, not |u1");
}

TEST(ArrayTreeFileTest, MissingFileIsNotFound) {
  EXPECT_EQ(ArrayTree::Read("/nowhere.npz").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace voxserve::support::array_tree_test
