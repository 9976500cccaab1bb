#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cassert>
#include <dnnl.hpp>
#include <memory>
#include <new>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kernels/image/conv2d.h"
#include "kernels/image/conv2d_few_outputs.h"
#include "kernels/image/conv2d_phase.h"

namespace voxserve::kernels::cpu {
namespace {

using dnnl::memory;

// A band is a range of rows of one image's outputs, of one phase (conv2d_phase.h), that a thread computes at a time.
// The band's inputs and outputs should have at most this size, so that they stay in a core's L2 cache.
constexpr int64_t kBandBytes = 512 << 10;
// Bands of an image per thread. There are several, so that no thread waits long for other threads' last bands.
constexpr int64_t kBandsAThread = 3;
// oneDNN chooses the layout of weights for an image of this size.
constexpr int64_t kUsualRows = 4, kUsualColumns = 64;
constexpr size_t kWeightAlignment = 16;  // in floats

// Makes oneDNN use one thread for the calls of this thread. oneDNN chooses layouts by its number of threads, so all
// calls must see the same number: weights that are packed for 16 threads would be read in another order later.
class OneLibraryThread {
 public:
  OneLibraryThread() { omp_set_num_threads(1); }
  ~OneLibraryThread() { omp_set_num_threads(before_); }
  OneLibraryThread(const OneLibraryThread&) = delete;
  OneLibraryThread& operator=(const OneLibraryThread&) = delete;

 private:
  const int before_ = omp_get_max_threads();
};

// Runs `call`, which calls oneDNN, perhaps on other threads. Returns "", or the reason why oneDNN refused the call.
// Throws std::bad_alloc if oneDNN has no memory left.
template <typename Call>
std::string RefusalOf(const Call& call) {
  const OneLibraryThread one_thread;
  try {
    call();
  } catch (const dnnl::error& error) {
    if (error.status == dnnl_out_of_memory) throw std::bad_alloc();
    return std::string("oneDNN refuses it: ") + error.what();
  }
  return "";
}

const dnnl::engine& Cpu() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

// One phase of an image's outputs.
struct ImagePhase {
  Conv2dPhase rows, columns;

  ImagePhase(const Conv2dGeometry& geometry, int32_t in_rows, int32_t in_columns, int32_t phase)
      : rows(PhaseOf(geometry, 0, in_rows, phase / NumPhases(geometry, 1))),
        columns(PhaseOf(geometry, 1, in_columns, phase % NumPhases(geometry, 1))) {}

  bool HasCells() const { return rows.num_cells > 0 && columns.num_cells > 0; }
};

int32_t NumPhases(const Conv2dGeometry& geometry) {
  return kernels::NumPhases(geometry, 0) * kernels::NumPhases(geometry, 1);
}

// Returns the number of inputs that this many neighbouring outputs read, from the first output's first cell on.
int64_t Reach(const Conv2dPhase& phase, int64_t num_outputs) {
  return (num_outputs - 1) * phase.in_step + int64_t{phase.num_cells - 1} * phase.cell_reach + 1;
}

// Describes the convolution of one band, without padding. It adds its sums to the values that the outputs have before.
dnnl::convolution_forward::primitive_desc BandConvolution(const ImagePhase& phase, int32_t groups, int32_t in_channels,
                                                          int32_t out_channels, int64_t num_rows, int64_t num_columns,
                                                          const memory::desc* weights) {
  const Conv2dPhase &rows = phase.rows, &columns = phase.columns;
  const auto image = [](int64_t channels, int64_t r, int64_t c) {
    return memory::desc({1, channels, r, c}, memory::data_type::f32, memory::format_tag::nhwc);
  };
  memory::dims weight_dims = {out_channels / groups, in_channels / groups, rows.num_cells, columns.num_cells};
  if (groups > 1) weight_dims.insert(weight_dims.begin(), groups);
  const memory::desc any_weights(weight_dims, memory::data_type::f32, memory::format_tag::any);
  dnnl::post_ops post_ops;
  post_ops.append_sum();
  dnnl::primitive_attr attributes;
  attributes.set_post_ops(post_ops);
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);  // several threads run one primitive
  const dnnl::convolution_forward::desc desc(
      dnnl::prop_kind::forward_inference, dnnl::algorithm::convolution_direct,
      image(in_channels, Reach(rows, num_rows), Reach(columns, num_columns)),
      weights != nullptr ? *weights : any_weights, image(out_channels, num_rows, num_columns),
      {rows.in_step, columns.in_step}, {rows.cell_reach - 1, columns.cell_reach - 1}, {0, 0}, {0, 0});
  return dnnl::convolution_forward::primitive_desc(desc, attributes, Cpu());
}

// Returns the layout of a phase's weights. Images of all sizes use the layout that oneDNN chooses for the usual size.
memory::desc WeightsOf(const ImagePhase& phase, const Conv2dGeometry& geometry, int32_t in_channels,
                       int32_t out_channels) {
  return BandConvolution(phase, geometry.groups, in_channels, out_channels, kUsualRows, kUsualColumns, nullptr)
      .weights_desc();
}

size_t FloatsOf(const memory::desc& weights) {
  return (weights.get_size() / sizeof(float) + kWeightAlignment - 1) / kWeightAlignment * kWeightAlignment;
}

// A thread's memory while it computes bands.
struct Scratch {
  std::vector<float> in, out;
  std::vector<uint8_t> library;
};

// A phase of one call, with a oneDNN primitive for each number of rows that a band has.
class PhaseConvolution {
 public:
  PhaseConvolution(const Conv2dParams& params, const ImagePhase& phase, const float* weights,
                   const memory::desc& weights_desc)
      : params_(params), phase_(phase), weights_(weights), weights_desc_(weights_desc) {}

  // Must be called before ComputeBand computes a band of this many rows.
  void Prepare(int64_t num_rows) {
    if (!phase_.HasCells() || primitives_.contains(num_rows)) return;
    primitives_.emplace(
        num_rows, BandConvolution(phase_, params_.geometry.groups, params_.in.channels, params_.out.channels, num_rows,
                                  phase_.columns.num_outputs, &weights_desc_));
  }

  void ComputeBand(int64_t image, int64_t first_row, int64_t num_rows, Scratch& scratch) const {
    const Conv2dPhase &rows = phase_.rows, &columns = phase_.columns;
    const int64_t num_columns = columns.num_outputs;
    const int64_t channels = params_.out.channels;
    const bool is_direct = rows.out_step == 1 && columns.out_step == 1 && params_.out.pitch == channels;
    float* const out = params_.out.floats();
    if (!is_direct) scratch.out.resize(static_cast<size_t>(num_rows * num_columns * channels));
    float* const band = is_direct ? out + Position(image, first_row) * channels : scratch.out.data();

    const Rows sums{
        .data = band, .channels = params_.out.channels, .pitch = channels, .capacity = num_rows * num_columns};
    for (int64_t row = 0; row < num_rows; ++row) {
      Rows row_sums = sums;
      row_sums.data = sums.floats(row * num_columns);
      StartRows(EpilogueOf(Position(image, first_row + row)), row_sums, 0, num_columns);
    }
    if (phase_.HasCells()) Convolve(InputsOf(image, first_row, num_rows, scratch), band, num_rows, scratch);
    FinishRows(params_.epilogue, sums, 0, sums.capacity);
    if (is_direct) return;
    const float* from = band;
    for (int64_t row = 0; row < num_rows; ++row) {
      float* to = out + Position(image, first_row + row) * params_.out.pitch;
      for (int64_t column = 0; column < num_columns; ++column) {
        std::copy_n(from, channels, to);
        from += channels;
        to += columns.out_step * params_.out.pitch;
      }
    }
  }

 private:
  // Returns the position of a row's first output.
  int64_t Position(int64_t image, int64_t row) const {
    const Conv2dGeometry& geometry = params_.geometry;
    const int64_t out_row = phase_.rows.out_begin + row * phase_.rows.out_step;
    return (image * geometry.OutSize(0, params_.in_rows) + out_row) * geometry.OutSize(1, params_.in_columns) +
           phase_.columns.out_begin;
  }

  // Returns the epilogue for the outputs of a row that begins at a position.
  Epilogue EpilogueOf(int64_t position) const {
    Epilogue epilogue = params_.epilogue;
    if (epilogue.residual.data != nullptr) {
      epilogue.residual.data = epilogue.residual.floats(position);
      epilogue.residual.pitch *= phase_.columns.out_step;
    }
    return epilogue;
  }

  // Returns the inputs that a band reads, one position after the other, with zeros outside the image.
  const float* InputsOf(int64_t image, int64_t first_row, int64_t num_rows, Scratch& scratch) const {
    const int64_t row_begin = phase_.rows.in_begin + first_row * phase_.rows.in_step;
    const int64_t column_begin = phase_.columns.in_begin;
    const int64_t in_rows = Reach(phase_.rows, num_rows),
                  in_columns = Reach(phase_.columns, phase_.columns.num_outputs);
    const int64_t channels = params_.in.channels;
    const float* const in = params_.in.floats(image * params_.in_rows * params_.in_columns);
    if (params_.in.pitch == channels && column_begin == 0 && in_columns == params_.in_columns && row_begin >= 0 &&
        row_begin + in_rows <= params_.in_rows) {
      return in + row_begin * in_columns * channels;
    }
    scratch.in.resize(static_cast<size_t>(in_rows * in_columns * channels));
    const int64_t left = std::clamp<int64_t>(-column_begin, 0, in_columns);
    const int64_t right = std::clamp<int64_t>(params_.in_columns - column_begin, left, in_columns);
    float* to = scratch.in.data();
    for (int64_t row = row_begin; row < row_begin + in_rows; ++row, to += in_columns * channels) {
      if (row < 0 || row >= params_.in_rows) {
        std::fill_n(to, in_columns * channels, 0.0f);
        continue;
      }
      std::fill_n(to, left * channels, 0.0f);
      const float* const from = in + (row * params_.in_columns + column_begin) * params_.in.pitch;
      if (params_.in.pitch == channels) {
        std::copy(from + left * channels, from + right * channels, to + left * channels);
      } else {
        for (int64_t column = left; column < right; ++column) {
          std::copy_n(from + column * params_.in.pitch, channels, to + column * channels);
        }
      }
      std::fill_n(to + right * channels, (in_columns - right) * channels, 0.0f);
    }
    return scratch.in.data();
  }

  void Convolve(const float* in, float* out, int64_t num_rows, Scratch& scratch) const {
    const dnnl::convolution_forward& primitive = primitives_.at(num_rows);
    const memory::desc scratchpad =
        memory::desc(*dnnl_primitive_desc_query_md(primitive.get_primitive_desc(), dnnl_query_scratchpad_md, 0));
    scratch.library.resize(std::max(scratch.library.size(), scratchpad.get_size()));
    const auto md = [&](dnnl_query_t what, int index) {
      return memory::desc(*dnnl_primitive_desc_query_md(primitive.get_primitive_desc(), what, index));
    };
    // oneDNN's interface takes all pointers as writable.
    dnnl::stream stream(Cpu());
    primitive.execute(stream, {{DNNL_ARG_SRC, memory(md(dnnl_query_src_md, 0), Cpu(), const_cast<float*>(in))},
                               {DNNL_ARG_WEIGHTS, memory(weights_desc_, Cpu(), const_cast<float*>(weights_))},
                               {DNNL_ARG_DST, memory(md(dnnl_query_dst_md, 0), Cpu(), out)},
                               {DNNL_ARG_SCRATCHPAD, memory(scratchpad, Cpu(), scratch.library.data())}});
    stream.wait();
  }

  const Conv2dParams& params_;
  ImagePhase phase_;
  const float* weights_;
  memory::desc weights_desc_;
  std::unordered_map<int64_t, dnnl::convolution_forward> primitives_;
};

// Returns the number of rows of a band. It must not depend on the number of images, since oneDNN may add products in
// another order if the band has another size.
int64_t BandRows(const Conv2dParams& params, const ImagePhase& phase, int num_threads) {
  const int64_t row_floats =
      int64_t{phase.columns.num_outputs} *
      (params.out.channels + int64_t{params.in.channels} * phase.rows.in_step * phase.columns.in_step);
  const int64_t in_cache = kBandBytes / int64_t{sizeof(float)} / std::max<int64_t>(1, row_floats);
  const int64_t for_all = phase.rows.num_outputs / (kBandsAThread * num_threads);
  return std::max<int64_t>(1, std::min(in_cache, num_threads == 1 ? in_cache : for_all));
}

bool HasOutputs(const Conv2dParams& params) {
  return params.out.channels > 0 && params.geometry.OutSize(0, params.in_rows) > 0 &&
         params.geometry.OutSize(1, params.in_columns) > 0;
}

// The bands of an image's outputs.
class Bands {
 public:
  // The parameters must outlive this object.
  Bands(const Conv2dParams& params, int num_threads) {
    const Conv2dGeometry& geometry = params.geometry;
    phases_.reserve(static_cast<size_t>(NumPhases(geometry)));
    const auto* weights = static_cast<const float*>(params.weights);
    for (int32_t i = 0; i < NumPhases(geometry); ++i) {
      const ImagePhase phase(geometry, params.in_rows, params.in_columns, i);
      const memory::desc desc =
          phase.HasCells() ? WeightsOf(phase, geometry, params.in.channels, params.out.channels) : memory::desc();
      if (phase.rows.num_outputs > 0 && phase.columns.num_outputs > 0) {
        PhaseConvolution& convolution = phases_.emplace_back(params, phase, weights, desc);
        const int64_t band_rows = BandRows(params, phase, num_threads);
        for (int64_t row = 0; row < phase.rows.num_outputs; row += band_rows) {
          bands_.push_back({&convolution, row, std::min(band_rows, phase.rows.num_outputs - row)});
          convolution.Prepare(bands_.back().num_rows);
        }
      }
      if (weights != nullptr && phase.HasCells()) weights += FloatsOf(desc);
    }
  }

  Bands(const Bands&) = delete;
  Bands& operator=(const Bands&) = delete;

  int64_t size() const { return static_cast<int64_t>(bands_.size()); }
  void Compute(int64_t image, int64_t index, Scratch& scratch) const {
    const Band& band = bands_[static_cast<size_t>(index)];
    band.phase->ComputeBand(image, band.first_row, band.num_rows, scratch);
  }

 private:
  struct Band {
    const PhaseConvolution* phase;
    int64_t first_row, num_rows;
  };

  std::vector<PhaseConvolution> phases_;
  std::vector<Band> bands_;
};

std::vector<float> PackByLibrary(const Conv2dGeometry& geometry, int32_t in_channels, int32_t out_channels,
                                 const float* weights) {
  std::vector<float> packed;
  for (int32_t i = 0; i < NumPhases(geometry); ++i) {
    const ImagePhase phase(geometry, 1, 1, i);
    if (!phase.HasCells()) continue;
    // The weights of the phase's cells, [out_channels, in_channels / groups, rows, columns].
    const int32_t group_in = in_channels / geometry.groups;
    std::vector<float> cells;
    for (int32_t o = 0; o < out_channels; ++o) {
      for (int32_t c = 0; c < group_in; ++c) {
        const int64_t matrix = geometry.is_transposed ? int64_t{c} * out_channels + o : int64_t{o} * group_in + c;
        const float* const from = weights + matrix * geometry.kernel_size[0] * geometry.kernel_size[1];
        for (int32_t row = 0; row < phase.rows.num_cells; ++row) {
          for (int32_t column = 0; column < phase.columns.num_cells; ++column) {
            cells.push_back(from[(phase.rows.first_cell + row * phase.rows.cell_step) * geometry.kernel_size[1] +
                                 phase.columns.first_cell + column * phase.columns.cell_step]);
          }
        }
      }
    }
    const memory::desc desc = WeightsOf(phase, geometry, in_channels, out_channels);
    const size_t begin = packed.size();
    packed.resize(begin + FloatsOf(desc));
    const memory::desc plain(desc.dims(), memory::data_type::f32,
                             geometry.groups > 1 ? memory::format_tag::goihw : memory::format_tag::oihw);
    memory from(plain, Cpu(), cells.data()), to(desc, Cpu(), packed.data() + begin);
    dnnl::stream stream(Cpu());
    dnnl::reorder(from, to).execute(stream, from, to);
    stream.wait();
  }
  return packed;
}

}  // namespace

std::string PackConv2dWeights(const Conv2dGeometry& geometry, int32_t in_channels, int32_t out_channels,
                              const float* weights, std::vector<float>* packed) {
  packed->clear();
  if (out_channels == 0) return "";
  if (HasFewOutputs(geometry, in_channels, out_channels)) {
    *packed = PackFewOutputsWeights(geometry, in_channels, out_channels, weights);
    return "";
  }
  return RefusalOf([&] { *packed = PackByLibrary(geometry, in_channels, out_channels, weights); });
}

std::string CheckConv2d(const Conv2dParams& params) {
  if (!HasOutputs(params) || HasFewOutputs(params.geometry, params.in.channels, params.out.channels)) return "";
  return RefusalOf([&] { Bands(params, /*num_threads=*/1); });
}

std::string Conv2d(const Conv2dParams& params, ThreadPool& pool) {
  assert(params.in.dtype == DType::kFloat32 && params.out.dtype == DType::kFloat32);
  if (params.num_images == 0 || !HasOutputs(params)) return "";
  if (HasFewOutputs(params.geometry, params.in.channels, params.out.channels)) {
    FewOutputsConv2d(params, pool);
    return "";
  }
  return RefusalOf([&] {
    const Bands bands(params, pool.num_threads());
    const int64_t num_bands = bands.size() * params.num_images;
    std::atomic<int64_t> next = 0;
    pool.ParallelFor(std::min<int64_t>(pool.num_threads(), num_bands), 1, [&](int64_t, int64_t) {
      Scratch scratch;
      for (int64_t i = next++; i < num_bands; i = next++) {
        bands.Compute(i / bands.size(), i % bands.size(), scratch);
      }
    });
  });
}

}  // namespace voxserve::kernels::cpu
