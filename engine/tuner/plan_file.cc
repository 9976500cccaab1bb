#include "engine/tuner/plan_file.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "engine/base/quoted.h"
#include "engine/model/text_file.h"
#include "engine/ops/conv/dataflow.h"
#include "google/protobuf/text_format.h"
#include "kernels/conv/matmul_grouping.h"
#include "voxserve/model/v1/plan.pb.h"

namespace voxserve {
namespace {

namespace fs = std::filesystem;
using kernels::Grouping;
using kernels::MapSearch;

constexpr uint32_t kMaxBlockRows = uint32_t{1} << 20;
// The longest time of a batch that a file may have. Much longer times lose digits when they are written in
// milliseconds, so reading the file would not give the same times.
constexpr absl::Duration kMaxTime = absl::Hours(24);
constexpr absl::string_view kDataflowPrefix = "DATAFLOW_";

model::v1::Dataflow ProtoOf(const ConvDataflow& dataflow) {
  model::v1::Dataflow proto = model::v1::DATAFLOW_UNSPECIFIED;
  model::v1::Dataflow_Parse(absl::StrCat(kDataflowPrefix, dataflow.name()), &proto);
  return proto;
}

// Reads the fields of a plan from its message, and collects problems.
class PlanReader {
 public:
  PlanReader(const std::string& file_name, Problems* problems) : file_name_(file_name), problems_(problems) {}

  TunedPlan Read(const model::v1::Plan& proto) {
    TunedPlan plan;
    const ProblemsAt at(file_name_, problems_);
    if (!proto.has_key()) at.Add("has no key");
    plan.key = {.model_digest = proto.key().model_digest(),
                .device = proto.key().device(),
                .compute_capability = proto.key().compute_capability(),
                .cuda_version = proto.key().cuda_version(),
                .engine_version = proto.key().engine_version(),
                .dtype = proto.key().dtype()};
    default_ = DefaultConvPlan(plan.key);
    if (proto.buckets().empty()) at.Add("has no buckets");
    for (int i = 0; i < proto.buckets_size(); ++i) {
      const std::string place = absl::StrCat("buckets[", i, "]");
      plan.buckets.push_back(ReadBucket(proto.buckets(i), absl::StrCat(file_name_, ": ", place)));
      if (i > 0) CheckOrder(plan.buckets[static_cast<size_t>(i) - 1].bucket, plan.buckets.back().bucket, place);
    }
    return plan;
  }

 private:
  TunedBucket ReadBucket(const model::v1::PlanBucket& proto, const std::string& place) {
    const ProblemsAt at(place, problems_);
    TunedBucket tuned;
    PlanTable::Bucket& bucket = tuned.bucket;
    bucket.min_voxels = ReadCount<int64_t>("min_voxels", proto.min_voxels(), at);
    if (proto.max_voxels() != 0) bucket.max_voxels = ReadCount<int64_t>("max_voxels", proto.max_voxels(), at);
    if (bucket.max_voxels <= bucket.min_voxels) {
      at.Add("is empty: min_voxels is ", proto.min_voxels(), " and max_voxels is ", proto.max_voxels());
    }
    tuned.num_scans = ReadCount<int>("num_scans", proto.num_scans(), at);
    tuned.default_time = ReadTime("default_ms", proto.default_ms(), at);
    tuned.tuned_time = ReadTime("tuned_ms", proto.tuned_ms(), at);

    if (!proto.fallback().node().empty()) at.Add("fallback has node ", Quoted(proto.fallback().node()));
    bucket.plan.fallback = ReadConv(proto.fallback(), ProblemsAt(absl::StrCat(place, ", fallback"), problems_));
    for (int i = 0; i < proto.convs_size(); ++i) {
      const std::string& node = proto.convs(i).node();
      const ProblemsAt at_node(absl::StrCat(place, ", node ", Quoted(node)), problems_);
      if (node.empty()) at.Add("convs[", i, "] has no node");
      const bool is_new = bucket.plan.by_node.try_emplace(node, ReadConv(proto.convs(i), at_node)).second;
      if (!is_new) at_node.Add("appears twice");
    }
    return tuned;
  }

  void CheckOrder(const PlanTable::Bucket& before, const PlanTable::Bucket& bucket, const std::string& place) {
    if (bucket.min_voxels >= before.max_voxels) return;
    const ProblemsAt at(absl::StrCat(file_name_, ": ", place), problems_);
    const std::string end =
        before.max_voxels == PlanTable::kNoLimit ? "never ends" : absl::StrCat("ends at ", before.max_voxels);
    at.Add("begins at ", bucket.min_voxels, " voxels, but the one before it ", end,
           "; buckets must ascend and not overlap");
  }

  ConvPlan ReadConv(const model::v1::ConvPlan& proto, const ProblemsAt& at) {
    ConvPlan plan = default_;
    ReadMapSearch(proto.map_search(), &plan.map_search, at);
    ReadDataflow(proto.dataflow(), &plan.dataflow, at);
    const auto read_block = [&](const char* name, uint32_t value, int32_t* to) {
      if (value > kMaxBlockRows) {
        at.Add(name, " is ", value, "; at most ", kMaxBlockRows, " is possible");
      } else {
        *to = static_cast<int32_t>(value);
      }
    };
    read_block("block_rows", proto.block_rows(), &plan.block.rows);
    read_block("block_columns", proto.block_columns(), &plan.block.columns);
    read_block("split_k", proto.split_k(), &plan.block.split_k);
    plan.block.uses_mma_sync = proto.uses_mma_sync();
    if (plan.block.rows == 0 && plan.block != kernels::ConvBlock{}) {
      at.Add("block_columns, split_k and uses_mma_sync need block_rows");
    }
    // 0 and 1 parts mean the same; blocks without columns cannot be split.
    if (plan.block.split_k <= 1) plan.block.split_k = plan.block.columns == 0 ? 0 : 1;
    ReadGrouping(proto.grouping(), &plan.grouping.grouping, at);
    if (proto.has_epsilon()) {
      plan.grouping.epsilon = proto.epsilon();
      const bool is_share = proto.epsilon() >= 0 && proto.epsilon() <= 1;  // false for NaN
      if (!is_share) at.Add("epsilon is ", proto.epsilon(), "; it must be 0 to 1");
    }
    plan.grouping.bmm_max_rows = kernels::kNoLimit;
    if (proto.has_bmm_max_rows()) {
      plan.grouping.bmm_max_rows = ReadCount<int64_t>("bmm_max_rows", proto.bmm_max_rows(), at);
    }
    return plan;
  }

  static void ReadMapSearch(model::v1::MapSearch proto, MapSearch* search, const ProblemsAt& at) {
    switch (proto) {
      case model::v1::MAP_SEARCH_UNSPECIFIED:
        return;
      case model::v1::MAP_SEARCH_GRID:
        *search = MapSearch::kGrid;
        return;
      case model::v1::MAP_SEARCH_HASH:
        *search = MapSearch::kHash;
        return;
      case model::v1::MAP_SEARCH_MERGE:
        *search = MapSearch::kMerge;
        return;
      default:
        at.Add("map_search ", static_cast<int>(proto), " is unknown");
    }
  }

  static void ReadDataflow(model::v1::Dataflow proto, Dataflow* dataflow, const ProblemsAt& at) {
    if (proto == model::v1::DATAFLOW_UNSPECIFIED) return;
    for (const ConvDataflow* of_table : Dataflows()) {
      if (ProtoOf(*of_table) != proto) continue;
      *dataflow = of_table->id();
      return;
    }
    at.Add("dataflow ", static_cast<int>(proto), " is unknown");
  }

  static void ReadGrouping(model::v1::Grouping proto, Grouping* grouping, const ProblemsAt& at) {
    switch (proto) {
      case model::v1::GROUPING_UNSPECIFIED:
        return;
      case model::v1::GROUPING_SEPARATE:
        *grouping = Grouping::kSeparate;
        return;
      case model::v1::GROUPING_SYMMETRIC:
        *grouping = Grouping::kSymmetric;
        return;
      case model::v1::GROUPING_FIXED:
        *grouping = Grouping::kFixed;
        return;
      case model::v1::GROUPING_ADAPTIVE:
        *grouping = Grouping::kAdaptive;
        return;
      default:
        at.Add("grouping ", static_cast<int>(proto), " is unknown");
    }
  }

  template <typename Count>
  static Count ReadCount(const char* name, uint64_t value, const ProblemsAt& at) {
    constexpr auto kMost = static_cast<uint64_t>(std::numeric_limits<Count>::max());
    if (value > kMost) at.Add(name, " is ", value, "; at most ", kMost, " is possible");
    return static_cast<Count>(std::min(value, kMost));
  }

  static absl::Duration ReadTime(const char* name, double milliseconds, const ProblemsAt& at) {
    const absl::Duration time = std::isnan(milliseconds) ? absl::InfiniteDuration() : absl::Milliseconds(milliseconds);
    if (time >= absl::ZeroDuration() && time <= kMaxTime) return time;
    at.Add(name, " is ", milliseconds, "; it must be 0 to ", absl::ToInt64Milliseconds(kMaxTime));
    return absl::ZeroDuration();
  }

  const std::string& file_name_;
  Problems* const problems_;
  ConvPlan default_;
};

// Returns the first control character, since the parser would report a problem for each one.
std::optional<size_t> FindControlCharacter(std::string_view text) {
  const auto found = std::find_if(text.begin(), text.end(), [](char c) {
    return absl::ascii_iscntrl(static_cast<unsigned char>(c)) && !absl::ascii_isspace(static_cast<unsigned char>(c));
  });
  if (found == text.end()) return std::nullopt;
  return found - text.begin();
}

absl::Status StatusOf(const std::string& path, const Problems& problems) {
  return StatusOfProblems(absl::StrCat("plan ", Quoted(path)), problems);
}

TunedPlan Parse(std::string_view text, const std::string& file_name, Problems* problems) {
  if (text.size() > kMaxPlanFileBytes) {
    problems->Add(absl::StrCat(file_name, ": is larger than ", kMaxPlanFileBytes, " bytes"));
  } else if (const std::optional<size_t> at = FindControlCharacter(text)) {
    problems->Add(absl::StrCat(file_name, ": is not text, byte ", *at, " is a control character"));
  } else if (model::v1::Plan proto; ParseTextProto(text, file_name, &proto, problems)) {
    return PlanReader(file_name, problems).Read(proto);
  }
  return {};
}

model::v1::MapSearch ProtoOf(MapSearch search) {
  switch (search) {
    case MapSearch::kMerge:
      return model::v1::MAP_SEARCH_MERGE;
    case MapSearch::kGrid:
      return model::v1::MAP_SEARCH_GRID;
    case MapSearch::kHash:
      return model::v1::MAP_SEARCH_HASH;
  }
  return model::v1::MAP_SEARCH_UNSPECIFIED;
}

model::v1::Grouping ProtoOf(Grouping grouping) {
  switch (grouping) {
    case Grouping::kSeparate:
      return model::v1::GROUPING_SEPARATE;
    case Grouping::kSymmetric:
      return model::v1::GROUPING_SYMMETRIC;
    case Grouping::kFixed:
      return model::v1::GROUPING_FIXED;
    case Grouping::kAdaptive:
      return model::v1::GROUPING_ADAPTIVE;
  }
  return model::v1::GROUPING_UNSPECIFIED;
}

// Leaves the grouping out if nothing reads it and reading the file restores it.
model::v1::ConvPlan ProtoOf(const std::string& node, const ConvPlan& plan, const ConvPlan& default_plan) {
  model::v1::ConvPlan proto;
  proto.set_node(node);
  proto.set_map_search(ProtoOf(plan.map_search));
  const ConvDataflow& dataflow = DataflowOf(plan.dataflow);
  proto.set_dataflow(ProtoOf(dataflow));
  proto.set_block_rows(static_cast<uint32_t>(plan.block.rows));
  proto.set_block_columns(static_cast<uint32_t>(plan.block.columns));
  proto.set_split_k(static_cast<uint32_t>(plan.block.split_k));
  proto.set_uses_mma_sync(plan.block.uses_mma_sync);
  if (dataflow.has_grouping() || !(plan.grouping == default_plan.grouping)) {
    proto.set_grouping(ProtoOf(plan.grouping.grouping));
    proto.set_epsilon(plan.grouping.epsilon);
    if (plan.grouping.bmm_max_rows != kernels::kNoLimit) {
      proto.set_bmm_max_rows(static_cast<uint64_t>(plan.grouping.bmm_max_rows));
    }
  }
  return proto;
}

model::v1::PlanKey ProtoOf(const PlanKey& key) {
  model::v1::PlanKey proto;
  proto.set_model_digest(key.model_digest);
  proto.set_device(key.device);
  proto.set_compute_capability(key.compute_capability);
  proto.set_cuda_version(key.cuda_version);
  proto.set_engine_version(key.engine_version);
  proto.set_dtype(key.dtype);
  return proto;
}

// Returns the message's fields, one per line.
std::string Lines(const google::protobuf::Message& message) {
  google::protobuf::TextFormat::Printer printer;
  printer.SetInitialIndentLevel(1);
  std::string text;
  printer.PrintToString(message, &text);
  return text;
}

std::string Line(const char* field, const google::protobuf::Message& message) {
  google::protobuf::TextFormat::Printer printer;
  printer.SetSingleLineMode(true);
  std::string text;
  printer.PrintToString(message, &text);
  absl::StripTrailingAsciiWhitespace(&text);
  return absl::StrCat("  ", field, " { ", text, " }\n");
}

std::string Header(const PlanKey& key) {
  const std::string cuda = key.cuda_version.empty() ? "" : absl::StrCat(", CUDA ", key.cuda_version);
  return absl::StrCat("# A tuned plan (voxserve.model.v1.Plan), written by voxserve ",
                      absl::Utf8SafeCEscape(key.engine_version), ".\n# For model ",
                      absl::Utf8SafeCEscape(key.model_digest.substr(0, 16)), " in ", absl::Utf8SafeCEscape(key.dtype),
                      " on ", absl::Utf8SafeCEscape(key.device), " (", absl::Utf8SafeCEscape(key.compute_capability),
                      absl::Utf8SafeCEscape(cuda),
                      ").\n# It is used only where the key below is true; elsewhere the default plan is used.\n\n");
}

std::vector<std::string> SortedNodes(const Plan& plan) {
  std::vector<std::string> nodes;
  for (const auto& entry : plan.by_node) nodes.push_back(entry.first);
  std::sort(nodes.begin(), nodes.end());
  return nodes;
}

void CheckServed(const ConvPlan& plan, const ProgramConv& conv, const ProblemsAt& at) {
  const ServedDataflow* const served = conv.Find(plan.dataflow);
  if (served == nullptr) {
    at.Add("dataflow ", DataflowOf(plan.dataflow).name(), " is not supported ", conv.is_on_cuda ? "here" : "on a CPU");
  } else if (!served->Serves(plan)) {
    const auto append = [](std::string* to, const kernels::ConvBlock& block) { *to += Describe(block); };
    at.Add("a block of ", Describe(plan.block), " is not supported here; ",
           served->blocks ? absl::StrCat("possible are the default, ", absl::StrJoin(*served->blocks, ", ", append))
                          : "only the rows of a block can be chosen");
  }
}

}  // namespace

ConvPlan DefaultConvPlan(const PlanKey& key) {
  if (key.cuda_version.empty()) return {};
  const bool is_tf32 = key.dtype == "tf32";
  const bool is_float32 = is_tf32 || key.dtype == "float32";
  return DefaultCudaConvPlan(is_float32 ? DType::kFloat32 : DType::kFloat16, is_tf32);  // kBfloat16 has the same one
}

absl::StatusOr<TunedPlan> ReadPlan(const fs::path& path) {
  std::error_code error;
  if (fs::status(path, error).type() == fs::file_type::not_found) {
    return absl::NotFoundError(absl::StrCat("there is no plan ", Quoted(path.string())));
  }
  Problems problems;
  TunedPlan plan;
  const std::string name = path.filename().string();
  if (const std::optional<std::string> text = ReadFile(path, &problems, kMaxPlanFileBytes)) {
    plan = Parse(*text, name, &problems);
  }
  if (!problems.empty()) return StatusOf(path.string(), problems);
  return plan;
}

absl::StatusOr<TunedPlan> ParsePlan(std::string_view text, const std::string& file_name) {
  Problems problems;
  TunedPlan plan = Parse(text, file_name, &problems);
  if (!problems.empty()) return StatusOf(file_name, problems);
  return plan;
}

std::string PlanText(const TunedPlan& plan) {
  const ConvPlan default_plan = DefaultConvPlan(plan.key);
  std::string text = absl::StrCat(Header(plan.key), "key {\n", Lines(ProtoOf(plan.key)), "}\n");
  for (const TunedBucket& tuned : plan.buckets) {
    const PlanTable::Bucket& bucket = tuned.bucket;
    model::v1::PlanBucket proto;
    proto.set_min_voxels(static_cast<uint64_t>(bucket.min_voxels));
    if (bucket.max_voxels != PlanTable::kNoLimit) proto.set_max_voxels(static_cast<uint64_t>(bucket.max_voxels));
    proto.set_num_scans(static_cast<uint32_t>(tuned.num_scans));
    proto.set_default_ms(absl::ToDoubleMilliseconds(tuned.default_time));
    proto.set_tuned_ms(absl::ToDoubleMilliseconds(tuned.tuned_time));
    absl::StrAppend(&text, "buckets {\n", Lines(proto),
                    Line("fallback", ProtoOf("", bucket.plan.fallback, default_plan)));
    for (const std::string& node : SortedNodes(bucket.plan)) {
      absl::StrAppend(&text, Line("convs", ProtoOf(node, bucket.plan.by_node.at(node), default_plan)));
    }
    absl::StrAppend(&text, "}\n");
  }
  return text;
}

Problems PlanProblems(const TunedPlan& plan, const Program& program) {
  absl::flat_hash_map<std::string, const ProgramConv*> convs;
  for (const ProgramConv& conv : program.convs) convs.emplace(conv.node, &conv);
  Problems problems;
  for (size_t i = 0; i < plan.buckets.size(); ++i) {
    const std::string place = absl::StrCat("buckets[", i, "]");
    const Plan& bucket = plan.buckets[i].bucket.plan;
    // A GPU accepts any dataflow in a fallback; if it does not support that one, it uses another (PlanTable).
    const auto on_cpu =
        std::find_if(program.convs.begin(), program.convs.end(), [](const auto& conv) { return !conv.is_on_cuda; });
    if (on_cpu != program.convs.end()) {
      CheckServed(bucket.fallback, *on_cpu, ProblemsAt(absl::StrCat(place, ", fallback"), &problems));
    }
    for (const std::string& node : SortedNodes(bucket)) {
      const ProblemsAt at(absl::StrCat(place, ", node ", Quoted(node)), &problems);
      const auto conv = convs.find(node);
      if (conv == convs.end()) {
        at.Add("is not a convolution of the model");
      } else {
        CheckServed(bucket.by_node.at(node), *conv->second, at);
      }
    }
  }
  return problems;
}

}  // namespace voxserve
