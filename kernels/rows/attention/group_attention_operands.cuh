#pragma once

// These types read the operands of group attention on tensor cores (group_attention_blocks.cuh,
// group_attention_small.cuh, group_attention_warp_groups.cuh), and store its results. Only .cu files include this
// header.

#include <algorithm>
#include <cstdint>

#include "kernels/core/launch.cuh"
#include "kernels/core/row_chunks.cuh"
#include "kernels/rows/attention/group_attention.h"
#include "kernels/rows/attention/group_attention_warps.cuh"
#include "kernels/rows/attention/site_groups.cuh"

namespace voxserve::kernels::cuda {

inline constexpr int32_t kMaxBuffers = 2;

struct GroupAttentionArguments {
  GroupAttentionParams params;
  int32_t head_channels = 0;  // of queries, keys and values
  int32_t vector_bytes = 2;   // 2, 4 or 16: how many bytes of keys and values are aligned everywhere
  bool reads_pairs = false;   // two neighbouring channels of queries are aligned
  bool writes_pairs = false;  // two neighbouring results are aligned
  bool is_out_float = false;
  int32_t num_buffers = 1;  // up to kMaxBuffers
  int32_t buffer_keys = 0;  // a multiple of kStepKeys
};

// Returns the arguments without buffers. T: the type of queries, keys and values.
template <typename T>
GroupAttentionArguments ArgumentsOf(const GroupAttentionParams& params) {
  const int32_t head_channels = params.keys.channels / params.num_heads;
  const int64_t head_bytes = head_channels * int64_t{sizeof(T)};
  const auto alignment = [&](const ConstRows& rows) { return CommonAlignment().Add(rows).Add(head_bytes).bytes(); };
  const int64_t of_keys = std::min(alignment(params.keys), alignment(params.values));
  return {.params = params,
          .head_channels = head_channels,
          .vector_bytes = of_keys == 16  ? 16
                          : of_keys >= 4 ? 4
                                         : 2,
          .reads_pairs = alignment(params.queries) >= 4,
          .writes_pairs = head_bytes % 4 == 0 &&
                          CommonAlignment().Add(ConstRows(params.out)).bytes() >= 2 * SizeOf(params.out.dtype),
          .is_out_float = params.out.dtype == DType::kFloat32};
}

// Returns vector v of a head's row, with zeros in place of the bytes after head_bytes.
template <int kBytes>
__device__ uint4 ReadVector(const char* row, int32_t v, int32_t head_bytes) {
  if constexpr (kBytes == 16) {
    return v * 16 < head_bytes ? *reinterpret_cast<const uint4*>(row + v * 16) : uint4{};
  } else {
    uint32_t words[4] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int32_t at = v * 16 + i * 4;
      if constexpr (kBytes == 4) {
        if (at < head_bytes) words[i] = *reinterpret_cast<const uint32_t*>(row + at);
      } else {
        if (at < head_bytes) words[i] = *reinterpret_cast<const uint16_t*>(row + at);
        if (at + 2 < head_bytes) words[i] |= uint32_t{*reinterpret_cast<const uint16_t*>(row + at + 2)} << 16;
      }
    }
    return {words[0], words[1], words[2], words[3]};
  }
}

// Returns the multiple of `multiple` that is not less than `keys`.
__host__ __device__ inline int32_t PaddedKeys(int32_t keys, int32_t multiple) {
  return (keys + multiple - 1) / multiple * multiple;
}

// HeadReader copies the keys and values of a head from global to shared memory. A thread loads kBatch vectors of keys,
// and as many of values, before it stores them. kMultiple: the number of stored keys is a multiple of it. kCopyBatch:
// if it is not 0, aligned vectors are copied asynchronously (cp.async), so that all of a thread's vectors are on their
// way at the same time. The thread then looks up the rows of kCopyBatch vectors at a time. kWordBatch: the same for
// words of 4 bytes, where vectors are not aligned. Layout: that in shared memory. kHasOnes: the last of the kChannels
// channels of each value is 1; the head does not have that channel.
template <typename T, int kChannels, int kBatch, bool kMeasures, int kMultiple = kStepKeys, int kCopyBatch = 0,
          int kWordBatch = 0, typename Layout = HeadRows<kChannels>, bool kHasOnes = false>
struct HeadReader {
  using Head = Layout;
  using Pair = typename PairOf<T>::Type;

  const GroupAttentionArguments& arguments;
  int32_t thread;       // the number of this thread among those that read together: whole warps
  int32_t num_threads;  // how many read together
  int32_t head_bytes = arguments.head_channels * int32_t{sizeof(T)};

  // Copies keys and values of a head to shared memory, the rows at places [begin, begin + num_keys), and zeros up to a
  // multiple of kMultiple. All threads that read together call it. Returns a bound of the lengths of the keys that the
  // warp has copied, NaN or infinity if they have values that are not finite or very large; 0 if not kMeasures.
  // rows: if not null, it gets the numbers of the rows.
  __device__ float Read(int32_t head, int64_t begin, int32_t num_keys, unsigned char* keys, unsigned char* values,
                        int32_t* rows = nullptr) const {
    if constexpr (kCopyBatch > 0 && !kHasOnes) {  // heads with ones have no whole vectors
      if (arguments.vector_bytes == 16) return Copy(head, begin, num_keys, keys, values, rows);
    } else if constexpr (!kHasOnes) {
      if (arguments.vector_bytes == 16) return ReadBy<16>(head, begin, num_keys, keys, values, rows);
    }
    if constexpr (kWordBatch > 0) {
      if (arguments.vector_bytes == 4) return CopyWords(head, begin, num_keys, keys, values, rows);
    } else {
      if (arguments.vector_bytes == 4) return ReadBy<4>(head, begin, num_keys, keys, values, rows);
    }
    return ReadBy<2>(head, begin, num_keys, keys, values, rows);
  }

 private:
  // GlobalRows finds a head's rows of keys or values in global memory.
  struct GlobalRows {
    const char* first;
    int64_t pitch;  // bytes

    __device__ GlobalRows(const ConstRows& rows, int64_t column)
        : first(static_cast<const char*>(rows.data) + column), pitch(rows.pitch * int64_t{sizeof(T)}) {}
    __device__ const char* At(int32_t row) const { return first + row * pitch; }
  };

  // Returns the sum of squares, which is not negative; it has rounded in the values' type.
  __device__ static float SquareOf(const uint4& vector) {
    const uint32_t zeros = 0, words[4] = {vector.x, vector.y, vector.z, vector.w};
    Pair square = reinterpret_cast<const Pair&>(zeros);
#pragma unroll
    for (const uint32_t word : words) {
      const auto pair = reinterpret_cast<const Pair&>(word);
      square = __hfma2(pair, pair, square);
    }
    return fabsf(ToFloat(square.x) + ToFloat(square.y));
  }

  // Returns the bound of the keys' lengths. largest_square: the largest SquareOf of the thread's vectors of keys.
  __device__ static float LengthOf(float largest_square) {
    // The vectors of a key are in different lanes, so the largest one stands for all.
    const float largest = LargestOfLanes(largest_square * Head::kVectors);
    // Covers the rounding of the sums, and squares that are too small for float16.
    return sqrtf(largest * 1.25f + 1e-6f);
  }

  // The last word of a value's last vector.
  static constexpr uint32_t kLastWord = kHasOnes ? PairOf<T>::kOnes & 0xffff0000 : 0;

  // Calls read(first, rows) for each kCount of the thread's parts: part first + b * num_threads is in row rows[b].
  // The last ones may be beyond num_parts; `read` must not store these. kRowParts: the parts of a row, its vectors or
  // words.
  template <int kCount, int kRowParts = Head::kVectors, typename ReadBatch>
  __device__ void ForEachBatch(int64_t begin, int32_t num_keys, int32_t num_parts, const ReadBatch& read) const {
    for (int32_t first = thread; first < num_parts; first += kCount * num_threads) {
      int32_t rows[kCount];
#pragma unroll
      for (int b = 0; b < kCount; ++b) {
        const int32_t i = min((first + b * num_threads) / kRowParts, num_keys - 1);
        rows[b] = static_cast<int32_t>(RowAt(arguments.params.groups, begin + i));
      }
      read(first, rows);
    }
  }

  // Reads through registers. kBytes: how many bytes are aligned.
  template <int kBytes>
  __device__ float ReadBy(int32_t head, int64_t begin, int32_t num_keys, unsigned char* keys, unsigned char* values,
                          int32_t* rows) const {
    const int64_t column = int64_t{head} * head_bytes;
    const GlobalRows all_keys(arguments.params.keys, column), all_values(arguments.params.values, column);
    const int32_t padded_keys = PaddedKeys(num_keys, kMultiple);
    float largest_square = 0;
    const auto read = [&](int32_t first, const int32_t(&row)[kBatch]) {
      uint4 key[kBatch], value[kBatch];
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        const int32_t i = (first + b * num_threads) / Head::kVectors, v = (first + b * num_threads) % Head::kVectors;
        const int32_t width = i < num_keys ? head_bytes : 0;
        key[b] = ReadVector<kBytes>(all_keys.At(row[b]), v, width);
        value[b] = ReadVector<kBytes>(all_values.At(row[b]), v, width);
        if (kHasOnes && v == Head::kVectors - 1) value[b].w |= kLastWord;
      }
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        const int32_t i = (first + b * num_threads) / Head::kVectors, v = (first + b * num_threads) % Head::kVectors;
        if (i < padded_keys) {
          *reinterpret_cast<uint4*>(keys + Head::Offset(i, v)) = key[b];
          *reinterpret_cast<uint4*>(values + Head::Offset(i, v)) = value[b];
          if (rows != nullptr && v == 0) rows[i] = row[b];
        }
        if constexpr (kMeasures) largest_square = LargerNotNegative(largest_square, SquareOf(key[b]));
      }
    };
    ForEachBatch<kBatch>(begin, num_keys, padded_keys * Head::kVectors, read);
    return kMeasures ? LengthOf(largest_square) : 0;
  }

  // Does the same by asynchronous copies of vectors that are aligned to 16 bytes. Those of the calling thread have
  // landed when it returns.
  __device__ float Copy(int32_t head, int64_t begin, int32_t num_keys, unsigned char* keys, unsigned char* values,
                        int32_t* rows) const {
    const int64_t column = int64_t{head} * head_bytes;
    const GlobalRows all_keys(arguments.params.keys, column), all_values(arguments.params.values, column);
    const int32_t num_vectors = PaddedKeys(num_keys, kMultiple) * Head::kVectors;
    const uint32_t to_keys = SharedAddress(keys), to_values = SharedAddress(values);
    const auto copy = [&](int32_t first, const int32_t(&row)[kCopyBatch]) {
#pragma unroll
      for (int b = 0; b < kCopyBatch; ++b) {
        const int32_t vector = first + b * num_threads, i = vector / Head::kVectors, v = vector % Head::kVectors;
        if (vector >= num_vectors) break;
        const int32_t bytes = i < num_keys && v * 16 < head_bytes ? 16 : 0;
        const auto offset = static_cast<uint32_t>(Head::Offset(i, v));
        CopyAsync16(to_keys + offset, all_keys.At(row[b]) + v * 16, bytes);
        CopyAsync16(to_values + offset, all_values.At(row[b]) + v * 16, bytes);
        if (rows != nullptr && v == 0) rows[i] = row[b];
      }
    };
    ForEachBatch<kCopyBatch>(begin, num_keys, num_vectors, copy);
    CommitCopies();
    WaitForCopies<0>();
    if constexpr (!kMeasures) return 0;
    float largest_square = 0;
#pragma unroll 4
    for (int32_t vector = thread; vector < num_vectors; vector += num_threads) {
      const int32_t offset = Head::Offset(vector / Head::kVectors, vector % Head::kVectors);
      largest_square = LargerNotNegative(largest_square, SquareOf(*reinterpret_cast<const uint4*>(keys + offset)));
    }
    return LengthOf(largest_square);
  }

  // Does the same by asynchronous copies of words that are aligned to 4 bytes.
  __device__ float CopyWords(int32_t head, int64_t begin, int32_t num_keys, unsigned char* keys, unsigned char* values,
                             int32_t* rows) const {
    constexpr int32_t kWords = Head::kVectors * 4;
    const int64_t column = int64_t{head} * head_bytes;
    const GlobalRows all_keys(arguments.params.keys, column), all_values(arguments.params.values, column);
    const int32_t num_vectors = PaddedKeys(num_keys, kMultiple) * Head::kVectors;
    const uint32_t to_keys = SharedAddress(keys), to_values = SharedAddress(values);
    const auto copy = [&](int32_t first, const int32_t(&row)[kWordBatch]) {
#pragma unroll
      for (int b = 0; b < kWordBatch; ++b) {
        const int32_t word = first + b * num_threads, i = word / kWords, w = word % kWords;
        if (word >= num_vectors * 4) break;
        const int32_t offset = Head::Offset(i, w / 4) + w % 4 * 4;
        if (w * 4 < head_bytes) {
          const int32_t bytes = i < num_keys ? 4 : 0;
          CopyAsync4(to_keys + offset, all_keys.At(row[b]) + w * 4, bytes);
          CopyAsync4(to_values + offset, all_values.At(row[b]) + w * 4, bytes);
        } else {
          *reinterpret_cast<uint32_t*>(keys + offset) = 0;
          *reinterpret_cast<uint32_t*>(values + offset) = w == kWords - 1 ? kLastWord : 0;
        }
        if (rows != nullptr && w == 0) rows[i] = row[b];
      }
    };
    ForEachBatch<kWordBatch, kWords>(begin, num_keys, num_vectors * 4, copy);
    CommitCopies();
    WaitForCopies<0>();
    if constexpr (!kMeasures) return 0;
    // Four neighbouring lanes have copied a vector, and the warp 8 vectors at a time. A lane measures one of these.
    __syncwarp();
    float largest_square = 0;
    const int32_t lane = thread % 32;
#pragma unroll 4
    for (int32_t vector = thread / 32 * 8 + lane / 8 * (num_threads / 4) + lane % 8; vector < num_vectors;
         vector += num_threads) {
      const int32_t offset = Head::Offset(vector / Head::kVectors, vector % Head::kVectors);
      largest_square = LargerNotNegative(largest_square, SquareOf(*reinterpret_cast<const uint4*>(keys + offset)));
    }
    return LengthOf(largest_square);
  }
};

// The queries of a warp: places of one group. Attention: a WarpAttention.
template <typename Attention>
struct WarpQueries {
  using T = typename Attention::Value;
  const GroupAttentionArguments& arguments;
  int32_t head;
  int64_t begin;
  int32_t num_rows;               // up to Attention::kRows
  const int32_t* rows = nullptr;  // the rows at the places, in shared memory; null: from the order

  __device__ void Load(typename Attention::Queries& queries) const {
    const GroupAttentionParams& params = arguments.params;
    Attention::LoadQueries(
        [&](int32_t row) {
          return static_cast<const T*>(params.queries.data) + RowOf(row) * params.queries.pitch +
                 int64_t{head} * arguments.head_channels;
        },
        num_rows, arguments.head_channels, arguments.reads_pairs, queries);
  }
  __device__ void Read(Attention& attention) const {
    typename Attention::Queries queries;
    Load(queries);
    attention.SetQueries(queries, arguments.params.scale);
  }

  // Stores the results. value_of(i, half, v, k) is that of row Row(i, half) and channel 8 v + Column() + k of
  // WarpAttention.
  template <typename ValueOf>
  __device__ void Store(const ValueOf& value_of) const {
    if (arguments.is_out_float) {
      StoreAs<float>(value_of);
    } else {
      StoreAs<T>(value_of);
    }
  }

 private:
  __device__ int64_t RowOf(int32_t place) const {
    return rows != nullptr ? rows[place] : RowAt(arguments.params.groups, begin + place);
  }

  template <typename Out, typename ValueOf>
  __device__ void StoreAs(const ValueOf& value_of) const {
    const GroupAttentionParams& params = arguments.params;
    const int32_t channels = arguments.head_channels;
    Out* rows[Attention::kNumTiles][2];
#pragma unroll
    for (int i = 0; i < Attention::kNumTiles; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int64_t row = RowOf(min(Attention::Row(i, half), num_rows - 1));
        rows[i][half] = static_cast<Out*>(params.out.data) + row * params.out.pitch + int64_t{head} * channels;
      }
    }
#pragma unroll
    for (int i = 0; i < Attention::kNumTiles; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (Attention::Row(i, half) >= num_rows) continue;
#pragma unroll
        for (int v = 0; v < Attention::kVectors; ++v) {
          const int32_t c = v * 8 + Attention::Column();
          Out* const out = rows[i][half] + c;
          const Out first = FromFloat<Out>(value_of(i, half, v, 0)), second = FromFloat<Out>(value_of(i, half, v, 1));
          if (arguments.writes_pairs) {
            if (c < channels) *reinterpret_cast<Pack<Out, 2>*>(out) = {first, second};
          } else {
            if (c < channels) out[0] = first;
            if (c + 1 < channels) out[1] = second;
          }
        }
      }
    }
  }
};

// Stores the sums of the values, divided by those of the weights.
template <typename Attention>
__device__ void StoreMeans(const WarpQueries<Attention>& queries, const Attention& attention) {
  float factors[Attention::kNumTiles][2];
#pragma unroll
  for (int i = 0; i < Attention::kNumTiles; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) factors[i][half] = Reciprocal(attention.Weights(i, half));
  }
  queries.Store([&](int i, int half, int v, int k) { return attention.Sum(i, half, v, k) * factors[i][half]; });
}

// Computes a warp's queries over all keys of their group, and stores the results. keys, values: addresses in shared
// memory. longest_key: as in WarpAttention::AddKeys.
template <typename Attention>
__device__ void AttendToGroup(const WarpQueries<Attention>& queries, uint32_t keys, uint32_t values, int32_t num_keys,
                              float longest_key) {
  Attention attention;
  queries.Read(attention);
  int32_t num_sampled = min(kSampleKeys, num_keys);
  for (bool is_again = false;; is_again = true) {
    float factors[Attention::kNumTiles][2];
    attention.RaiseReferences(keys, num_sampled, factors);
    attention.Clear();
    attention.AddKeys(keys, values, num_keys, longest_key);
    if (is_again || !attention.IsTooHigh()) break;
    num_sampled = num_keys;
  }
  StoreMeans(queries, attention);
}

}  // namespace voxserve::kernels::cuda
