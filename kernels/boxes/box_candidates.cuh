#pragma once

// These three kernels make boxes from images, for anchor heads and center heads. FindCandidatesKernel writes the keys
// of all candidates (box_candidates.h) to lists, and counts them by their logits. GatherBestKernel copies the keys that
// may be among a sample's best from the lists to one array. SelectBoxesKernel sorts that array (SortBestKeys), and
// decodes the best. select_peaks.cu uses the first two kernels and SortBestKeys too. Only .cu files include this file.
//
// A sample may have more candidates than a block can sort, kSortedKeys. Its histogram of logits says in which bin the
// last of the best lies, and only the keys of this bin and the higher ones are copied. If they are more than the best
// need (MostSortedKeys), SortBestKeys raises the bound within that bin.
//
// An item is a part of the image that a thread checks for candidates: an anchor of a cell (anchor_head.cu), a cell
// (center_head.cu), or a class of a cell (select_peaks.cu). The kernels take a parameter of a type Heads with these
// members; the first two kernels do not need Boxes, HasOwnScores and Decode:
//   int32_t num_heads, num_samples;
//   __device__ const CandidateLists& Lists(int head) const;
//   __device__ int32_t NumItems(int head) const;  // items of one sample
//   __device__ int32_t MaxBoxes(int head) const;  // the candidates of a sample that are needed
//   __device__ float* Boxes(int head) const;      // [num_samples, MaxBoxes(head), kBoxPitch]
//   // Calls emit(logit, index) for each candidate of an item, and drop() for each class that is dropped because a
//   // number is not finite. kListItems items emit at most CandidateLists::capacity candidates.
//   template <typename Emit, typename Drop>
//   __device__ void Find(int head, int32_t sample, int32_t item, const Emit& emit, const Drop& drop) const;
//   // Returns true if boxes have scores that are not those of their logits; the boxes are then ordered by these.
//   __device__ bool HasOwnScores(int head) const;
//   // Decodes the candidate of a key. Reads only the key's index if HasOwnScores.
//   __device__ CandidateFate Decode(int head, int32_t sample, uint64_t key, float (&box)[kBoxColumns]) const;
//   uint32_t* num_not_finite;  // [num_samples] or null: params.num_not_finite of the head's launcher

#include <algorithm>
#include <cstdint>

#include "kernels/boxes/box_candidates.h"
#include "kernels/boxes/key_sort.cuh"
#include "kernels/core/clear.h"
#include "kernels/core/launch.cuh"
#include "kernels/core/row_tiles.cuh"

namespace voxserve::kernels::cuda {

inline constexpr int kThreadItems = 4;                           // items that a thread checks
inline constexpr int kListItems = kThreadItems * kBlockThreads;  // items of one block, and so of one list
inline constexpr int kLogitBins = kSelectThreads;                // one bin per thread
inline constexpr int kDigitBits = 10;
inline constexpr int kThreadKeys = 8;  // keys that a thread holds at a time
static_assert(1 << kDigitBits == kLogitBins);

// Reads a value of an image of T as float32.
template <typename T>
struct LoadAs {
  __device__ float operator()(const ImageChannels& image, int64_t row, int32_t channel) const {
    return ToFloat(static_cast<const T*>(image.data)[row * image.pitch + channel]);
  }
};

// The counters of all heads' candidates, in the workspace.
struct CandidateCounters {
  static constexpr int32_t kOfSample = kLogitBins + 1;  // a sample's histogram, and how many keys were gathered of it

  int32_t* values = nullptr;  // [num_heads, num_samples, kOfSample]
  int64_t num_values = 0;     // even: Clear writes two at a time

  CandidateCounters(WorkspaceCutter& workspace, int32_t num_heads, int32_t num_samples)
      : num_values((int64_t{num_heads} * num_samples * kOfSample + 1) / 2 * 2) {
    values = workspace.Take<int32_t>(num_values);
  }

  int32_t* OfHead(int32_t head, int32_t num_samples) const {
    return values == nullptr ? nullptr : values + int64_t{head} * num_samples * kOfSample;
  }
  cudaError_t Clear(cudaStream_t stream) const {
    return cuda::Clear(values, static_cast<size_t>(num_values) * sizeof(int32_t), stream);
  }
};

// The candidates of one head, in the workspace.
struct CandidateLists {
  uint64_t* keys = nullptr;   // [num_samples, num_lists, capacity], in no order
  int32_t* counts = nullptr;  // [num_samples, num_lists]
  // [num_samples, num_lists * capacity] the keys of GatherBestKernel, in no order. All may be among the best.
  uint64_t* gathered = nullptr;
  int32_t* counters = nullptr;  // [num_samples, CandidateCounters::kOfSample]
  int32_t num_lists = 0;        // lists of one sample
  int32_t capacity = 0;         // keys that one list has room for
  float lowest_logit = 0;       // no candidate has a lower logit; NaN: there are no candidates

  CandidateLists() = default;
  // counters_of_head: CandidateCounters::OfHead.
  CandidateLists(WorkspaceCutter& workspace, int32_t* counters_of_head, int32_t num_samples, int64_t num_items,
                 int32_t item_candidates, float lowest)
      : counters(counters_of_head) {
    num_lists = static_cast<int32_t>((num_items + kListItems - 1) / kListItems);
    capacity = kListItems * item_candidates;
    lowest_logit = lowest;
    const int64_t all_lists = int64_t{num_samples} * num_lists;
    keys = workspace.Take<uint64_t>(all_lists * capacity);
    counts = workspace.Take<int32_t>(all_lists);
    gathered = workspace.Take<uint64_t>(all_lists * capacity);
  }

  // Returns a sample's histogram, [kLogitBins] the number of candidates in each bin.
  __device__ int32_t* HistogramOf(int32_t sample) const {
    return counters + int64_t{sample} * CandidateCounters::kOfSample;
  }
  __device__ uint64_t* GatheredOf(int32_t sample) const { return gathered + int64_t{sample} * num_lists * capacity; }
  __device__ int32_t* NumGatheredOf(int32_t sample) const { return HistogramOf(sample) + kLogitBins; }

  // Returns the bin of a logit. Bins ascend and are 1/64 wide. The first begins at lowest_logit, limited to [-8, 8].
  // The first and the last bin also hold the logits beyond them.
  __device__ int BinOf(float logit) const {
    const float begin = fminf(fmaxf(lowest_logit, -8.0f), 8.0f);
    return static_cast<int>(fminf(fmaxf((logit - begin) * 64.0f, 0.0f), float{kLogitBins - 1}));
  }
};

// Adds 1 for each calling thread of the warp, with one atomic operation. Returns the value before the thread's own
// addition.
__device__ inline int32_t CountOne(int32_t* counter) {
  const unsigned callers = __activemask();
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const int leader = __ffs(static_cast<int>(callers)) - 1;
  int32_t before = 0;
  if (lane == leader) before = atomicAdd(counter, __popc(callers));
  return __shfl_sync(callers, before, leader) + __popc(callers & ((1u << lane) - 1));
}

// ---- Finding -----------------------------------------------------------------------------------------------------

// A block makes one list: blockIdx is (list, head, sample).
template <typename Heads>
__global__ void __launch_bounds__(kBlockThreads) FindCandidatesKernel(const __grid_constant__ Heads heads) {
  __shared__ int32_t histogram[kLogitBins];
  __shared__ int32_t count;
  __shared__ uint32_t num_not_finite;
  WaitForEarlierKernels();
  const auto list = static_cast<int32_t>(blockIdx.x), head = static_cast<int32_t>(blockIdx.y);
  const auto sample = static_cast<int32_t>(blockIdx.z);
  const CandidateLists& lists = heads.Lists(head);
  if (list >= lists.num_lists) return;
  for (int bin = static_cast<int>(threadIdx.x); bin < kLogitBins; bin += kBlockThreads) histogram[bin] = 0;
  if (threadIdx.x == 0) {
    count = 0;
    num_not_finite = 0;
  }
  __syncthreads();

  const int64_t at = int64_t{sample} * lists.num_lists + list;
  uint64_t* const keys = lists.keys + at * lists.capacity;
#pragma unroll
  for (int i = 0; i < kThreadItems; ++i) {
    const int64_t item = int64_t{list} * kListItems + i * kBlockThreads + threadIdx.x;
    if (item >= heads.NumItems(head)) break;
    heads.Find(
        head, sample, static_cast<int32_t>(item),
        [&](float logit, uint32_t index) {
          atomicAdd(&histogram[lists.BinOf(logit)], 1);
          keys[CountOne(&count)] = CandidateKey(logit, index);
        },
        [&] { atomicAdd(&num_not_finite, 1u); });
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    lists.counts[at] = count;
    if (num_not_finite > 0 && heads.num_not_finite != nullptr) {
      atomicAdd(&heads.num_not_finite[sample], num_not_finite);
    }
  }
  for (int bin = static_cast<int>(threadIdx.x); bin < kLogitBins; bin += kBlockThreads) {
    if (histogram[bin] > 0) atomicAdd(&lists.HistogramOf(sample)[bin], histogram[bin]);
  }
}

// ---- Selecting ---------------------------------------------------------------------------------------------------

// The shared memory of a block of kSelectThreads.
struct SelectShared {
  alignas(16) uint64_t keys[kSortedKeys];
  int32_t histogram[kLogitBins];
  int32_t warp_sums[kSelectWarps];
  int32_t digit, above, within;  // the results of FindDigit
  uint64_t least_key, largest_key;
  int32_t num_keys;
};

// Returns the sum of the values of the threads up to and including this one. Sets *total to the sum of all values. All
// kSelectThreads threads of the block must call it.
__device__ inline int32_t InclusiveSum(int32_t value, SelectShared& shared, int32_t* total) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads, warp = static_cast<int>(threadIdx.x) / kWarpThreads;
  value = SumToLane(value);
  if (lane == kWarpThreads - 1) shared.warp_sums[warp] = value;
  __syncthreads();
  const int32_t count = shared.warp_sums[lane];
  const int32_t sum = SumToLane(count);
  *total = __shfl_sync(~0u, sum, kWarpThreads - 1);
  const int32_t before = __shfl_sync(~0u, sum - count, warp);
  __syncthreads();
  return before + value;
}

// Adds up the counts of bins from the highest bin down, and finds the bin at which the sum reaches `needed`, which must
// be at least 1. Thread t passes the count of bin kLogitBins - 1 - t. Returns the sum of all counts. If it is at least
// `needed`, sets shared.digit to the found bin, shared.above to the sum of the counts of the higher bins, and
// shared.within to the found bin's count. All threads of the block must call it.
__device__ inline int32_t FindDigit(int32_t count, int32_t needed, SelectShared& shared) {
  int32_t total;
  const int32_t sum = InclusiveSum(count, shared, &total);
  if (sum >= needed && sum - count < needed) {
    shared.digit = kLogitBins - 1 - static_cast<int32_t>(threadIdx.x);
    shared.above = sum - count;
    shared.within = count;
  }
  __syncthreads();
  return total;
}

// The part of a sample's candidates that may be among its best: those of the bins from `bin` on.
struct BestBins {
  int bin;
  int32_t above, within;  // candidates of the higher bins, and of this one
};

// Returns the bins of all candidates of a sample if they are fewer than num_best, otherwise those of its num_best best.
// num_best must be at least 1. All threads of the block must call it.
__device__ inline BestBins FindBestBins(const CandidateLists& lists, int32_t sample, int32_t num_best,
                                        SelectShared& shared) {
  const int bin = kLogitBins - 1 - static_cast<int>(threadIdx.x);
  const int32_t total = FindDigit(lists.HistogramOf(sample)[bin], num_best, shared);
  if (total < num_best) return {.bin = 0, .above = 0, .within = total};
  return {.bin = shared.digit, .above = shared.above, .within = shared.within};
}

// Copies the keys of a list that may be among its sample's best. blockIdx is (list, head, sample).
template <typename Heads>
__global__ void __launch_bounds__(kSelectThreads) GatherBestKernel(const __grid_constant__ Heads heads) {
  __shared__ SelectShared shared;
  __shared__ int32_t first;
  WaitForEarlierKernels();
  const auto list = static_cast<int32_t>(blockIdx.x), head = static_cast<int32_t>(blockIdx.y);
  const auto sample = static_cast<int32_t>(blockIdx.z), thread = static_cast<int32_t>(threadIdx.x);
  const CandidateLists& lists = heads.Lists(head);
  if (list >= lists.num_lists) return;
  const int64_t at = int64_t{sample} * lists.num_lists + list;
  const int32_t count = lists.counts[at];
  const uint64_t* const keys = lists.keys + at * lists.capacity;
  uint64_t key = thread < count ? keys[thread] : 0;  // no key is 0
  const int bin = FindBestBins(lists, sample, heads.MaxBoxes(head), shared).bin;
  uint64_t* const gathered = lists.GatheredOf(sample);
  for (int32_t begin = 0; begin < count; begin += kSelectThreads) {
    if (begin > 0) key = begin + thread < count ? keys[begin + thread] : 0;
    const bool may_be_best = key != 0 && lists.BinOf(LogitOfKey(key)) >= bin;
    int32_t num_added;
    const int32_t place = InclusiveSum(may_be_best ? 1 : 0, shared, &num_added) - 1;
    if (num_added == 0) continue;
    if (thread == 0) first = atomicAdd(lists.NumGatheredOf(sample), num_added);
    __syncthreads();
    if (may_be_best) gathered[first + place] = key;
    __syncthreads();
  }
}

// Calls visit(key) for all gathered keys of a sample. The keys are distributed over the threads of the block, so each
// is visited by one thread.
template <typename Visit>
__device__ void ForEachKey(const CandidateLists& lists, int32_t sample, const Visit& visit) {
  const int32_t count = *lists.NumGatheredOf(sample);
  const uint64_t* const keys = lists.GatheredOf(sample);
  for (auto first = static_cast<int32_t>(threadIdx.x); first < count; first += kThreadKeys * kSelectThreads) {
    uint64_t loaded[kThreadKeys];
#pragma unroll
    for (int i = 0; i < kThreadKeys; ++i) {
      const int32_t place = first + i * kSelectThreads;
      loaded[i] = place < count ? keys[place] : 0;  // no key is 0
    }
#pragma unroll
    for (int i = 0; i < kThreadKeys; ++i) {
      if (loaded[i] != 0) visit(loaded[i]);
    }
  }
}

// Returns how many keys TakeBest writes at the most: the size of a sort, which is a power of two. A search for a
// tighter bound takes longer than the smallest of these sorts.
__device__ inline int32_t MostSortedKeys(int32_t num_best) {
  int32_t most = kSelectThreads;
  while (most < num_best) most *= 2;
  return most;
}

// Returns the least and the largest key of a warp's lanes to all of them.
__device__ inline uint64_t LeastOfWarp(uint64_t key) {
#pragma unroll
  for (int distance = kWarpThreads / 2; distance > 0; distance /= 2) {
    key = min(key, __shfl_xor_sync(~0u, key, distance));
  }
  return key;
}
__device__ inline uint64_t LargestOfWarp(uint64_t key) { return ~LeastOfWarp(~key); }

// Writes at most MostSortedKeys of the gathered keys, which include the num_best best of the sample, to shared.keys, in
// no order. Adds the number of written keys to shared.num_keys, which must be 0 before. num_best must be from 1 to
// kSortedKeys. All threads of the block must call it.
__device__ inline void TakeBest(const CandidateLists& lists, int32_t sample, int32_t num_best, SelectShared& shared) {
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const BestBins bins = FindBestBins(lists, sample, num_best, shared);
  int32_t above = bins.above, within = bins.within;
  const int32_t most = MostSortedKeys(num_best);
  const auto bin_of = [&](uint64_t key) { return lists.BinOf(LogitOfKey(key)); };

  // All keys of higher bins are written, and the keys of this bin that are at least `lowest`. If that would be too many
  // keys, `lowest` is raised digit by digit (kDigitBits bits at a time), beginning at the bin's least key.
  uint64_t lowest = 0;
  if (above + within > most) {
    if (thread == 0) {
      shared.least_key = ~uint64_t{0};
      shared.largest_key = 0;
    }
    __syncthreads();
    uint64_t least = ~uint64_t{0}, largest = 0;
    ForEachKey(lists, sample, [&](uint64_t key) {
      if (bin_of(key) != bins.bin) return;
      least = min(least, key);
      largest = max(largest, key);
    });
    least = LeastOfWarp(least);
    largest = LargestOfWarp(largest);
    if (thread % kWarpThreads == 0) {
      atomicMin(reinterpret_cast<unsigned long long*>(&shared.least_key), static_cast<unsigned long long>(least));
      atomicMax(reinterpret_cast<unsigned long long*>(&shared.largest_key), static_cast<unsigned long long>(largest));
    }
    __syncthreads();
    lowest = shared.least_key;
    int span_bits = 64 - __clzll(static_cast<long long>(shared.largest_key - lowest));
    // The loop ends: keys differ, so a span of 0 bits holds one key. span_bits is at least 1 here, because the bin has
    // several keys.
    while (above + within > most) {
      const int shift = max(span_bits - kDigitBits, 0);
      shared.histogram[thread] = 0;
      __syncthreads();
      ForEachKey(lists, sample, [&](uint64_t key) {
        if (bin_of(key) != bins.bin || key < lowest) return;
        const uint64_t digit = (key - lowest) >> shift;
        if (digit < uint64_t{1} << min(span_bits, kDigitBits)) atomicAdd(&shared.histogram[digit], 1);
      });
      __syncthreads();
      FindDigit(shared.histogram[kLogitBins - 1 - thread], num_best - above, shared);
      lowest += static_cast<uint64_t>(shared.digit) << shift;
      above += shared.above;
      within = shared.within;
      span_bits = shift;
      __syncthreads();
    }
  }
  ForEachKey(lists, sample, [&](uint64_t key) {
    const int of_key = bin_of(key);
    if (of_key > bins.bin || (of_key == bins.bin && key >= lowest)) shared.keys[CountOne(&shared.num_keys)] = key;
  });
}

// Sorts keys of a sample, its num_best best among them, in descending order at the beginning of shared.keys. Returns
// how many it has sorted: all keys of the sample if they are at most num_best. num_best must be from 1 to kSortedKeys.
// All threads of the block must call it.
__device__ inline int32_t SortBestKeys(const CandidateLists& lists, int32_t sample, int32_t num_best,
                                       SelectShared& shared) {
  if (threadIdx.x == 0) shared.num_keys = 0;
  TakeBest(lists, sample, num_best, shared);
  __syncthreads();
  const int32_t num_keys = shared.num_keys;
  SortKeys(shared.keys, num_keys);
  return num_keys;
}

// A block makes the boxes of one head and sample: blockIdx is (head, sample).
template <typename Heads>
__global__ void __launch_bounds__(kSelectThreads) SelectBoxesKernel(const __grid_constant__ Heads heads) {
  __shared__ SelectShared shared;
  WaitForEarlierKernels();
  const auto head = static_cast<int32_t>(blockIdx.x), sample = static_cast<int32_t>(blockIdx.y);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t max_boxes = heads.MaxBoxes(head);
  const int32_t num_keys = SortBestKeys(heads.Lists(head), sample, max_boxes, shared);

  const int32_t num_best = min(num_keys, max_boxes);
  if (heads.HasOwnScores(head)) {
    for (int32_t i = thread; i < num_best; i += kSelectThreads) {
      float box[kBoxColumns] = {};
      const uint32_t index = IndexOfKey(shared.keys[i]);
      const CandidateFate fate = heads.Decode(head, sample, shared.keys[i], box);
      shared.keys[i] = fate == CandidateFate::kBox ? CandidateKey(box[kBoxScore], index) : 0;
      if (fate == CandidateFate::kNotFinite && heads.num_not_finite != nullptr) {
        atomicAdd(&heads.num_not_finite[sample], 1u);
      }
    }
    SortKeys(shared.keys, num_best);  // the candidates without a box, whose keys are 0, come last
  }
  float* const rows = heads.Boxes(head) + int64_t{sample} * max_boxes * kBoxPitch;
  int32_t num_boxes = 0;
  for (int32_t first = 0; first < num_best; first += kSelectThreads) {
    const int32_t i = first + thread;
    float box[kBoxColumns] = {};
    CandidateFate fate = CandidateFate::kOutOfRange;
    if (i < num_best && shared.keys[i] != 0) fate = heads.Decode(head, sample, shared.keys[i], box);
    if (fate == CandidateFate::kNotFinite && heads.num_not_finite != nullptr) {
      atomicAdd(&heads.num_not_finite[sample], 1u);
    }
    const bool is_box = fate == CandidateFate::kBox;
    int32_t more;
    const int32_t place = num_boxes + InclusiveSum(is_box ? 1 : 0, shared, &more) - 1;
    if (is_box) {
#pragma unroll
      for (int column = 0; column < kBoxPitch; ++column) {
        rows[place * kBoxPitch + column] = column < kBoxColumns ? box[column] : 0.0f;
      }
    }
    num_boxes += more;
  }
  for (int32_t i = num_boxes * kBoxPitch + thread; i < max_boxes * kBoxPitch; i += kSelectThreads) {
    rows[i] = ValueOfNoBox(i % kBoxPitch);
  }
}

// ---- Launcher ----------------------------------------------------------------------------------------------------

// Launches the kernels that find the candidates and gather the best of them. counters: those of the heads' lists.
// most_lists: the largest num_lists of all heads.
template <typename Heads>
cudaError_t GatherCandidates(const Heads& heads, const CandidateCounters& counters, int32_t most_lists,
                             cudaStream_t stream) {
  static_assert(sizeof(Heads) <= kMaxParamBytes);
  VOXSERVE_RETURN_IF_CUDA(counters.Clear(stream));
  const dim3 blocks(static_cast<unsigned>(std::max(most_lists, 1)), static_cast<unsigned>(heads.num_heads),
                    static_cast<unsigned>(heads.num_samples));
  VOXSERVE_RETURN_IF_CUDA(LaunchEarly(FindCandidatesKernel<Heads>, blocks, kBlockThreads, 0, stream, heads));
  return LaunchEarly(GatherBestKernel<Heads>, blocks, kSelectThreads, 0, stream, heads);
}

// Launches all kernels.
template <typename Heads>
cudaError_t DecodeBoxes(const Heads& heads, const CandidateCounters& counters, int32_t most_lists,
                        cudaStream_t stream) {
  VOXSERVE_RETURN_IF_CUDA(GatherCandidates(heads, counters, most_lists, stream));
  const dim3 blocks(static_cast<unsigned>(heads.num_heads), static_cast<unsigned>(heads.num_samples));
  return LaunchEarly(SelectBoxesKernel<Heads>, blocks, kSelectThreads, 0, stream, heads);
}

}  // namespace voxserve::kernels::cuda
