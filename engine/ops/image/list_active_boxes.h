#pragma once

// ListActiveBoxesStep lists the boxes of images in which convolutions depend on sites or on the border
// (kernels/image/sites/active_boxes.h). The convolutions behind it compute these, and one of the others. Only programs
// for a GPU have it.

#include "engine/ops/step.h"
#include "kernels/image/sites/active_boxes.h"
#include "kernels/image/sites/site_grid.h"

namespace voxserve {

class ListActiveBoxesStep final : public Step {
 public:
  struct Options {
    int level = 0;           // of the sites, one of Program::key_levels
    kernels::SiteGrid grid;  // as in ToDenseStep, as is the next
    int32_t depth = 1;
    // On kSampleLevel, float32: the lists, layout().IntsAnImage() values of 4 bytes for each sample. The buffer grows
    // as convolutions are added, so the slice's columns do not count.
    BufferSlice out;
  };

  // rows, columns: of the image that the sites make.
  ListActiveBoxesStep(const Options& options, int32_t rows, int32_t columns)
      : options_(options), layout_(rows, columns) {}

  // Adds a convolution, before the program is complete. Returns its number, -1 if there are too many.
  int Add(const kernels::ListedConv& conv) { return layout_.Add(conv); }

  absl::Status Run(const StepContext& context) const override;

  const Options& options() const { return options_; }
  const kernels::ActiveBoxLayout& layout() const { return layout_; }
  // Returns the list of a convolution in the batch's memory.
  kernels::ActiveBoxList ListOf(const StepContext& context, int number) const;

 private:
  const Options options_;
  kernels::ActiveBoxLayout layout_;
};

}  // namespace voxserve
