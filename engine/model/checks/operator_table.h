#pragma once

// This is the table of operators. It has one row for each case of model.proto's Node.op: the number of inputs, the kind
// of rows that the operator reads, and its check. NodeChecker looks up every node here; a test finds a case without a
// row.
//
// A check is a function on a NodeContext. Checks of operators that work row by row are in operator_table.cc; the others
// are in the file of their family (conv, pool, grid, ...).

#include <cstddef>
#include <limits>

#include "engine/model/checks/node_context.h"
#include "voxserve/model/v1/model.pb.h"

namespace voxserve {

inline constexpr size_t kAnyNumber = std::numeric_limits<size_t>::max();

struct InputCount {
  size_t least;
  size_t most;  // kAnyNumber: no limit
};

// The rows that an operator's first input may have.
enum class FirstInput {
  kAny,    // any rows, or the check decides
  kSites,  // one row per site
};

struct OperatorRow {
  model::v1::Node::OpCase op;
  InputCount inputs;
  FirstInput first_input;
  // Fills context.node and reports problems. The number of inputs and the first input's rows have been checked before.
  void (*check)(NodeContext& context);
};

// Returns the row of an operator; null for OP_NOT_SET.
const OperatorRow* FindOperator(model::v1::Node::OpCase op);

}  // namespace voxserve
