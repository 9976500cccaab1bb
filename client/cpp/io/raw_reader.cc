#include "client/cpp/io/raw_reader.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace voxserve::client {

absl::StatusOr<PointCloud> ReadRaw(std::string contents, const FieldSpec& spec) {
  if (contents.size() % spec.point_step != 0) {
    return absl::InvalidArgumentError(absl::StrCat(contents.size(), " bytes are not a whole number of ",
                                                   spec.point_step, "-byte points (", Describe(spec.fields),
                                                   "); name the layout with --fields, e.g. --fields "
                                                   "x:f32,y:f32,z:f32,intensity:f32,-:f32 for five floats a point"));
  }
  PointCloud cloud;
  cloud.set_num_points(contents.size() / spec.point_step);
  cloud.set_point_step(spec.point_step);
  cloud.mutable_fields()->Add(spec.fields.begin(), spec.fields.end());
  cloud.set_data(std::move(contents));
  return cloud;
}

}  // namespace voxserve::client
