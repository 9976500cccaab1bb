#include "client/cpp/cli/printable.h"

#include <gtest/gtest.h>

#include <string>

#include "voxserve/v1/inference.pb.h"

namespace voxserve::client::printable_test {
namespace {

TEST(PrintableTest, TextStaysAsItIs) {
  for (const std::string text : {"", "minkunet version 1, \"road\" \\ 100%", "Fußgänger 行人 🚗 é", "\xEF\xBF\xBD"}) {
    EXPECT_EQ(Printable(text), text);
  }
}

TEST(PrintableTest, ControlCharactersAreEscaped) {
  EXPECT_EQ(Printable("\x1b[2J\x1b]0;title\x07"), "\\u001b[2J\\u001b]0;title\\u0007");
  EXPECT_EQ(Printable("ok\r\nvoxserve-client: done\t!"), "ok\\u000d\\nvoxserve-client: done\\u0009!");
  EXPECT_EQ(Printable("\x7f|\xC2\x9B"
                      "31m|\xC2\xA0"),
            "\\u007f|\\u009b31m|\xC2\xA0");
  EXPECT_EQ(Printable(std::string("a\0b", 3)), "a\\u0000b");
  EXPECT_EQ(Printable("\u202Egnp.exe \u2066x\u2069 \u200F \u2028"), "\\u202egnp.exe \\u2066x\\u2069 \\u200f \\u2028");
}

TEST(PrintableTest, BytesThatAreNoUtf8AreEscaped) {
  EXPECT_EQ(Printable("\xff\x9b\xC3"), "\\xff\\x9b\\xc3");
  EXPECT_EQ(Printable("\xC0\xAF \xC1\x81"), "\\xc0\\xaf \\xc1\\x81") << "longer than needed";
  EXPECT_EQ(Printable("\xE0\x82\x9B \xF0\x80\x82\x9B"), "\\xe0\\x82\\x9b \\xf0\\x80\\x82\\x9b");
  EXPECT_EQ(Printable("\xED\xA0\x80"), "\\xed\\xa0\\x80") << "half of a surrogate pair";
  EXPECT_EQ(Printable("\xF4\x90\x80\x80 \xF5\x80\x80\x80"), "\\xf4\\x90\\x80\\x80 \\xf5\\x80\\x80\\x80");
  EXPECT_EQ(Printable("\xE8\xA1"), "\\xe8\\xa1") << "cut short";
  EXPECT_EQ(Printable("\xF4\x8F\xBF\xBF \xEE\x80\x80"), "\xF4\x8F\xBF\xBF \xEE\x80\x80") << "the largest character";
}

TEST(PrintableTest, EveryTextOfAMessageIs) {
  v1::ModelVersion model;
  model.set_name("\x1b[1m");
  model.set_num_parameters(7);
  model.add_problems("a\nb");
  model.add_classes()->set_name("\x07");
  model.add_classes()->set_color_rgb(5);
  MakePrintable(&model);
  EXPECT_EQ(model.name(), "\\u001b[1m");
  EXPECT_EQ(model.num_parameters(), 7u);
  EXPECT_EQ(model.problems(0), "a\\nb");
  EXPECT_EQ(model.classes(0).name(), "\\u0007");
  EXPECT_EQ(model.classes(1).color_rgb(), 5u);
  v1::InferResponse response;
  response.mutable_segmentation()->set_labels("\x1b");
  MakePrintable(&response);
  EXPECT_EQ(response.segmentation().labels(), "\x1b") << "these are bytes, no text";
}

TEST(PrintableTest, EveryTextOfAnAnswerIs) {
  Answer answer;
  answer.model = answer.device = answer.request_id = "\x1b";
  answer.stages.push_back({.name = "\x1b"});
  answer.tensors.push_back({.name = "\x1b"});
  answer.warnings.emplace_back().set_feature("\x1b");
  MakePrintable(&answer);
  for (const std::string& text : {answer.model, answer.device, answer.request_id, answer.stages[0].name,
                                  answer.tensors[0].name, answer.warnings[0].feature()}) {
    EXPECT_EQ(text, "\\u001b");
  }
}

}  // namespace
}  // namespace voxserve::client::printable_test
