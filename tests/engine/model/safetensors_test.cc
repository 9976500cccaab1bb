// Tests the reader of safetensors files with valid files, and with files that are hostile or damaged in every way.

#include "engine/model/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <stop_token>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/model/digest.h"
#include "tests/support/model_folder.h"

namespace voxserve::safetensors_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using voxserve::support::FloatTensor;
using voxserve::support::Safetensors;
using voxserve::support::SafetensorsFile;

Problems ProblemsIn(const std::string& file) {
  Problems problems;
  ParseSafetensors(file, &problems);
  return problems;
}

// Returns the problems of a file with one tensor, whose header entry is given.
Problems ProblemsOfEntry(const std::string& entry, size_t data_bytes) {
  return ProblemsIn(SafetensorsFile("{\"a\":" + entry + "}", std::string(data_bytes, '\0')));
}

TEST(SafetensorsTest, ReadsTensorsByName) {
  const std::string file = Safetensors({{"a", FloatTensor({2, 2}, {1, -2, 3.5F, 0})}, {"b", {"I64", {1}, "12345678"}}});
  Problems problems;
  const StoredTensors tensors = ParseSafetensors(file, &problems);
  EXPECT_THAT(problems, IsEmpty());
  EXPECT_TRUE(tensors.is_listed);
  ASSERT_EQ(tensors.by_name.size(), 2U);
  const StoredTensor& a = tensors.by_name.at("a");
  EXPECT_EQ(a.dtype, "F32");
  EXPECT_TRUE(IsFloatTensor(a));
  EXPECT_EQ(NumValues(a), 4);
  EXPECT_THAT(ToHostTensor(a).shape, ElementsAre(2, 2));
  EXPECT_THAT(ToHostTensor(a).values, ElementsAre(1.0F, -2.0F, 3.5F, 0.0F));
  EXPECT_FALSE(IsFloatTensor(tensors.by_name.at("b")));
  EXPECT_EQ(tensors.by_name.at("b").bytes, "12345678");
}

TEST(SafetensorsTest, ReadsScalarsEmptyTensorsAndMetadata) {
  const std::string file =
      SafetensorsFile(R"({"__metadata__":{"format":"pt"},"none":{"dtype":"F16","shape":[3,0],"data_offsets":[4,4]},)"
                      R"("one":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}   )",
                      std::string("\0\0\x80\x3f", 4));
  Problems problems;
  const StoredTensors tensors = ParseSafetensors(file, &problems);
  EXPECT_THAT(problems, IsEmpty());
  EXPECT_THAT(ToHostTensor(tensors.by_name.at("one")).values, ElementsAre(1.0F));
  EXPECT_THAT(ToHostTensor(tensors.by_name.at("none")).values, IsEmpty());
  EXPECT_THAT(ToHostTensor(tensors.by_name.at("none")).shape, ElementsAre(3, 0));
}

TEST(SafetensorsTest, NoTensorsIsAFile) { EXPECT_THAT(ProblemsIn(SafetensorsFile("{}", "")), IsEmpty()); }

TEST(SafetensorsTest, Headers) {
  EXPECT_THAT(ProblemsIn("1234567"), ElementsAre("weights.safetensors: has 7 bytes; the header's size alone takes 8"));
  EXPECT_THAT(
      ProblemsIn(std::string("\x03\0\0\0\0\0\0\0{}", 10)),
      ElementsAre("weights.safetensors: says that its header has 3 bytes, of 2 after the size; at most 16777216 "
                  "are possible"));
  EXPECT_THAT(ProblemsIn(std::string(8, '\xff') + "{}"),
              ElementsAre(HasSubstr("says that its header has 18446744073709551615 bytes, of 2 after the size")));
  EXPECT_THAT(ProblemsIn(SafetensorsFile("", "")), ElementsAre(HasSubstr("its header is not valid JSON")));
  EXPECT_THAT(ProblemsIn(SafetensorsFile("{\"a\":", "")), ElementsAre(HasSubstr("its header is not valid JSON")));
  EXPECT_THAT(ProblemsIn(SafetensorsFile("{\"\xff\":1}", "")), ElementsAre(HasSubstr("its header is not valid JSON")));
  EXPECT_THAT(ProblemsIn(SafetensorsFile("[]", "")),
              ElementsAre("weights.safetensors: its header is not a JSON object"));
}

TEST(SafetensorsTest, Entries) {
  const std::string incomplete = "tensor \"a\": its header entry needs dtype, shape and data_offsets";
  EXPECT_THAT(ProblemsOfEntry("1", 0), ElementsAre(incomplete));
  EXPECT_THAT(ProblemsOfEntry(R"({"shape":[1],"data_offsets":[0,4]})", 4), ElementsAre(incomplete));
  EXPECT_THAT(ProblemsOfEntry(R"({"dtype":"F32","shape":1,"data_offsets":[0,4]})", 4), ElementsAre(incomplete));
  EXPECT_THAT(ProblemsOfEntry(R"({"dtype":"F32","shape":[1],"data_offsets":4})", 4), ElementsAre(incomplete));
  EXPECT_THAT(ProblemsOfEntry(R"({"dtype":"F31","shape":[1],"data_offsets":[0,4]})", 4),
              ElementsAre("tensor \"a\": has the unknown dtype \"F31\""));
}

TEST(SafetensorsTest, Shapes) {
  const std::string problem = "tensor \"a\": its shape is not a list of sizes, or too large";
  for (const std::string shape : {"[-1]", "[1.5]", "[\"1\"]", "[null]", "[18446744073709551615]",
                                  "[4294967296,4294967296]", "[4611686018427387904,1]", "[0,4294967296,4294967296]"}) {
    EXPECT_THAT(ProblemsOfEntry("{\"dtype\":\"F32\",\"shape\":" + shape + ",\"data_offsets\":[0,4]}", 4),
                ElementsAre(problem))
        << shape;
  }
}

TEST(SafetensorsTest, Offsets) {
  const auto problems_with = [](const std::string& offsets) {
    return ProblemsOfEntry("{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":" + offsets + "}", 4);
  };
  for (const std::string offsets : {"[0]", "[0,4,8]", "[-4,0]", "[0.0,4.0]", "[\"0\",\"4\"]"}) {
    EXPECT_THAT(problems_with(offsets), ElementsAre("tensor \"a\": its data_offsets are not [begin, end]")) << offsets;
  }
  EXPECT_THAT(problems_with("[4,0]"),
              ElementsAre("tensor \"a\": has data_offsets [4, 0] outside of the file's 4 data bytes"));
  EXPECT_THAT(problems_with("[0,5]"),
              ElementsAre("tensor \"a\": has data_offsets [0, 5] outside of the file's 4 data bytes"));
  EXPECT_THAT(problems_with("[0,18446744073709551615]"),
              ElementsAre(HasSubstr("[0, 18446744073709551615] outside of the file's 4 data bytes")));
  EXPECT_THAT(ProblemsOfEntry(R"({"dtype":"F16","shape":[1],"data_offsets":[0,4]})", 4),
              ElementsAre("tensor \"a\": has 4 bytes, but F16 [1] takes 2"));
}

TEST(SafetensorsTest, BrokenTensorsAreRemembered) {
  Problems problems;
  const StoredTensors tensors =
      ParseSafetensors(SafetensorsFile(R"({"a":{"dtype":"F31","shape":[],"data_offsets":[0,4]},)"
                                       R"("b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                                       std::string(8, '\0')),
                       &problems);
  EXPECT_EQ(problems.size(), 1U);
  EXPECT_THAT(tensors.broken, ElementsAre("a"));
  EXPECT_EQ(tensors.by_name.size(), 1U);
}

TEST(SafetensorsTest, TensorsMustFillTheFile) {
  const std::string two = R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                          R"("b":{"dtype":"U8","shape":[4],"data_offsets":)";
  EXPECT_THAT(ProblemsIn(SafetensorsFile(two + "[4,8]}}", "12345678")), IsEmpty());
  EXPECT_THAT(ProblemsIn(SafetensorsFile(two + "[2,6]}}", "123456")),
              ElementsAre("tensor \"b\": begins at data byte 2 and overlaps tensor \"a\", which ends at 4"));
  EXPECT_THAT(ProblemsIn(SafetensorsFile(two + "[0,4]}}", "1234")),
              ElementsAre("tensor \"b\": begins at data byte 0 and overlaps tensor \"a\", which ends at 4"));
  EXPECT_THAT(ProblemsIn(SafetensorsFile(two + "[6,10]}}", "1234567890")),
              ElementsAre("weights.safetensors: data bytes 4 to 6 belong to no tensor"));
  EXPECT_THAT(ProblemsIn(SafetensorsFile(two + "[4,8]}}", "1234567890")),
              ElementsAre("weights.safetensors: data bytes 8 to 10 belong to no tensor"));
  EXPECT_THAT(ProblemsIn(SafetensorsFile("{}", "1")),
              ElementsAre("weights.safetensors: data bytes 0 to 1 belong to no tensor"));
}

TEST(SafetensorsTest, NamesMustBeUnique) {
  const std::string entry = R"({"dtype":"U8","shape":[1],"data_offsets":[0,1]})";
  EXPECT_THAT(ProblemsIn(SafetensorsFile("{\"a\":" + entry + ",\"a\":" + entry + "}", "1")),
              ElementsAre("tensor \"a\": appears twice in weights.safetensors"));
}

TEST(SafetensorsTest, OfANameThatAppearsTwiceTheFirstIsRead) {
  const std::string file = SafetensorsFile(
      R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"a":{"dtype":"F32","shape":[],"data_offsets":[0,9]}})",
      "12");
  EXPECT_THAT(ProblemsIn(file), ElementsAre("tensor \"a\": appears twice in weights.safetensors"));
}

TEST(SafetensorsTest, FieldsThatNobodyReadsMayBeAnything) {
  const std::string more = R"("x":[[1],{"dtype":"I8","shape":[9]}],"y":null,"z":-1.5e3,"u":{"shape":[7]})";
  EXPECT_THAT(ProblemsIn(SafetensorsFile(R"({"__metadata__":{"a":[[1]],"dtype":"F32"},"a":{)" + more +
                                             R"(,"dtype":"U8",)" + more + R"(,"shape":[2],"data_offsets":[0,2]}})",
                                         "12")),
              IsEmpty());
}

TEST(SafetensorsTest, FieldsOfAnotherPlaceDoNotCount) {
  const std::string incomplete = "tensor \"a\": its header entry needs dtype, shape and data_offsets";
  for (const std::string entry :
       {R"(["dtype","F32"])", R"({"x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
        R"([{"dtype":"U8","shape":[0],"data_offsets":[0,0]}])",
        R"({"dtype":"U8","shape":{"0":1},"data_offsets":[0,0]})", R"("dtype")", "[]", "{}", "null", "true"}) {
    EXPECT_THAT(ProblemsOfEntry(entry, 0), ElementsAre(incomplete)) << entry;
  }
  for (const std::string shape :
       {"[[1]]", "[1,[1]]", "[{\"dtype\":1}]", "[true]", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]"}) {
    EXPECT_THAT(ProblemsOfEntry("{\"dtype\":\"U8\",\"shape\":" + shape + ",\"data_offsets\":[0,1]}", 1),
                ElementsAre("tensor \"a\": its shape is not a list of sizes, or too large"))
        << shape;
  }
}

TEST(SafetensorsTest, NumbersOfTensorsAndTheirHeaderAreBounded) {
  const auto file_of = [](size_t num_tensors) {
    std::string header = "{";
    for (size_t i = 0; i < num_tensors; ++i) {
      absl::StrAppend(&header, i == 0 ? "" : ",", "\"t", i, R"(":{"dtype":"F32","shape":[0],"data_offsets":[0,0]})");
    }
    return SafetensorsFile(header + "}", "");
  };
  Problems problems;
  EXPECT_EQ(ParseSafetensors(file_of(kMaxStoredTensors), &problems).by_name.size(), kMaxStoredTensors);
  EXPECT_THAT(problems, IsEmpty());
  EXPECT_FALSE(ParseSafetensors(file_of(kMaxStoredTensors + 1), &problems).is_listed);
  EXPECT_THAT(problems, ElementsAre("weights.safetensors: has more than 65536 tensors; at most so many are possible"));
  EXPECT_THAT(ProblemsIn(SafetensorsFile("{}" + std::string(kMaxSafetensorsHeaderBytes - 2, ' '), "")), IsEmpty());
  EXPECT_THAT(ProblemsIn(SafetensorsFile("{}" + std::string(kMaxSafetensorsHeaderBytes - 1, ' '), "")),
              ElementsAre(HasSubstr("says that its header has 16777217 bytes, of 16777217 after the size; at most "
                                    "16777216 are possible")));
}

TEST(SafetensorsTest, DeepNestingIsAProblemAndNoCrash) {
  const std::string deep = std::string(200'000, '[') + std::string(200'000, ']');
  EXPECT_THAT(ProblemsOfEntry("{\"dtype\":\"F32\",\"shape\":" + deep + ",\"data_offsets\":[0,4]}", 4),
              ElementsAre(HasSubstr("its shape is not a list of sizes")));
}

TEST(SafetensorsTest, NoCutOrFlippedByteGoesPastTheEnd) {
  const std::string file = Safetensors({{"a", FloatTensor({2}, {1, 2})}, {"b", {"F16", {3}, "123456"}}});
  const auto read_all = [](const std::string& bytes) {
    Problems problems;
    size_t num_values = 0;
    for (const auto& [name, tensor] : ParseSafetensors(bytes, &problems).by_name) {
      if (IsFloatTensor(tensor)) num_values += ToHostTensor(tensor).values.size();
    }
    return std::pair(num_values, problems);
  };
  for (size_t size = 0; size < file.size(); ++size) {
    EXPECT_FALSE(read_all(file.substr(0, size)).second.empty()) << size;
  }
  std::mt19937 random(3);
  for (int repetition = 0; repetition < 2000; ++repetition) {
    std::string damaged = file;
    for (int flips = 0; flips < 3; ++flips) damaged[random() % damaged.size()] = static_cast<char>(random());
    EXPECT_LE(read_all(damaged).first, file.size() / 2);
  }
}

TEST(DigestTest, IsSha256OfSizesAndParts) {
  // Computed in Python: hashlib.sha256(struct.pack("<Q", 3) + b"abc" + struct.pack("<Q", 0)).
  EXPECT_EQ(Sha256OfParts({"abc", ""}), "3e2f8940c3a0e0fd6f6e07bbf07f015dd7c147431e5fa14bf3f225d782641540");
  EXPECT_EQ(Sha256OfParts({}), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_NE(Sha256OfParts({"ab", "c"}), Sha256OfParts({"a", "bc"}));
  // Parts are hashed in pieces. Computed in Python as above, of 100,000,000 bytes "x".
  EXPECT_EQ(Sha256OfParts({std::string(100'000'000, 'x')}),
            "80b3f1d19e048c69c77ba66394585dd75c916e5872c019dc676815927c411cf7");
  std::stop_source stop;
  stop.request_stop();
  EXPECT_NE(Sha256OfParts({"abc"}, stop.get_token()), Sha256OfParts({"abc"}));
}

}  // namespace
}  // namespace voxserve::safetensors_test
