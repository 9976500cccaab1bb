#pragma once

// The table of operators: one row for each case of model.proto's Node.op, with the number of its inputs, the kind of
// rows that it reads, and its check. NodeChecker looks every node up here; a test finds a case without a row.
//
// A check is a function on a NodeContext. The checks of operators that work row by row stand beside the table, the
// others in the file of their family (conv, pool, grid, ...).

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
  kAny,    // or its check decides
  kSites,  // a row a site
};

struct OperatorRow {
  model::v1::Node::OpCase op;
  InputCount inputs;
  FirstInput first_input;
  // Fills context.node, and reports what is wrong. It may trust the number of inputs and the first input's rows.
  void (*check)(NodeContext& context);
};

// The row of an operator; null for OP_NOT_SET.
const OperatorRow* FindOperator(model::v1::Node::OpCase op);

}  // namespace voxserve
