// Tests the reader of NPZ and NPY files on files that NumPy wrote (testdata/, made by make_npz.py), and on damaged
// copies of them.
#include "tests/support/npz.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/support/paths.h"
#include "tests/support/zip.h"

namespace voxserve::support::npz_test {
namespace {

std::string Dir() { return SourceDir() + "/tests/support/testdata/"; }

TEST(NpzTest, DeflatedArraysOfEveryDtype) {
  const auto arrays = ReadNpz(absl::StrCat(Dir(), "deflated.npz"));
  ASSERT_TRUE(arrays.ok()) << arrays.status();
  ASSERT_EQ(arrays->size(), 8u);
  const NpyArray& f4 = arrays->at("f4");
  EXPECT_EQ(f4.dtype, "<f4");
  EXPECT_EQ(f4.shape, (std::vector<int64_t>{3, 2}));
  EXPECT_EQ(f4.num_elements(), 6);
  EXPECT_EQ(f4.values<float>(), (std::vector<float>{0.0f, 0.5f, 1.0f, 1.5f, 2.0f, -2.5f}));
  EXPECT_EQ(arrays->at("f8").values<double>(), (std::vector<double>{1e300}));
  EXPECT_EQ(arrays->at("i4").values<int32_t>(), (std::vector<int32_t>{-2147483647 - 1, 2147483647}));
  EXPECT_EQ(arrays->at("i8").values<int64_t>(), (std::vector<int64_t>{-1}));
  EXPECT_TRUE(arrays->at("i8").shape.empty());
  EXPECT_EQ(arrays->at("u1").values<uint8_t>(), (std::vector<uint8_t>{0, 255}));
  EXPECT_TRUE(arrays->at("b1").data<bool>()[0]);
  EXPECT_FALSE(arrays->at("b1").data<bool>()[1]);
  EXPECT_EQ(arrays->at("f2").dtype, "<f2");
  // The values 1 and -2.
  EXPECT_EQ(arrays->at("f2").bytes, std::string("\x00\x3c\x00\xc0", 4));
  EXPECT_EQ(arrays->at("empty").shape, (std::vector<int64_t>{0, 4}));
  EXPECT_EQ(arrays->at("empty").num_elements(), 0);
}

TEST(NpzTest, StoredArrays) {
  const auto arrays = ReadNpz(absl::StrCat(Dir(), "stored.npz"));
  ASSERT_TRUE(arrays.ok()) << arrays.status();
  EXPECT_EQ(arrays->at("a").values<int32_t>(), (std::vector<int32_t>{1, 2, 3}));
}

TEST(NpzTest, Zip64) {
  const auto archive = ZipArchive::Open(absl::StrCat(Dir(), "zip64.zip"));
  ASSERT_TRUE(archive.ok()) << archive.status();
  const auto text = archive->Read("a.txt");
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(*text, "sizes in the extra field\n");
  EXPECT_EQ(archive->Read("b.txt").value(), "and the offset too\n");
  EXPECT_EQ(archive->Read("c.txt").status().message(), "no entry 'c.txt'; there are: a.txt, b.txt");
}

TEST(NpzTest, SingleArray) {
  const auto array = ReadNpy(absl::StrCat(Dir(), "one.npy"));
  ASSERT_TRUE(array.ok()) << array.status();
  EXPECT_EQ(array->values<double>(), (std::vector<double>{1.0, 2.0}));
}

TEST(NpzTest, MissingFileIsNotFound) {
  EXPECT_EQ(ReadNpz("/nowhere.npz").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ReadNpy(Dir()).status().code(), absl::StatusCode::kNotFound);
}

TEST(NpzTest, FortranOrderAndObjectsAreRefusedByName) {
  const auto arrays = ReadNpz(absl::StrCat(Dir(), "fortran.npz"));
  EXPECT_EQ(arrays.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_NE(arrays.status().message().find("Fortran"), std::string::npos) << arrays.status();
  const auto structured = ReadNpy(absl::StrCat(Dir(), "structured.npy"));
  EXPECT_FALSE(structured.ok());
}

TEST(NpzTest, ValuesThatDoNotFitTheShape) {
  std::string file = ReadFile(absl::StrCat(Dir(), "one.npy")).value();
  file.pop_back();
  const auto array = ParseNpy(file);
  ASSERT_EQ(array.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(array.status().message().find("needs 16 bytes, has 15"), std::string::npos) << array.status();
}

TEST(NpzTest, OverflowingShape) {
  std::string file = ReadFile(absl::StrCat(Dir(), "one.npy")).value();
  const size_t at = file.find("(2,)");
  ASSERT_NE(at, std::string::npos);
  file.replace(at, 4 + 24, "(9999999999,9999999999,)    ");
  EXPECT_EQ(ParseNpy(file).status().code(), absl::StatusCode::kDataLoss);
}

// Damages one byte after the other, and cuts the file at every length. Each time, the reader must return arrays or
// an error. The sanitizer presets check that it reads nothing outside of the file.
TEST(NpzTest, DamageNeverCrashes) {
  for (const char* name : {"deflated.npz", "stored.npz", "zip64.zip"}) {
    const std::string file = ReadFile(absl::StrCat(Dir(), name)).value();
    int refused = 0;
    const auto read_all = [&](std::string bytes) {
      const auto archive = ZipArchive::Parse(std::move(bytes));
      bool ok = archive.ok();
      if (ok) {
        for (const std::string& entry : archive->names()) {
          const auto content = archive->Read(entry);
          ok = ok && content.ok() && (name == std::string("zip64.zip") || ParseNpy(*content).ok());
        }
      }
      refused += ok ? 0 : 1;
    };
    for (size_t i = 0; i < file.size(); ++i) {
      std::string damaged = file;
      damaged[i] = static_cast<char>(damaged[i] ^ 0xff);
      read_all(std::move(damaged));
      read_all(file.substr(0, i));
    }
    // Every truncated file, at least, is refused.
    EXPECT_GT(refused, static_cast<int>(file.size())) << name;
  }
}

TEST(NpzTest, AskingForTheWrongTypeEndsTheTest) {
  const NpyArray array{"<f4", {1}, std::string(4, '\0')};
  EXPECT_DEATH(array.data<double>(), "the array is <f4, not <f8");
}

}  // namespace
}  // namespace voxserve::support::npz_test
