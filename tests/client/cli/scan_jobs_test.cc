#include "client/cpp/cli/scan_jobs.h"

#include <filesystem>

#include "gmock/gmock.h"
#include "tests/client/temporary_folder.h"

namespace voxserve::client::scan_jobs_test {
namespace {

using ::testing::HasSubstr;

class ScanJobsTest : public testing::Test {
 protected:
  std::string At(const std::string& name) const { return folder_.path() + "/" + name; }

  void ExpectRefused(const ScanPaths& paths, const std::string& complaint) {
    const auto jobs = PlanJobs(paths);
    ASSERT_FALSE(jobs.ok());
    EXPECT_THAT(std::string(jobs.status().message()), HasSubstr(complaint));
  }

  TemporaryFolder folder_;
};

TEST_F(ScanJobsTest, OneScanWritesTheFilesThatAreNamed) {
  const std::string scan = folder_.Write("a.bin", "");
  const auto jobs = PlanJobs({{scan}, At("l.npy"), At("p.png"), At("t.u8")});
  ASSERT_TRUE(jobs.ok()) << jobs.status();
  ASSERT_EQ(jobs->size(), 1u);
  EXPECT_EQ(jobs->front().input, scan);
  EXPECT_EQ(jobs->front().save, At("l.npy"));
  EXPECT_EQ(jobs->front().picture, At("p.png"));
  EXPECT_EQ(jobs->front().truth, At("t.u8"));
}

TEST_F(ScanJobsTest, AFolderStandsForItsScansByName) {
  for (const char* name : {"b.bin", "a.pcd.bin", "c.pcd", "d.txt", "e.label"}) folder_.Write(name, "");
  std::filesystem::create_directory(At("f.bin"));
  folder_.Write("a.truth.u8", "");
  folder_.Write("b.label", "");
  folder_.Write("c.u8", "");
  const auto jobs = PlanJobs({{folder_.path()}, At("out"), At("out"), folder_.path()});
  ASSERT_TRUE(jobs.ok()) << jobs.status();
  ASSERT_EQ(jobs->size(), 3u);
  EXPECT_EQ((*jobs)[0].input, At("a.pcd.bin"));
  EXPECT_EQ((*jobs)[0].save, At("out/a.npy"));
  EXPECT_EQ((*jobs)[0].picture, At("out/a.png"));
  EXPECT_EQ((*jobs)[0].truth, At("a.truth.u8"));
  EXPECT_EQ((*jobs)[1].truth, At("b.label"));
  EXPECT_EQ((*jobs)[2].input, At("c.pcd"));
  EXPECT_TRUE(std::filesystem::is_directory(At("out")));
}

TEST_F(ScanJobsTest, RefusesWhatCannotBeMeant) {
  const std::string a = folder_.Write("a.bin", ""), b = folder_.Write("b.bin", "");
  std::filesystem::create_directory(At("other"));
  const std::string same = folder_.Write("other/a.bin", "");
  std::filesystem::create_directory(At("empty"));
  ExpectRefused({{}, "", "", ""}, "no scan");
  ExpectRefused({{At("none.bin")}, "", "", ""}, "no such file");
  ExpectRefused({{At("empty")}, "", "", ""}, "no scans");
  ExpectRefused({{a, b}, At("l.npy"), "", ""}, "one file, but there are several scans");
  ExpectRefused({{a, b}, "", At("p.png"), ""}, "one file, but there are several scans");
  ExpectRefused({{a, b}, "", "", a}, "one file, but there are several scans");
  ExpectRefused({{a, same}, At("out"), "", ""}, "two scans named a");
  ExpectRefused({{a}, At("l.txt"), "", ""}, "--save");
  ExpectRefused({{a}, "", At("p.jpg"), ""}, "--picture");
  ExpectRefused({{a}, "", "", At("empty")}, "no labels for");
  const std::string array = folder_.Write("c.npy", "");
  ExpectRefused({{array}, array, "", ""}, "over the scan itself");
  ExpectRefused({{array}, At("other/../c.npy"), "", ""}, "over the scan itself");
  std::filesystem::create_symlink(array, At("link.npy"));
  ExpectRefused({{array}, At("link.npy"), "", ""}, "over the scan itself");
  const std::string labels = folder_.Write("truth.npy", "");
  ExpectRefused({{a}, At("other/../truth.npy"), "", labels}, "over the labels of --truth");
  ExpectRefused({{a}, At(std::string(300, 'x')), "", ""}, "cannot be made");
}

TEST_F(ScanJobsTest, FilesOfTensorsAreCheckedToo) {
  v1::ModelVersion model;
  for (const char* name : {"deep", "b.deep"}) {
    v1::TensorInfo& tensor = *model.add_tensors();
    tensor.set_name(name);
    tensor.set_rows(v1::TENSOR_ROWS_SITES);
  }
  const auto why = [&](const std::vector<ScanJob>& jobs, const std::vector<std::string>& names) {
    return std::string(CheckTensorFiles(jobs, model, names).message());
  };
  const std::string scan = folder_.Write("a.deep.npy", "");
  EXPECT_THAT(why({{scan, At("a.npy"), "", ""}}, {}), HasSubstr("a.deep.npy would be written over a scan"));
  EXPECT_THAT(why({{At("x.bin"), At("x.npy"), "", ""}, {At("a.deep.unit.npy"), At("a.npy"), "", ""}}, {"deep"}),
              HasSubstr("a.deep.unit.npy would be written over a scan"));
  EXPECT_EQ(why({{scan, At("a.npy"), "", ""}}, {"b.deep"}), "") << "names of others are not written";
  std::filesystem::create_symlink(scan, At("link.deep.npy"));
  EXPECT_THAT(why({{scan, At("link.npy"), "", ""}}, {}), HasSubstr("would be written over a scan"));
  const std::vector<ScanJob> two = {{At("a.bin"), At("a.npy"), "", ""}, {At("a.b.bin"), At("a.b.npy"), "", ""}};
  EXPECT_THAT(why(two, {}), HasSubstr("two tensors would both be written to " + At("a.b.deep.npy")));
  EXPECT_EQ(why(two, {"deep"}), "");
  EXPECT_EQ(why({{scan, "", "", ""}}, {}), "") << "nothing is saved";
}

}  // namespace
}  // namespace voxserve::client::scan_jobs_test
