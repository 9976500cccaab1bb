// Tests WeightsFile, which reads a file of weights in two steps (header, data), and that little is read of a file that
// does not belong to its network.

#include "engine/model/weights_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/error_reason.h"
#include "engine/model/model_loader.h"
#include "tests/support/model_folder.h"

namespace voxserve::weights_file_test {
namespace {

namespace fs = std::filesystem;

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using voxserve::support::FloatTensor;
using voxserve::support::Safetensors;
using voxserve::support::SafetensorsFile;
using voxserve::support::SmallModel;
using voxserve::support::TemporaryFolder;
using voxserve::support::TestModel;
using voxserve::support::WriteFile;

constexpr int64_t kTiB = int64_t{1} << 40;

// Returns the number of bytes that this process has read from files so far.
int64_t BytesRead() {
  std::ifstream counters("/proc/self/io");
  std::string name;
  int64_t bytes = -1;
  counters >> name >> bytes;
  EXPECT_EQ(name, "rchar:");
  return bytes;
}

class WeightsFileTest : public ::testing::Test {
 protected:
  std::optional<WeightsFile> Open() { return WeightsFile::Open(path_, &problems_); }

  const TemporaryFolder folder_;
  const fs::path path_ = folder_.path() / "weights.safetensors";
  Problems problems_;
};

TEST_F(WeightsFileTest, ReadsTheHeaderAndThenTheData) {
  const std::string content = Safetensors({{"a", FloatTensor({2}, {1, -2})}, {"b", FloatTensor({1}, {3})}});
  WriteFile(path_, content);
  std::optional<WeightsFile> file = Open();
  ASSERT_TRUE(file.has_value());
  EXPECT_EQ(file->file_bytes(), static_cast<int64_t>(content.size()));
  EXPECT_EQ(file->header_bytes(), file->file_bytes() - 8 - 12);
  StoredTensors tensors = file->ReadHeader(&problems_);
  EXPECT_EQ(file->content(), content.substr(0, content.size() - 12));
  EXPECT_TRUE(tensors.is_listed);
  EXPECT_FALSE(tensors.has_data);
  EXPECT_EQ(NumValues(tensors.by_name.at("a")), 2);
  EXPECT_THAT(tensors.by_name.at("a").bytes, IsEmpty());
  ASSERT_TRUE(file->ReadData(&tensors, &problems_));
  EXPECT_EQ(file->content(), content);
  EXPECT_TRUE(tensors.has_data);
  EXPECT_THAT(ToHostTensor(tensors.by_name.at("a")).values, ElementsAre(1.0F, -2.0F));
  EXPECT_THAT(ToHostTensor(tensors.by_name.at("b")).values, ElementsAre(3.0F));
  EXPECT_THAT(problems_, IsEmpty());
}

TEST_F(WeightsFileTest, OnlyRegularFilesAreOpened) {
  EXPECT_FALSE(Open().has_value());
  fs::create_directory(path_);
  EXPECT_FALSE(Open().has_value());
  fs::remove(path_);
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  EXPECT_FALSE(Open().has_value()) << "it does not wait for a writer either";
  EXPECT_THAT(problems_, ElementsAre("weights.safetensors: cannot be read (No such file or directory)",
                                     "weights.safetensors: cannot be read (no regular file)",
                                     "weights.safetensors: cannot be read (no regular file)"));
}

TEST_F(WeightsFileTest, AFileThatIsCutShortMeanwhileIsAProblem) {
  const std::string content = Safetensors({{"a", FloatTensor({2}, {1, -2})}});
  WriteFile(path_, content);
  std::optional<WeightsFile> file = Open();
  ASSERT_TRUE(file.has_value());
  StoredTensors tensors = file->ReadHeader(&problems_);
  fs::resize_file(path_, content.size() - 3);
  EXPECT_FALSE(file->ReadData(&tensors, &problems_));
  EXPECT_FALSE(tensors.has_data);
  EXPECT_THAT(problems_, ElementsAre(absl::StrCat("weights.safetensors: cannot be read (only ", content.size() - 3,
                                                  " of ", content.size(), " bytes)")));
  problems_ = {};
  WriteFile(path_, content);
  std::optional<WeightsFile> another = Open();
  ASSERT_TRUE(another.has_value());
  fs::resize_file(path_, 10);
  EXPECT_FALSE(another->ReadHeader(&problems_).is_listed);
  EXPECT_THAT(problems_, ElementsAre(HasSubstr("cannot be read (only 10 of ")));
}

TEST_F(WeightsFileTest, AFileThatTakesItsNameIsNotMixedIn) {
  WriteFile(path_, Safetensors({{"a", FloatTensor({1}, {1})}}));
  std::optional<WeightsFile> file = Open();
  ASSERT_TRUE(file.has_value());
  StoredTensors tensors = file->ReadHeader(&problems_);
  WriteFile(folder_.path() / "new", Safetensors({{"a", FloatTensor({1}, {2})}}));
  fs::rename(folder_.path() / "new", path_);
  ASSERT_TRUE(file->ReadData(&tensors, &problems_));
  EXPECT_THAT(ToHostTensor(tensors.by_name.at("a")).values, ElementsAre(1.0F));
}

// Each file has a wrong header, and up to a TiB of zeros that take no space on the disk.
TEST_F(WeightsFileTest, NoWeightsAreReadOfAFileThatDoesNotBelongToItsNetwork) {
  const auto entry = [](const std::string& name, const std::string& rest) {
    return absl::StrCat("{\"", name, "\":{", rest, "}}");
  };
  struct Case {
    std::string header;
    int64_t data_bytes;
    std::string problem;
  };
  const std::string last = absl::StrCat(kTiB);
  const Case cases[] = {
      {"{\"a\":", kTiB, "weights.safetensors: its header is not valid JSON"},
      {entry("head.bias", R"("dtype":"F32","shape":[3],"data_offsets":[0,12])"), kTiB,
       "weights.safetensors: data bytes 12 to " + last + " belong to no tensor"},
      {entry("head.bias", R"("dtype":"F32","shape":[3],"data_offsets":[0,)" + last + "]"), kTiB,
       "tensor \"head.bias\": has " + last + " bytes, but F32 [3] takes 12"},
      {entry("head.weight", R"("dtype":"F32","shape":[3,68719476736],"data_offsets":[0,824633720832])"), 824633720832,
       "tensor \"head.weight\": has shape [3, 68719476736]; node \"head\" needs [3, 8]"},
      {entry("head.weight", R"("dtype":"U8","shape":[)" + last + R"(],"data_offsets":[0,)" + last + "]"), kTiB,
       "tensor \"head.weight\": is stored as U8; weights are F32, F16 or BF16"},
      {entry("other", R"("dtype":"F32","shape":[274877906944],"data_offsets":[0,)" + last + "]"), kTiB,
       "tensor \"other\": is used by no node"},
  };
  TestModel model = SmallModel();
  model.WriteTo(folder_.path());
  const fs::path weights = folder_.path() / "1/weights.safetensors";
  for (const Case& one : cases) {
    const std::string beginning = SafetensorsFile(one.header, "");
    WriteFile(weights, beginning);
    fs::resize_file(weights, beginning.size() + static_cast<uint64_t>(one.data_bytes));
    MemoryBudget budget(1 << 20);
    absl::StatusOr<MemoryBudget::Reservation> memory = budget.Reserve(MemoryBudget::Use::kModels, 0);
    ASSERT_TRUE(memory.ok());
    const int64_t read_before = BytesRead();
    const absl::Status status = LoadGraph(folder_.path() / "1", {.memory = &*memory}).status();
    EXPECT_LT(BytesRead() - read_before, 64 << 10);
    EXPECT_EQ(ReasonOf(status), error_reason::kBadModel) << status;
    EXPECT_THAT(ProblemsOf(status), Contains(HasSubstr(one.problem)));
  }
  std::string beginning(8, '\0');
  beginning[5] = 1;  // little endian: a header of a TiB
  WriteFile(weights, beginning);
  fs::resize_file(weights, 2 * kTiB);
  EXPECT_THAT(ProblemsOf(LoadGraph(folder_.path() / "1").status()),
              Contains(HasSubstr("says that its header has 1099511627776 bytes")));
}

TEST_F(WeightsFileTest, ValuesAreReportedWhereNothingElseIsWrong) {
  TestModel model = SmallModel();
  model.weights["head.bias"] = FloatTensor({3}, {1, NAN, 2});
  model.WriteTo(folder_.path());
  EXPECT_THAT(ProblemsOf(LoadGraph(folder_.path() / "1").status()),
              ElementsAre("tensor \"head.bias\": has 1 of 3 values that are NaN or infinite, the first at index 1"));
  model.weights["other"] = FloatTensor({1}, {1});
  model.WriteTo(folder_.path());
  EXPECT_THAT(ProblemsOf(LoadGraph(folder_.path() / "1").status()),
              ElementsAre("tensor \"other\": is used by no node"));
}

}  // namespace
}  // namespace voxserve::weights_file_test
