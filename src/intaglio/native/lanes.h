// A row of fp32 lanes, bf16, and the one product that everything here is made of.
//
// The compiler's vector types carry the arithmetic to whatever the processor has; AVX512 with bf16 gets two
// instructions of its own. A panel is 32 columns of a matrix, laid out so that one step down it is one read:
// fp32 as [k][32], bf16 as [k / 2][32][2], two rows of the matrix interleaved, which is how `vdpbf16ps` eats them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace intaglio {

constexpr int kColumns = 32;  // of a panel
#if defined(__AVX512F__)
constexpr int kLanes = 16, kMostRows = 8;  // rows whose sums the registers hold
#else
constexpr int kLanes = 8, kMostRows = 2;
#endif
constexpr int kVectors = kColumns / kLanes;

typedef float Lanes __attribute__((vector_size(kLanes * 4)));
typedef int32_t Ints __attribute__((vector_size(kLanes * 4)));
typedef uint16_t Halves __attribute__((vector_size(kLanes * 2)));
typedef int8_t Bytes __attribute__((vector_size(kLanes)));

struct bf16 {
  uint16_t bits;
};

inline float widen(float x) { return x; }
inline float widen(bf16 x) {
  uint32_t bits = uint32_t(x.bits) << 16;
  float wide;
  std::memcpy(&wide, &bits, 4);
  return wide;
}

inline void narrow(float x, float& out) { out = x; }
inline void narrow(float x, bf16& out) {  // to nearest, ties to even; a NaN stays one
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  out.bits = std::isnan(x) ? 0x7fc0 : uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// What numbers of type T are multiplied as: bf16 as itself only where an instruction does it.
#if defined(__AVX512BF16__)
template <class T> using Operand = T;
#else
template <class T> using Operand = float;
#endif
template <class E> constexpr int kPair = std::is_same_v<E, bf16> ? 2 : 1;

inline Lanes load(const float* at) {
  Lanes lanes;
  std::memcpy(&lanes, at, sizeof lanes);
  return lanes;
}
inline Lanes load(const bf16* at) {
  Halves halves;
  std::memcpy(&halves, at, sizeof halves);
  Ints bits = __builtin_convertvector(halves, Ints) << 16;
  return (Lanes)bits;
}
template <class T>
inline Lanes load_some(const T* at, int64_t count) {  // of a row that may end within the lanes; 0 behind it
  if (count >= kLanes) return load(at);
  Lanes lanes = {};
  for (int64_t i = 0; i < count; i++) lanes[i] = widen(at[i]);
  return lanes;
}
inline void store(Lanes lanes, float* at) { std::memcpy(at, &lanes, sizeof lanes); }
inline Lanes splat(float x) { return Lanes{} + x; }
inline Lanes choose(Ints where, Lanes yes, Lanes no) { return where ? yes : no; }
inline Lanes most_of(Lanes a, Lanes b) { return choose(a > b, a, b); }
inline Ints counting() {
  Ints lanes = {};
  for (int i = 0; i < kLanes; i++) lanes[i] = i;
  return lanes;
}

#if defined(__AVX512F__)
inline float sum(Lanes lanes) { return _mm512_reduce_add_ps((__m512)lanes); }
inline float largest(Lanes lanes) { return _mm512_reduce_max_ps((__m512)lanes); }
#else
inline float sum(Lanes lanes) {
  float total = 0;
  for (int i = 0; i < kLanes; i++) total += lanes[i];
  return total;
}
inline float largest(Lanes lanes) {
  float best = lanes[0];
  for (int i = 1; i < kLanes; i++) best = std::max(best, lanes[i]);
  return best;
}
#endif

inline void narrow(Lanes lanes, float* to) { store(lanes, to); }
inline void narrow(Lanes lanes, bf16* to) {
#if defined(__AVX512BF16__)
  auto made = _mm512_cvtneps_pbh((__m512)lanes);
  std::memcpy(static_cast<void*>(to), &made, sizeof made);
#else
  for (int i = 0; i < kLanes; i++) narrow(lanes[i], to[i]);
#endif
}

template <class T>
inline void narrow_some(Lanes lanes, T* to, int64_t count) {  // the counterpart of load_some
  if (count >= kLanes) return narrow(lanes, to);
  for (int64_t i = 0; i < count; i++) narrow(lanes[i], to[i]);
}

// e^x to about one unit in the last place; 0 below -87, e^88 above 88; exactly 1 at 0.
__attribute__((always_inline)) inline Lanes exp(Lanes x) {
  Lanes held = choose(x > 88.0f, splat(88.0f), choose(x < -87.0f, splat(-87.0f), x));
  Lanes shifted = held * 1.44269504f + 12582912.0f;  // 1.5 * 2^23: what is left in the mantissa is the nearest integer
  Lanes power = shifted - 12582912.0f;
  Lanes rest = held - power * 0.693145752f - power * 1.42860677e-6f;
  Lanes series = rest * 1.38888889e-3f + 8.33333333e-3f;
  series = series * rest + 4.16666667e-2f;
  series = series * rest + 1.66666667e-1f;
  series = series * rest + 0.5f;
  series = series * rest + 1.0f;
  series = series * rest + 1.0f;
  Ints exponent = (__builtin_convertvector(power, Ints) + 127) << 23;
  Lanes scale;
  std::memcpy(&scale, &exponent, sizeof scale);
  return choose(x < -87.0f, Lanes{}, series * scale);
}

inline float exp(float x) { return exp(splat(x))[0]; }
inline Lanes sigmoid(Lanes x) { return 1.0f / (1.0f + exp(-x)); }
inline Lanes tanh(Lanes x) { return 1.0f - 2.0f / (exp(2.0f * x) + 1.0f); }

#if defined(__AVX512BF16__)
inline void step(Lanes& sum, const bf16* x, const bf16* column) {
  int32_t pair;
  std::memcpy(&pair, x, 4);
  auto row = (__m512bh)_mm512_set1_epi32(pair);
  sum = _mm512_dpbf16_ps(sum, row, (__m512bh)_mm512_loadu_si512(column));
}
#endif
inline void step(Lanes& sum, const float* x, const float* column) { sum += *x * load(column); }

// out[r][column] += sum over k of x[r][k] * panel[k][column] for R rows. The order is the same for every R, so the bits
// of a row never depend on the rows beside it.
template <int R, class E>
inline void tile(const E* x, int64_t x_stride, const E* panel, int64_t k, float* out, int64_t out_stride) {
  constexpr int P = kPair<E>;
  Lanes sums[R][kVectors];
  for (int r = 0; r < R; r++)
    for (int v = 0; v < kVectors; v++) sums[r][v] = load(out + r * out_stride + v * kLanes);
  for (int64_t i = 0; i < k; i += P)
    for (int r = 0; r < R; r++)
      for (int v = 0; v < kVectors; v++)
        step(sums[r][v], x + r * x_stride + i, panel + i * kColumns + v * kLanes * P);
  for (int r = 0; r < R; r++)
    for (int v = 0; v < kVectors; v++) store(sums[r][v], out + r * out_stride + v * kLanes);
}

// The same for any number of rows.
template <int R = kMostRows, class E>
inline void multiply(const E* x, int64_t x_stride, int64_t rows, const E* panel, int64_t k, float* out,
                     int64_t out_stride) {
  for (; rows >= R; rows -= R, x += R * x_stride, out += R * out_stride)
    tile<R>(x, x_stride, panel, k, out, out_stride);
  if constexpr (R > 1) multiply<R - 1>(x, x_stride, rows, panel, k, out, out_stride);
}

}  // namespace intaglio
