// 4-bit NormalFloat: to the nearest of 16 values and back, block by block; the same bits as plain torch (`parts.nf4`).

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>
#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "lanes.h"

namespace intaglio {
namespace {

constexpr int64_t kGrain = 16384;    // weights for which another thread is woken
constexpr int kValues = 16;          // that 4 bits stand for
constexpr int kStep = 32;            // weights made at a time; every block is a multiple of it
constexpr float kSmallest = 1e-38f;  // instead of 0, to divide by

template <class F>
void each_block(int64_t blocks, int64_t size, F f) {
  at::parallel_for(0, blocks, std::max<int64_t>(1, kGrain / size), [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; block++) f(block);
  });
}

// The largest magnitude, found among the bits: a NaN is larger than any number.
template <class T>
float largest_of(const T* weights, int64_t size) {
  Ints most = {};
  for (int64_t i = 0; i < size; i += kLanes) {
    Lanes lanes = load(weights + i);
    Ints bits;
    std::memcpy(&bits, &lanes, sizeof bits);
    bits &= 0x7fffffff;
    most = bits > most ? bits : most;
  }
  int32_t best = 0;
  for (int i = 0; i < kLanes; i++) best = std::max(best, most[i]);
  float value;
  std::memcpy(&value, &best, 4);
  return value;
}

// How many of the 15 borders each scaled weight lies above, two to a byte, the first in the high bits.
template <class T>
void pack(const T* weights, int64_t size, float scale, const float* borders, uint8_t* packed) {
  for (int64_t i = 0; i < size; i += kLanes) {
    Lanes lanes = load(weights + i) * scale;
    Ints above = {};
    for (int border = 0; border < kValues - 1; border++) above -= lanes > borders[border];
    for (int j = 0; j < kLanes; j += 2) packed[(i + j) / 2] = uint8_t(above[j] << 4 | above[j + 1]);
  }
}

// weights (n), a multiple of the block size; borders between the 16 values (15) -> two a byte (n / 2), scales.
std::tuple<at::Tensor, at::Tensor> nf4_quantize(const at::Tensor& weights, const at::Tensor& borders, int64_t size) {
  int64_t count = weights.numel(), blocks = count / size;
  TORCH_CHECK(weights.is_contiguous() && count % size == 0 && size % kStep == 0, "whole blocks only");
  auto packed = at::empty({count / 2}, weights.options().dtype(at::kByte));
  auto scales = at::empty({blocks}, weights.options().dtype(at::kFloat));
  auto run = [&](auto* from) {
    const float* at = borders.const_data_ptr<float>();
    uint8_t* to = packed.mutable_data_ptr<uint8_t>();
    float* largest = scales.mutable_data_ptr<float>();
    each_block(blocks, size, [&](int64_t block) {
      largest[block] = largest_of(from + block * size, size);
      pack(from + block * size, size, 1.0f / std::max(largest[block], kSmallest), at, to + block * size / 2);
    });
  };
  if (weights.scalar_type() == at::kFloat) {
    run(weights.const_data_ptr<float>());
  } else {
    TORCH_CHECK(weights.scalar_type() == at::kBFloat16, "bf16 or fp32 only");
    run(static_cast<const bf16*>(weights.const_data_ptr()));
  }
  return {packed, scales};
}

// 16 bytes to 32 of the 16 numbers in the table, each of 4 or of 2 bytes.
template <class T>
inline void spread(const uint8_t* bytes, const T* table, T* out) {
#if defined(__AVX512BW__)
  __m128i both = _mm_loadu_si128((const __m128i*)bytes), nibble = _mm_set1_epi8(15);
  __m128i high = _mm_and_si128(_mm_srli_epi16(both, 4), nibble), low = _mm_and_si128(both, nibble);
  __m128i first = _mm_unpacklo_epi8(high, low), second = _mm_unpackhi_epi8(high, low);
  if constexpr (sizeof(T) == 4) {
    __m512i values = _mm512_loadu_si512(table);
    _mm512_storeu_si512(out, _mm512_permutexvar_epi32(_mm512_cvtepu8_epi32(first), values));
    _mm512_storeu_si512(out + 16, _mm512_permutexvar_epi32(_mm512_cvtepu8_epi32(second), values));
  } else {
    __m512i values = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i*)table));
    __m512i numbers = _mm512_cvtepu8_epi16(_mm256_set_m128i(second, first));
    _mm512_storeu_si512(out, _mm512_permutexvar_epi16(numbers, values));
  }
#else
  for (int i = 0; i < kStep / 2; i++) {
    out[2 * i] = table[bytes[i] >> 4];
    out[2 * i + 1] = table[bytes[i] & 15];
  }
#endif
}

template <class T>
inline void rounded(Lanes lanes, T* to) {
  if constexpr (std::is_same_v<T, at::Half>) {
    for (int i = 0; i < kLanes; i++) to[i] = lanes[i];
  } else {
    narrow(lanes, to);
  }
}

// Bytes, scales and the 16 values -> weights: a block has only 16 different ones, multiplied and rounded once.
template <class T>
void dequantize(const at::Tensor& packed, const at::Tensor& scales, const at::Tensor& values, int64_t size, T* out) {
  const uint8_t* from = packed.const_data_ptr<uint8_t>();
  const float *scale = scales.const_data_ptr<float>(), *value = values.const_data_ptr<float>();
  each_block(scales.numel(), size, [&](int64_t block) {
    T table[kValues];
    for (int i = 0; i < kValues; i += kLanes) rounded(load(value + i) * scale[block], table + i);
    for (int64_t i = block * size; i < (block + 1) * size; i += kStep) spread(from + i / 2, table, out + i);
  });
}

// A matrix is made, multiplied and let go; the allocator returns what is large, so each comes on fresh memory. Small
// pages of it cost three times what the work does; large ones, where the system gives them on request, a sixth of that.
void want_large_pages(at::Tensor& fresh) {
#if defined(MADV_HUGEPAGE)
  constexpr uintptr_t kPage = 1 << 21;
  auto begin = uintptr_t(fresh.mutable_data_ptr()), end = (begin + fresh.nbytes()) & ~(kPage - 1);
  begin = (begin + kPage - 1) & ~(kPage - 1);
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#endif
}

at::Tensor nf4_dequantize(const at::Tensor& packed, const at::Tensor& scales, const at::Tensor& values, int64_t size,
                          at::ScalarType dtype) {
  TORCH_CHECK(packed.is_contiguous() && scales.is_contiguous() && size % kStep == 0, "rows must be dense");
  TORCH_CHECK(packed.numel() * 2 == scales.numel() * size, "whole blocks only");
  auto out = at::empty({packed.numel() * 2}, packed.options().dtype(dtype));
  want_large_pages(out);
  if (dtype == at::kFloat) {
    dequantize(packed, scales, values, size, out.mutable_data_ptr<float>());
  } else if (dtype == at::kBFloat16) {
    dequantize(packed, scales, values, size, static_cast<bf16*>(out.mutable_data_ptr()));
  } else {
    TORCH_CHECK(dtype == at::kHalf, "fp32, bf16 or fp16 only");
    dequantize(packed, scales, values, size, out.mutable_data_ptr<at::Half>());
  }
  return out;
}

// Numbers of 8 bits (n) and what each block of them is multiplied by -> fp32 (n), of the 256 values.
at::Tensor nf4_scales(const at::Tensor& codes, const at::Tensor& largest, const at::Tensor& values, int64_t size) {
  int64_t count = codes.numel();
  TORCH_CHECK(codes.is_contiguous() && largest.is_contiguous() && largest.numel() * size >= count, "a scale a block");
  auto out = at::empty({count}, largest.options());
  const uint8_t* from = codes.const_data_ptr<uint8_t>();
  const float *scale = largest.const_data_ptr<float>(), *value = values.const_data_ptr<float>();
  float* to = out.mutable_data_ptr<float>();
  each_block(largest.numel(), size, [&](int64_t block) {
    int64_t end = std::min(count, (block + 1) * size);
    for (int64_t i = block * size; i < end; i++) to[i] = value[from[i]] * scale[block];
  });
  return out;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(intaglio, library) {
  library.def("nf4_quantize(Tensor weights, Tensor borders, int size) -> (Tensor, Tensor)");
  library.def("nf4_dequantize(Tensor packed, Tensor scales, Tensor values, int size, ScalarType dtype) -> Tensor");
  library.def("nf4_scales(Tensor codes, Tensor largest, Tensor values, int size) -> Tensor");
}
TORCH_LIBRARY_IMPL(intaglio, CPU, library) {
  library.impl("nf4_quantize", nf4_quantize);
  library.impl("nf4_dequantize", nf4_dequantize);
  library.impl("nf4_scales", nf4_scales);
}

}  // namespace intaglio
