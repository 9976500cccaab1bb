// Tests that the table of operators has one row for each operator of the file format.

#include "engine/model/checks/operator_table.h"

#include <gtest/gtest.h>

namespace voxserve::operator_table_test {
namespace {

using model::v1::Node;

TEST(OperatorTableTest, EveryOperatorOfTheFormatHasItsRow) {
  const google::protobuf::OneofDescriptor* const operators = Node::descriptor()->FindOneofByName("op");
  ASSERT_NE(operators, nullptr);
  ASSERT_GT(operators->field_count(), 0);
  for (int i = 0; i < operators->field_count(); ++i) {
    const auto op = static_cast<Node::OpCase>(operators->field(i)->number());
    const OperatorRow* const row = FindOperator(op);
    ASSERT_NE(row, nullptr) << operators->field(i)->name();
    EXPECT_EQ(row->op, op);
    EXPECT_LE(row->inputs.least, row->inputs.most) << operators->field(i)->name();
    EXPECT_NE(row->check, nullptr) << operators->field(i)->name();
  }
}

TEST(OperatorTableTest, ANodeWithoutAnOperatorHasNoRow) { EXPECT_EQ(FindOperator(Node::OP_NOT_SET), nullptr); }

}  // namespace
}  // namespace voxserve::operator_table_test
