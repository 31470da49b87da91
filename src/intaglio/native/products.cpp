// x W^T + b for few rows of x: bf16 weights, or integers of 8 or 4 bits with a scale for each group of inputs, and an
// offset if there is one.
//
// Weights come in panels of 32 outputs (see lanes.h). Integers are turned into operands a group at a time, in a buffer
// that the first cache holds, and multiplied as exact integers; the scale is applied to the fp32 sum of the group. What
// offsets add is a product of its own: of a group's summed inputs and its offset.
// Every row of the result is summed in one fixed order, whatever rows stand beside it and however many threads run.

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <vector>

#include "lanes.h"

namespace intaglio {
namespace {

constexpr int64_t kRowBlock = 64;    // rows whose fp32 sums the first cache holds
constexpr int64_t kMostInputs = 512;  // taken down a panel at once

struct nibbles {  // two steps down 16 + 16 columns in 32 bytes: byte j is number j (low) and number j + 32, 8 too high
  uint8_t both;
};
constexpr int64_t bytes_a_pair(bf16) { return 4 * kColumns; }
constexpr int64_t bytes_a_pair(int8_t) { return 2 * kColumns; }
constexpr int64_t bytes_a_pair(nibbles) { return kColumns; }

// The 64 numbers of one pair of steps, as fp32 in the order [32][2].
inline void spread(const bf16* from, float* pair) {
  for (int j = 0; j < 2 * kColumns; j++) pair[j] = widen(from[j]);
}
inline void spread(const int8_t* from, float* pair) {
  for (int j = 0; j < 2 * kColumns; j++) pair[j] = from[j];
}
inline void spread(const nibbles* from, float* pair) {
  for (int j = 0; j < kColumns; j++) {
    pair[j] = int(from[j].both & 15) - 8;
    pair[j + kColumns] = int(from[j].both >> 4) - 8;
  }
}

inline void put(const float* pair, float* to) {
  for (int c = 0; c < kColumns; c++) to[c] = pair[2 * c], to[kColumns + c] = pair[2 * c + 1];
}
inline void put(const float* pair, bf16* to) {  // small integers are exact: their low bits are zero
  for (int j = 0; j < 2 * kColumns; j++) {
    uint32_t bits;
    std::memcpy(&bits, pair + j, 4);
    to[j].bits = bits >> 16;
  }
}

// Operands of `inputs` steps down a panel; the buffer is written only where the weights are not operands already.
template <class E, class W>
inline const E* operands(const W* weights, int64_t inputs, E* buffer) {
  if constexpr (std::is_same_v<E, W>) return weights;
  float pair[2 * kColumns];
  for (int64_t i = 0; i < inputs; i += 2) {
    spread(weights + i / 2 * bytes_a_pair(W{}) / int64_t(sizeof(W)), pair);
    put(pair, buffer + i * kColumns);
  }
  return buffer;
}

#if defined(__AVX512BF16__)
inline __m512bh shortened(const int8_t* from) {  // 32 numbers
  __m512 low = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)from)));
  __m512 high = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)(from + 16))));
  return _mm512_cvtne2ps_pbh(high, low);
}

template <>
inline const bf16* operands(const int8_t* weights, int64_t inputs, bf16* buffer) {
  for (int64_t j = 0; j < inputs * kColumns; j += 32) _mm512_storeu_si512(buffer + j, (__m512i)shortened(weights + j));
  return buffer;
}

template <>
inline const bf16* operands(const nibbles* weights, int64_t inputs, bf16* buffer) {
  bf16 table[32];  // the index has five bits, a number four
  for (int j = 0; j < 32; j++) narrow(float((j & 15) - 8), table[j]);
  __m512i values = _mm512_loadu_si512(table);
  for (int64_t i = 0; i < inputs; i += 2, weights += kColumns) {
    __m512i both = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i*)weights));
    _mm512_storeu_si512(buffer + i * kColumns, _mm512_permutexvar_epi16(both, values));
    _mm512_storeu_si512(buffer + (i + 1) * kColumns, _mm512_permutexvar_epi16(_mm512_srli_epi16(both, 4), values));
  }
  return buffer;
}
#endif

struct Sizes {
  int64_t rows, inputs, outputs, group;
  int64_t groups() const { return (inputs + group - 1) / group; }
};

// What belongs to the integers: (panels, groups, 32) each, or nothing.
struct Steps {
  const bf16 *scales, *offsets;
};

// A panel's share of them in fp32; nothing where there are none.
const float* widened(const bf16* from, int64_t panel, int64_t count, std::vector<float>& to) {
  if (!from) return nullptr;
  to.resize(count);
  for (int64_t i = 0; i < count; i++) to[i] = widen(from[panel * count + i]);
  return to.data();
}

template <class T>
float added_up(const T* x, int64_t count) {
  Lanes total = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) total += load(x + i);
  return sum(i < count ? total + load_some(x + i, count - i) : total);
}

// One panel: 32 outputs of every row. `summed` (rows, groups) are the inputs of each group, added up.
template <class E, class W, class T>
void panel(const E* x, const float* summed, const W* weights, Steps steps, const float* bias, T* out, int64_t number,
           Sizes s) {
  alignas(64) E buffer[kMostInputs * kColumns];
  alignas(64) float sums[kRowBlock * kColumns];
  static thread_local std::vector<float> wide_scales, wide_offsets;
  const float* scales = widened(steps.scales, number, s.groups() * kColumns, wide_scales);
  const float* offsets = widened(steps.offsets, number, s.groups() * kColumns, wide_offsets);
  int64_t first = number * kColumns, columns = std::min<int64_t>(kColumns, s.outputs - first);
  for (int64_t row = 0; row < s.rows; row += kRowBlock) {
    int64_t rows = std::min(kRowBlock, s.rows - row);
    std::memset(sums, 0, rows * kColumns * sizeof(float));
    for (int64_t at = 0; at < s.inputs; at += s.group) {
      int64_t inputs = std::min(s.group, s.inputs - at);
      const W* here = weights + at / 2 * bytes_a_pair(W{}) / int64_t(sizeof(W));
      const float* scale = scales ? scales + at / s.group * kColumns : nullptr;
      multiply(x + row * s.inputs + at, s.inputs, rows, operands(here, inputs, buffer), inputs, scale, sums, kColumns);
    }
    if (offsets)
      multiply(summed + row * s.groups(), s.groups(), rows, offsets, s.groups(), nullptr, sums, kColumns);
    for (int64_t r = 0; r < rows; r++)
      for (int64_t c = 0; c < columns; c++)
        narrow(sums[r * kColumns + c] + (bias ? bias[first + c] : 0), out[(row + r) * s.outputs + first + c]);
  }
}

template <class T, class W>
void product(const T* x, const W* weights, Steps steps, const float* bias, T* out, Sizes s) {
  using E = Operand<T>;
  std::vector<E> wide(std::is_same_v<E, T> ? 0 : s.rows * s.inputs);
  std::vector<float> summed(steps.offsets ? s.rows * s.groups() : 0);
  for (size_t i = 0; i < wide.size(); i++) narrow(widen(x[i]), wide[i]);
  for (size_t i = 0; i < summed.size(); i++) summed[i] = added_up(x + i * s.group, s.group);
  const E* rows = wide.empty() ? reinterpret_cast<const E*>(x) : wide.data();
  int64_t panels = (s.outputs + kColumns - 1) / kColumns;
  int64_t stride = s.inputs / 2 * bytes_a_pair(W{}) / int64_t(sizeof(W));
  int64_t grain = std::max<int64_t>(1, (1 << 16) / (s.rows * s.inputs * kColumns));
  at::parallel_for(0, panels, grain, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; p++) panel<E>(rows, summed.data(), weights + p * stride, steps, bias, out, p, s);
  });
}

// x (..., in) -> (..., outputs). weight (panels, in / 2, 64) as bf16 or int8, (panels, in / 2, 32) as uint8 for 4 bits;
// scales and offsets (panels, groups, 32) in bf16, bias (outputs) in fp32.
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& scales,
                  const std::optional<at::Tensor>& offsets, const std::optional<at::Tensor>& bias, int64_t outputs) {
  auto shape = x.sizes().vec();
  int64_t inputs = shape.back();
  TORCH_CHECK(weight.size(1) * 2 == inputs && weight.is_contiguous(), "packed for another width");
  TORCH_CHECK(x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kFloat, "bf16 or fp32 only");
  shape.back() = outputs;
  auto out = at::empty(shape, x.options());
  auto dense = x.contiguous();
  int64_t group = scales ? inputs / scales->size(1) : std::min(inputs, kMostInputs);
  TORCH_CHECK(group <= kMostInputs, "groups of at most ", kMostInputs);
  Sizes sizes{dense.numel() / inputs, inputs, outputs, group};
  if (!sizes.rows) return out;
  Steps steps{scales ? static_cast<const bf16*>(scales->const_data_ptr()) : nullptr,
              offsets ? static_cast<const bf16*>(offsets->const_data_ptr()) : nullptr};
  const float* added = bias ? bias->const_data_ptr<float>() : nullptr;
  auto run = [&]<class T, class W>(T*, W*) {
    product(static_cast<const T*>(dense.const_data_ptr()), static_cast<const W*>(weight.const_data_ptr()), steps, added,
            static_cast<T*>(out.mutable_data_ptr()), sizes);
  };
  auto choose_weights = [&]<class T>(T* type) {
    if (weight.scalar_type() == at::kByte) return run(type, static_cast<nibbles*>(nullptr));
    if (weight.scalar_type() == at::kChar) return run(type, static_cast<int8_t*>(nullptr));
    run(type, static_cast<bf16*>(nullptr));
  };
  x.scalar_type() == at::kFloat ? choose_weights(static_cast<float*>(nullptr))
                                : choose_weights(static_cast<bf16*>(nullptr));
  return out;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(intaglio, library) {
  library.def("linear(Tensor x, Tensor weight, Tensor? scales, Tensor? offsets, Tensor? bias, int outputs) -> Tensor");
}
TORCH_LIBRARY_IMPL(intaglio, CPU, library) { library.impl("linear", linear); }

}  // namespace intaglio
