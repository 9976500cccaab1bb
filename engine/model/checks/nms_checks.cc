#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/quoted.h"
#include "engine/model/checks/checks.h"
#include "kernels/boxes/rotated_nms.h"

namespace voxserve {
namespace {

// Reads the limits of an nms, or of one of its classes. what: what messages call the latter. Returns false and reports
// problems if they are none.
template <typename Limits>
bool ReadNmsLimits(const Limits& proto, const std::string& what, const ProblemsAt& at, kernels::NmsClass* to) {
  bool is_ok = true;
  to->iou_threshold = proto.iou_threshold();
  if (!(to->iou_threshold >= 0 && to->iou_threshold <= 1)) {
    at.Add(what, "iou_threshold is ", to->iou_threshold, "; it must be 0 to 1");
    is_ok = false;
  }
  const auto read = [&](const char* name, uint32_t count, uint32_t least, int32_t* count_to) {
    if (count < least || count > kernels::kMaxBoxes) {
      at.Add(what, name, " is ", count, "; it must be ", least, " to ", kernels::kMaxBoxes);
      is_ok = false;
    }
    *count_to = static_cast<int32_t>(count);
  };
  read("max_boxes_in", proto.max_boxes_in(), 0, &to->max_boxes_in);
  read("max_boxes_out", proto.max_boxes_out(), 1, &to->max_boxes_out);
  return is_ok;
}

bool ReadNmsClasses(const model::v1::Nms& proto, size_t num_inputs, const ProblemsAt& at,
                    std::vector<kernels::NmsClass>* classes) {
  bool is_ok = true;
  if (proto.iou_threshold() != 0 || proto.max_boxes_in() != 0 || proto.max_boxes_out() != 0) {
    at.Add("has classes, whose own iou_threshold, max_boxes_in and max_boxes_out count; leave these out");
    is_ok = false;
  }
  const size_t num_lists = num_inputs * static_cast<size_t>(proto.classes_size());
  if (num_lists > static_cast<size_t>(kernels::kMaxNmsInputs)) {
    at.Add("has ", proto.classes_size(), " classes of ", num_inputs, " inputs; at most ", kernels::kMaxNmsInputs,
           " pairs of these are possible");
    return false;
  }
  std::set<uint32_t> ids;
  for (const model::v1::Nms::OfClass& of : proto.classes()) {
    kernels::NmsClass limits{.class_id = static_cast<int32_t>(of.class_id())};
    is_ok = ReadNmsLimits(of, absl::StrCat("class ", of.class_id(), ": "), at, &limits) && is_ok;
    if (of.class_id() >= kMaxClasses) {
      at.Add("class id ", of.class_id(), " is too large; ids are below ", kMaxClasses);
      is_ok = false;
    } else if (!ids.insert(of.class_id()).second) {
      at.Add("class id ", of.class_id(), " appears twice");
      is_ok = false;
    }
    classes->push_back(limits);
  }
  return is_ok;
}

template <typename Head>
bool HasClass(const Head& head, int32_t id) {
  const auto end = head.class_ids.begin() + head.num_classes;
  return std::find(head.class_ids.begin(), end, id) != end;
}

// Returns true if the decoder finds boxes of this class.
bool FindsClass(const GraphOp& decoder, int32_t id) {
  if (const auto* const op = std::get_if<CenterHeadDecodeOp>(&decoder)) return HasClass(op->head, id);
  if (const auto* const op = std::get_if<AnchorHeadDecodeOp>(&decoder)) return HasClass(op->head, id);
  return HasClass(std::get<QueryDecodeOp>(decoder).head, id);
}

// Returns false and reports a problem if no input finds boxes of one of the classes. The inputs are decoders.
bool AreClassesOfInputs(const std::vector<kernels::NmsClass>& classes, const NodeContext& context) {
  bool is_ok = true;
  for (const kernels::NmsClass& each : classes) {
    bool is_found = false;
    for (size_t i = 0; i < context.node.inputs.size(); ++i) {
      is_found = is_found || FindsClass(context.Known(i)->op, each.class_id);
    }
    if (is_found) continue;
    context.at.Add("has class id ", each.class_id, ", of which no input finds boxes");
    is_ok = false;
  }
  return is_ok;
}

}  // namespace

void CheckNms(NodeContext& context) {
  const model::v1::Nms& proto = context.proto.nms();
  NmsOp op;
  kernels::NmsClass of_all;
  bool is_ok = true;
  if (proto.classes().empty()) {
    is_ok = ReadNmsLimits(proto, "", context.at, &of_all);
    op.iou_threshold = of_all.iou_threshold;
    op.max_boxes_in = of_all.max_boxes_in;
    op.max_boxes_out = of_all.max_boxes_out;
  } else {
    is_ok = ReadNmsClasses(proto, context.node.inputs.size(), context.at, &op.classes);
  }
  int32_t max_boxes = 0;
  for (size_t i = 0; i < context.node.inputs.size(); ++i) {
    const GraphNode* const input = context.Known(i);
    if (input == nullptr) {
      is_ok = false;
    } else if (!IsDecoder(input->op)) {
      context.at.Add("its input ", Quoted(input->name),
                     " is not a center_head_decode, anchor_head_decode or query_decode");
      is_ok = false;
    } else {
      const auto add = [&](const kernels::NmsClass& limits) {
        const int rows = limits.max_boxes_in == 0 ? input->max_boxes : std::min(input->max_boxes, limits.max_boxes_in);
        max_boxes += std::min(rows, limits.max_boxes_out);
      };
      if (op.classes.empty()) add(of_all);
      for (const kernels::NmsClass& limits : op.classes) add(limits);
    }
  }
  if (is_ok) is_ok = AreClassesOfInputs(op.classes, context);
  context.node.op = op;
  if (is_ok) SetBoxes(max_boxes, context.node);
}

}  // namespace voxserve
