// Rows of keys, values or anything else become the panels that products read (see lanes.h), and other transpositions.
#pragma once

#include "lanes.h"

namespace intaglio {

#if defined(__AVX512F__)
// Which of two rows' 16 words stand in each when the halves, quarters, ... that lie across change places.
template <int Distance>
struct Exchanged {
  alignas(64) int32_t upper[16] = {}, lower[16] = {};
  constexpr Exchanged() {
    for (int i = 0; i < 16; i++) {
      upper[i] = i & Distance ? i + 16 - Distance : i;
      lower[i] = i & Distance ? i + 16 : i + Distance;
    }
  }
};

template <int Distance>
inline void exchange(__m512i (&lines)[16]) {
  static constexpr Exchanged<Distance> words;
  const __m512i upper = _mm512_load_si512(words.upper), lower = _mm512_load_si512(words.lower);
#pragma GCC unroll 16
  for (int i = 0; i < 16; i++) {
    if (i & Distance) continue;
    __m512i a = lines[i], b = lines[i + Distance];
    lines[i] = _mm512_permutex2var_epi32(a, upper, b);
    lines[i + Distance] = _mm512_permutex2var_epi32(a, lower, b);
  }
  if constexpr (Distance > 1) exchange<Distance / 2>(lines);
}

template <class E>
inline void transpose(const E* const* rows, int64_t at, uint32_t* to) {
  __m512i lines[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; i++) lines[i] = _mm512_loadu_si512((const uint32_t*)rows[i] + at);
  exchange<8>(lines);
#pragma GCC unroll 16
  for (int i = 0; i < 16; i++) _mm512_storeu_si512(to + (at + i) * kColumns, lines[i]);
}
#endif

// Rows of 32 keys -> a panel whose columns are the keys. A word is one number of fp32 or two of bf16.
template <class E>
inline void key_panel(const E* const* rows, int64_t width, E* panel) {
  int64_t words = width / kPair<E>, at = 0;
  auto* to = (uint32_t*)panel;
#if defined(__AVX512F__)
  for (; at + 16 <= words; at += 16) {
    transpose(rows, at, to);
    transpose(rows + 16, at, to + 16);
  }
#endif
  for (; at < words; at++)
    for (int key = 0; key < kColumns; key++) std::memcpy(to + at * kColumns + key, (const uint32_t*)rows[key] + at, 4);
}

// Columns c to c + 31 of 32 values -> a panel whose steps are the keys; columns that are missing are 0.
inline void value_step(const float* const* rows, int64_t columns, float* __restrict panel) {
  std::memcpy(panel, rows[0], columns * sizeof(float));
}
inline void value_step(const bf16* const* rows, int64_t columns, bf16* __restrict panel) {
  const bf16 *__restrict one = rows[0], *__restrict two = rows[1];
  auto* words = (uint32_t*)panel;
  for (int64_t j = 0; j < columns; j++) words[j] = uint32_t(one[j].bits) | uint32_t(two[j].bits) << 16;
}
template <class E>
inline void value_panel(const E* const* rows, int64_t c, int64_t width, E* panel) {
  int64_t columns = std::min<int64_t>(kColumns, width - c);
  if (columns < kColumns) std::memset(static_cast<void*>(panel), 0, sizeof(E) * kColumns * kColumns);
  for (int key = 0; key < kColumns; key += kPair<E>, panel += kPair<E> * kColumns) {
    const E* here[] = {rows[key] + c, rows[key + kPair<E> - 1] + c};
    columns == kColumns ? value_step(here, kColumns, panel) : value_step(here, columns, panel);
  }
}

// Columns 0 to 15 of 32 rows -> 16 rows of 32; both strides in numbers.
inline void turn_block(const float* from, int64_t stride, float* to, int64_t to_stride) {
  for (int row = 0; row < kColumns; row++)
    for (int column = 0; column < 16; column++) to[column * to_stride + row] = from[row * stride + column];
}
#if defined(__AVX512F__)
inline void turn_block(const bf16* from, int64_t stride, bf16* to, int64_t to_stride) {
  __m512i lines[16];  // of 16 columns, two rows to a word
#pragma GCC unroll 16
  for (int i = 0; i < 16; i++) {
    auto upper = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)(from + 2 * i * stride)));
    auto lower = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)(from + (2 * i + 1) * stride)));
    lines[i] = _mm512_or_si512(upper, _mm512_slli_epi32(lower, 16));
  }
  exchange<8>(lines);
#pragma GCC unroll 16
  for (int i = 0; i < 16; i++) _mm512_storeu_si512(to + i * to_stride, lines[i]);
}
#endif

}  // namespace intaglio
