// The trees that make_torch.py found with Python's own pickle, in a small file and in every published one.
#include "tests/support/torch_file.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "tests/support/paths.h"
#include "tests/support/unpickler.h"
#include "tests/support/zip.h"

namespace voxserve::support {
namespace {

using Kind = TorchValue::Kind;
std::string Dir() { return SourceDir() + "/tests/support/testdata/"; }

// As `lines` of make_torch.py writes them.
void AppendTree(const TorchValue& value, const std::string& path, std::string* out) {
  switch (value.kind()) {
    case Kind::kNone:
      absl::StrAppend(out, path, " None\n");
      return;
    case Kind::kBool:
      absl::StrAppend(out, path, " bool ", value.AsBool() ? "True" : "False", "\n");
      return;
    case Kind::kInt:
      absl::StrAppend(out, path, " int ", value.AsInt(), "\n");
      return;
    case Kind::kFloat:
      absl::StrAppend(out, path, absl::StrFormat(" float %.17g\n", value.AsFloat()));
      return;
    case Kind::kString:
      absl::StrAppend(out, path, " str ", value.AsString(), "\n");
      return;
    case Kind::kList:
    case Kind::kTuple:
      absl::StrAppend(out, path, value.is(Kind::kList) ? " list " : " tuple ", value.items().size(), "\n");
      for (size_t i = 0; i < value.items().size(); ++i) {
        AppendTree(*value.items()[i], absl::StrCat(path, "[", i, "]"), out);
      }
      return;
    case Kind::kDict:
      absl::StrAppend(out, path, " dict ", value.entries().size(), "\n");
      for (const auto& [key, item] : value.entries()) AppendTree(*item, absl::StrCat(path, ".", key), out);
      return;
    case Kind::kTensor: {
      const NpyArray& tensor = value.tensor();
      const auto crc = crc32_z(0, reinterpret_cast<const Bytef*>(tensor.bytes.data()), tensor.bytes.size());
      absl::StrAppend(out, path, " tensor ", tensor.dtype, " (", absl::StrJoin(tensor.shape, ","), ") ",
                      absl::StrFormat("%08x\n", crc));
      return;
    }
  }
}

void ExpectTree(const std::string& path) {
  const auto file = TorchFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  std::string tree;
  AppendTree(file->root(), "", &tree);
  const std::string stem = std::filesystem::path(path).stem();
  EXPECT_EQ(tree, ReadFile(absl::StrCat(Dir(), stem, ".tree.txt")).value());
}

TEST(TorchFileTest, EveryKindOfValue) { ExpectTree(absl::StrCat(Dir(), "small.pt")); }

TEST(TorchFileTest, StridesAreResolved) {
  const TorchFile file = TorchFile::Open(absl::StrCat(Dir(), "small.pt")).value();
  // 4 x 3 out of 0..23, first element 2, strides 1 and 4.
  EXPECT_EQ(file.root().at("transposed").tensor().values<float>(),
            (std::vector<float>{2, 6, 10, 3, 7, 11, 4, 8, 12, 5, 9, 13}));
  EXPECT_EQ(file.root().at("expanded").tensor().values<float>(), (std::vector<float>{5, 6, 5, 6}));
  EXPECT_EQ(file.root().at("scalar").tensor().values<float>(), (std::vector<float>{7}));
  EXPECT_EQ(file.root().Find("nothing"), nullptr);
  EXPECT_EQ(file.root().at("nested").items()[6]->AsInts(), (std::vector<int64_t>{1, 2, 3}));
}

class PublishedTest : public ::testing::TestWithParam<const char*> {};

TEST_P(PublishedTest, EveryCaseIsRead) {
  const std::string path = absl::StrCat(SharedData(), "/spconv/", GetParam(), ".pt");
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "no spconv outputs at " << path;
  ExpectTree(path);
}

INSTANTIATE_TEST_SUITE_P(Spconv, PublishedTest,
                         ::testing::Values("golden_ext_misc", "golden_ext_p2v", "golden_ext_pool", "golden_misc"),
                         [](const auto& file) { return std::string(file.param); });

// The shapes of a published case fit each other as its meaning demands, so the right tensors have the right names.
TEST(TorchFileTest, ShapesOfThePointToVoxelCases) {
  const std::string path = SharedData() + "/spconv/golden_ext_p2v.pt";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "no spconv outputs at " << path;
  const TorchFile file = TorchFile::Open(path).value();
  int num_cases = 0;
  for (const TorchValue* one : file.root().at("cases").items()) {
    SCOPED_TRACE(one->at("id").AsString());
    const TorchValue& ctor = one->at("ctor");
    const TorchValue& expect = one->at("expect");
    const bool canonical = one->at("kind").AsString() == "p2v_gpu_canon";
    const NpyArray& voxels = expect.at(canonical ? "voxels_canon" : "voxels").tensor();
    const int64_t num_voxels = voxels.shape[0];
    EXPECT_EQ(voxels.shape, (std::vector<int64_t>{num_voxels, ctor.at("max_num_points_per_voxel").AsInt(),
                                                  ctor.at("num_point_features").AsInt()}));
    EXPECT_EQ(expect.at(canonical ? "indices_canon" : "indices").tensor().shape,
              (std::vector<int64_t>{num_voxels, one->at("ndim").AsInt()}));
    EXPECT_EQ(static_cast<int64_t>(ctor.at("vsize_xyz").items().size()), one->at("ndim").AsInt());
    EXPECT_LE(num_voxels, ctor.at("max_num_voxels").AsInt());
    EXPECT_EQ(one->at("points").tensor().shape[1], ctor.at("num_point_features").AsInt());
    ++num_cases;
  }
  EXPECT_EQ(num_cases, 5);
}

absl::Status Unpickle(absl::string_view pickle) {
  std::deque<TorchValue> values;
  Unpickler unpickler(
      pickle, [](const std::string&) { return std::string(8, '\1'); }, &values);
  return unpickler.Run().status();
}

// Opcodes of ('storage', torch FloatStorage, '0', 'cpu', 2) as a persistent id, then the rest of the arguments.
std::string TensorPickle(const std::string& offset_size_stride) {
  using namespace std::string_literals;
  return absl::StrCat("\x80\2"s, "ctorch._utils\n_rebuild_tensor_v2\n"s, "((X\7\0\0\0storage"s,
                      "ctorch\nFloatStorage\n"s, "X\1\0\0\0\x30"s, "X\3\0\0\0cpuK\2tQ"s, offset_size_stride,
                      "\x89)tR."s);
}

TEST(UnpicklerTest, TensorInsideItsStorage) {
  const absl::Status status = Unpickle(TensorPickle(std::string("K\0K\2\x85K\1\x85", 8)));
  EXPECT_TRUE(status.ok()) << status;
}

TEST(UnpicklerTest, TensorOutsideItsStorage) {
  const absl::Status status = Unpickle(TensorPickle(std::string("K\1K\2\x85K\1\x85", 8)));
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(status.message().find("elements 1 to 2 in storage '0' of 2"), std::string::npos) << status;
}

TEST(UnpicklerTest, HugeTensorOfStrideZero) {
  EXPECT_EQ(Unpickle(TensorPickle("K\1J\xff\xff\xff\x7fJ\xff\xff\xff\x7f\x86K" + std::string("\0K\0\x86", 4))).code(),
            absl::StatusCode::kDataLoss);
}

TEST(UnpicklerTest, NothingIsExecuted) {
  using namespace std::string_literals;
  const absl::Status call = Unpickle("\x80\2cos\nsystem\nX\4\0\0\0true\x85R."s);
  EXPECT_EQ(call.code(), absl::StatusCode::kUnimplemented);
  EXPECT_NE(call.message().find("a call of 'os system'"), std::string::npos) << call;
}

TEST(UnpicklerTest, BadProgramsAreErrors) {
  constexpr absl::string_view kPickles[] = {"",
                                            ".",
                                            "\x80\4.",
                                            "a.",
                                            "(.",
                                            "t.",
                                            "u.",
                                            "h\7.",
                                            "q\1.",
                                            "]K\1s.",
                                            "}K\1K\2s.",
                                            "}(K\1u.",
                                            "Q.",
                                            "NQ.",
                                            "R.",
                                            "NNR.",
                                            "X\xff\xff\xff\xff.",
                                            "(]e.",
                                            "c",
                                            "ca\nb",
                                            "\x8a\x09.",
                                            "\x8a\x02.",
                                            "i",
                                            "cos\nsystem\n."};
  for (const absl::string_view pickle : kPickles) {
    EXPECT_FALSE(Unpickle(pickle).ok()) << "'" << pickle << "'";
  }
}

// Any damaged byte and any truncation of the pickle gives a tree or an error, and no access outside of it.
TEST(UnpicklerTest, DamageNeverCrashes) {
  const ZipArchive archive = ZipArchive::Open(absl::StrCat(Dir(), "small.pt")).value();
  const std::string pickle = archive.Read("small/data.pkl").value();
  int refused = 0;
  const auto run = [&](const std::string& bytes) {
    std::deque<TorchValue> values;
    Unpickler unpickler(
        bytes, [&](const std::string& key) { return archive.Read(absl::StrCat("small/data/", key)); }, &values);
    refused += unpickler.Run().ok() ? 0 : 1;
  };
  for (size_t i = 0; i < pickle.size(); ++i) {
    for (const int flip : {0x01, 0x10, 0xff}) {
      std::string damaged = pickle;
      damaged[i] = static_cast<char>(damaged[i] ^ flip);
      run(damaged);
    }
    run(pickle.substr(0, i));
  }
  EXPECT_GE(refused, static_cast<int>(pickle.size()));
}

TEST(TorchFileTest, OtherZipsAreRefused) {
  EXPECT_NE(TorchFile::Open(absl::StrCat(Dir(), "stored.npz")).status().message().find("not written by torch.save"),
            std::string::npos);
}

TEST(TorchFileTest, AskingForTheWrongKindEndsTheTest) {
  const TorchFile file = TorchFile::Open(absl::StrCat(Dir(), "small.pt")).value();
  EXPECT_DEATH(file.root().at("text").AsInt(), "asked for int, is str");
  EXPECT_DEATH(file.root().at("txt"), "no key 'txt'; there are: contiguous");
}

}  // namespace
}  // namespace voxserve::support
