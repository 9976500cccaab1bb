// Tests how FromResponse reads an answer's tensors, and its errors for tensors that contradict themselves or their
// request.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "client/cpp/api/error.h"
#include "client/cpp/api/response.h"

namespace voxserve::client::tensor_response_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

v1::InferResponse Sites() {
  v1::InferResponse response;
  v1::Tensor& tensor = *response.add_tensors();
  tensor.set_name("t");
  tensor.add_shape(2);
  tensor.add_shape(3);
  tensor.set_type(v1::ELEMENT_TYPE_FLOAT32);
  tensor.set_data(std::string(24, '\0'));
  tensor.set_rows(v1::TENSOR_ROWS_SITES);
  tensor.set_coordinates(std::string(16, '\0'));
  tensor.add_unit(1);
  tensor.add_unit(2);
  return response;
}

absl::StatusOr<Answer> Read(const v1::InferResponse& response, const Asked& asked = {.num_points = 5}) {
  return FromResponse<Answer>(response, asked, absl::InfinitePast());
}

TEST(TensorResponseTest, AWholeOneIsTaken) {
  const auto answer = Read(Sites(), {.num_points = 5, .tensors = {.names = {"t"}}});
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_THAT(answer->tensors[0].shape, ElementsAre(2, 3));
  EXPECT_EQ(answer->tensors[0].floats().size(), 6u);
  EXPECT_EQ(answer->tensors[0].coordinates().size(), 4u);
  EXPECT_THAT(answer->tensors[0].unit, ElementsAre(1, 2));
}

TEST(TensorResponseTest, OnesThatContradictThemselvesAreMalformed) {
  const struct {
    std::function<void(v1::Tensor&)> spoil;
    const char* text;
  } cases[] = {
      {[](v1::Tensor& t) { t.set_shape(0, 3); }, "24 bytes for 9 values"},
      {[](v1::Tensor& t) { t.set_shape(0, uint64_t{1} << 63); }, "a shape beyond its bytes"},
      {[](v1::Tensor& t) { t.mutable_shape()->RemoveLast(); }, "1 axes"},
      {[](v1::Tensor& t) { t.set_type(v1::ELEMENT_TYPE_FLOAT16); }, "element type 2"},
      {[](v1::Tensor& t) { t.set_rows(v1::TENSOR_ROWS_POINTS); }, "2 rows for 5 points"},
      {[](v1::Tensor& t) { t.set_rows(v1::TENSOR_ROWS_UNSPECIFIED); }, "rows of kind 0"},
      {[](v1::Tensor& t) { t.clear_unit(); }, "16 bytes of coordinates for 2 sites"},
      {[](v1::Tensor& t) { t.clear_coordinates(); }, "0 bytes of coordinates for 2 sites"},
  };
  for (const auto& [spoil, text] : cases) {
    v1::InferResponse response = Sites();
    spoil(*response.mutable_tensors(0));
    const absl::Status status = Read(response).status();
    EXPECT_EQ(ErrorReason(status), "MALFORMED_RESPONSE") << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  }
}

TEST(TensorResponseTest, NoneWhereNoneWasNamedIsTheCallersMistake) {
  v1::InferResponse response;
  response.set_model("m");
  response.mutable_detections();
  EXPECT_THAT(std::string(Read(response).status().message()), HasSubstr("model \"m\" answers boxes, and tensors only"));
  response.mutable_segmentation()->set_bytes_per_label(1);
  const absl::Status labels = Read(response, {.num_points = 0}).status();
  EXPECT_EQ(ErrorReason(labels), "UNSUPPORTED_OUTPUT");
  EXPECT_THAT(std::string(labels.message()), HasSubstr("answers labels, and tensors only where they are named"));
}

TEST(TensorResponseTest, AMissingOneAndOneThatStandsTwiceAreMalformed) {
  const absl::Status missing = Read(Sites(), {.tensors = {.names = {"other"}}}).status();
  EXPECT_THAT(std::string(missing.message()), HasSubstr("no tensor \"other\""));
  v1::InferResponse twice = Sites();
  *twice.add_tensors() = twice.tensors(0);
  EXPECT_THAT(std::string(Read(twice).status().message()), HasSubstr("two tensors \"t\""));
  EXPECT_THAT(std::string(Read(v1::InferResponse()).status().message()),
              HasSubstr("neither labels nor boxes nor tensors"));
}

}  // namespace
}  // namespace voxserve::client::tensor_response_test
