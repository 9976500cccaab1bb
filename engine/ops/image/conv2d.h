#pragma once

// Conv2dStep computes a 2D convolution of dense images, ordinary or transposed, followed by its epilogue:
// out = epilogue(conv(in)). kernels/image/conv2d.h defines the convolution.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/ops/image/list_active_boxes.h"
#include "engine/ops/step.h"
#include "kernels/image/conv2d.h"

namespace voxserve {

class Conv2dStep final : public Step {
 public:
  struct Options {
    BufferSlice in, out;  // the images of all samples, on kSampleLevel; the two must not overlap
    int32_t in_rows = 0;  // rows of one image
    int32_t in_columns = 0;
    kernels::Conv2dGeometry geometry;
    FusedEpilogue epilogue;
    DType dtype = DType::kFloat32;  // the type of `in`, the weights and the residual
    bool allow_tf32 = false;        // a GPU may round float32 factors to TensorFloat-32
    bool on_cuda = false;
    // On a GPU: which boxes of the output depend on sites. Without `lists` all are computed.
    struct ActiveBoxes {
      const ListActiveBoxesStep* lists = nullptr;  // an earlier step of the program
      int number = 0;                              // of this convolution in it
    } active;
  };

  // weights: as PyTorch stores them, with batch norms folded in.
  Conv2dStep(Options options, std::vector<float> weights);

  // Returns INTERNAL if oneDNN refuses the convolution on the CPU. Check finds this before a batch runs.
  absl::Status Run(const StepContext& context) const override;
  absl::Status Check() const override;
  absl::Status Upload(WeightUploader& uploader) override;

  // Returns true if steps for the present GPU and this type of features can leave out boxes that a list calls quiet.
  static bool CanLeaveOutBoxes(DType dtype);

  const Options& options() const { return options_; }

 private:
  // Returns the parameters without pointers.
  kernels::Conv2dParams FixedParams() const;

  Options options_;
  Weights weights_;      // packed for the device; Upload copies them to a GPU
  std::string refusal_;  // why oneDNN refused to pack the weights; empty if it packed them
};

}  // namespace voxserve
