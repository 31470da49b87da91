// x W^T + b: bf16 weights, or integers of 8 or 4 bits with a scale for each group of inputs, and an offset if there is
// one.
//
// Weights come in panels of 32 outputs (see lanes.h). With weights of integers, bf16 inputs are rounded to 8 bits
// themselves, with a scale for each row and group: a group's products are then summed exactly, as integers, four at a
// time where the processor can, and scaled once. Inputs in fp32 are multiplied with what the integers stand for.
// Every row of the result is summed in one fixed order, whatever rows stand beside it and however many threads run.

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <vector>

#include "kernels.h"

namespace intaglio {
namespace {

constexpr int64_t kRowBlock = 64;     // rows whose fp32 sums the first cache holds
constexpr int64_t kMostInputs = 256;  // taken down a panel at once; a multiple of every group
constexpr int kIntegerRows = kMostRows / 2;

struct nibbles {  // byte j is number j (low) and number j + 64 of a step of 4 inputs down 32 columns, 8 too high
  uint8_t both;
};

// Bytes that one input takes in a panel.
constexpr int64_t bytes_an_input(bf16) { return 2 * kColumns; }
constexpr int64_t bytes_an_input(int8_t) { return kColumns; }
constexpr int64_t bytes_an_input(nibbles) { return kColumns / 2; }
template <class W>
inline const W* down(const void* panel, int64_t inputs) {
  return reinterpret_cast<const W*>(static_cast<const char*>(panel) + inputs * bytes_an_input(W{}));
}

// A row of sums becomes 32 outputs, or as many as there are.
template <class Out>
inline void finish(const Lanes* sums, const float* bias, Out* out, int64_t columns) {
  for (int v = 0; v < kVectors; v++) {
    int64_t at = v * kLanes;
    narrow_some(bias ? sums[v] + load_some(bias + at, columns - at) : sums[v], out + at, columns - at);
  }
}

// Products of bf16 or fp32

// Operands of `inputs` steps down a panel from `at` on; the buffer is written where the weights are not operands yet.
template <class E>
const E* operands(const bf16* panel, const Matrix&, int64_t, int64_t at, int64_t inputs, E* buffer) {
  const bf16* from = panel + at * kColumns;
  if constexpr (std::is_same_v<E, bf16>) {
    return from;
  } else {
    for (int64_t i = 0; i < inputs; i += 2)
      for (int c = 0; c < kColumns; c++)
        for (int odd = 0; odd < 2; odd++) buffer[(i + odd) * kColumns + c] = widen(from[i * kColumns + 2 * c + odd]);
    return buffer;
  }
}

inline int number(const int8_t* step, int j) { return step[j]; }
inline int number(const nibbles* step, int j) {
  return j < 2 * kColumns ? (step[j].both & 15) - 8 : (step[j - 2 * kColumns].both >> 4) - 8;
}

template <class E, class W>
const E* operands(const W* panel, const Matrix& m, int64_t panel_number, int64_t at, int64_t inputs, E* buffer) {
  for (int64_t i = 0; i < inputs; i += 4) {
    const W* step = down<W>(panel, at + i);
    int64_t group = (panel_number * m.groups() + (at + i) / m.group) * kColumns;
    for (int c = 0; c < kColumns; c++) {
      float scale = widen(m.scales[group + c]), offset = m.offsets ? widen(m.offsets[group + c]) : 0;
      for (int j = 0; j < 4; j++) buffer[(i + j) * kColumns + c] = number(step, 4 * c + j) * scale + offset;
    }
  }
  return buffer;
}

template <class W, class E, class Out>
void float_panel(const Matrix& m, const E* x, int64_t rows, int64_t number, Out* out) {
  alignas(64) E buffer[std::is_same_v<E, W> ? 1 : kMostInputs * kColumns];
  alignas(64) Lanes sums[kRowBlock][kVectors];
  const W* panel = down<W>(m.panels, number * m.inputs);
  int64_t first = number * kColumns;
  for (int64_t row = 0; row < rows; row += kRowBlock) {
    int64_t count = std::min(kRowBlock, rows - row);
    std::memset(sums, 0, count * sizeof sums[0]);
    for (int64_t at = 0; at < m.inputs; at += kMostInputs) {
      int64_t inputs = std::min(kMostInputs, m.inputs - at);
      const E* here = operands<E>(panel, m, number, at, inputs, buffer);
      multiply(x + row * m.inputs + at, m.inputs, count, here, inputs, reinterpret_cast<float*>(sums), kColumns);
    }
    for (int64_t r = 0; r < count; r++)
      finish(sums[r], m.bias ? m.bias + first : nullptr, out + (row + r) * m.outputs + first, m.outputs - first);
  }
}

// Products of integers

// Inputs as 8-bit integers with a scale for each row and group, and the sum of each group's scaled integers.
struct Rounded {
  std::vector<int8_t> ints;
  std::vector<float> scales, sums;
};

void round_group(const bf16* x, int64_t count, int8_t* ints, float& scale, float& summed) {
  Lanes top = {};
  for (int64_t i = 0; i < count; i += kLanes) {
    Lanes lanes = load_some(x + i, count - i);
    top = most_of(top, most_of(lanes, -lanes));
  }
  float most = largest(top);
  scale = most / 127;
  Lanes inverse = splat(most > 0 ? 127 / most : 0);
  Ints total = {};
  for (int64_t i = 0; i < count; i += kLanes) {
    Lanes shifted = load_some(x + i, count - i) * inverse + 12582912.0f;  // the nearest integer, see exp
    Ints whole = (Ints)shifted - 0x4b400000;
    auto bytes = __builtin_convertvector(whole, Bytes);
    std::memcpy(ints + i, &bytes, std::min<int64_t>(kLanes, count - i));
    total += whole;
  }
  summed = scale * sum(__builtin_convertvector(total, Lanes));  // small integers, so exactly
}

Rounded rounded(const Matrix& m, const bf16* x, int64_t rows) {
  int64_t groups = rows * m.groups();
  Rounded made{std::vector<int8_t>(rows * m.inputs), std::vector<float>(groups), std::vector<float>(groups)};
  at::parallel_for(0, groups, 4096, [&](int64_t begin, int64_t end) {
    for (int64_t g = begin; g < end; g++)
      round_group(x + g * m.group, m.group, &made.ints[g * m.group], made.scales[g], made.sums[g]);
  });
  return made;
}

// 4 inputs of 32 columns, as unsigned bytes: what they are too high by is `kTooHigh`.
template <class W> constexpr float kTooHigh = std::is_same_v<W, nibbles> ? 8 : 128;

inline void unsigned_step(const int8_t* from, Ints (&words)[kVectors]) {
  std::memcpy(words, from, sizeof words);
  for (Ints& word : words) word ^= int32_t(0x80808080);
}
inline void unsigned_step(const nibbles* from, Ints (&words)[kVectors]) {
  std::memcpy(words, from, sizeof words / 2);
  for (int v = 0; v < kVectors / 2; v++) {
    words[kVectors / 2 + v] = (words[v] >> 4) & 0x0f0f0f0f;
    words[v] &= 0x0f0f0f0f;
  }
}

// Each lane's four unsigned bytes times four signed ones, added to what it holds.
inline void dot(Ints& sum, Ints words, const int8_t* x) {
  int32_t four;
  std::memcpy(&four, x, 4);
#if defined(__AVX512VNNI__)
  sum = (Ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)words, _mm512_set1_epi32(four));
#else
  for (int j = 0; j < 4; j++) sum += ((words >> 8 * j) & 255) * int32_t(x[j]);
#endif
}

template <int R, class W, class Out>
inline void integer_tile(const Matrix& m, const Rounded& x, int64_t row, int64_t number, Out* out) {
  Lanes sums[R][kVectors] = {};
  const W* panel = down<W>(m.panels, number * m.inputs);
  for (int64_t g = 0; g < m.groups(); g++) {
    Ints ints[R][kVectors] = {};
    for (int64_t i = g * m.group; i < (g + 1) * m.group; i += 4) {
      Ints words[kVectors];
      unsigned_step(down<W>(panel, i), words);
      for (int r = 0; r < R; r++)
        for (int v = 0; v < kVectors; v++) dot(ints[r][v], words[v], &x.ints[(row + r) * m.inputs + i]);
    }
    int64_t steps = (number * m.groups() + g) * kColumns, group = row * m.groups() + g;
    for (int v = 0; v < kVectors; v++) {
      Lanes scale = load(m.scales + steps + v * kLanes), offset = scale * -kTooHigh<W>;
      if (m.offsets) offset += load(m.offsets + steps + v * kLanes);
      for (int r = 0; r < R; r++) {
        int64_t at = group + r * m.groups();
        sums[r][v] += __builtin_convertvector(ints[r][v], Lanes) * (scale * x.scales[at]) + offset * x.sums[at];
      }
    }
  }
  int64_t first = number * kColumns;
  for (int r = 0; r < R; r++)
    finish(sums[r], m.bias ? m.bias + first : nullptr, out + (row + r) * m.outputs + first, m.outputs - first);
}

template <class W, int R = kIntegerRows, class Out>
void integer_panel(const Matrix& m, const Rounded& x, int64_t row, int64_t rows, int64_t number, Out* out) {
  for (; row + R <= rows; row += R) integer_tile<R, W>(m, x, row, number, out);
  if constexpr (R > 1) integer_panel<W, R - 1>(m, x, row, rows, number, out);
}

// Both

template <class F>
void each_panel(const Matrix& m, int64_t rows, F f) {
  int64_t panels = (m.outputs + kColumns - 1) / kColumns;
  int64_t grain = std::max<int64_t>(1, (1 << 16) / (rows * m.inputs * kColumns));
  at::parallel_for(0, panels, grain, [&](int64_t begin, int64_t end) {
    for (int64_t number = begin; number < end; number++) f(number);
  });
}

template <class W, class T, class Out>
void product(const Matrix& m, const T* x, int64_t rows, Out* out) {
  if constexpr (std::is_same_v<T, bf16> && !std::is_same_v<W, bf16>) {
    Rounded inputs = rounded(m, x, rows);
    each_panel(m, rows, [&](int64_t number) { integer_panel<W>(m, inputs, 0, rows, number, out); });
  } else {
    using E = Operand<T>;
    std::vector<E> wide(std::is_same_v<E, T> ? 0 : rows * m.inputs);
    for (size_t i = 0; i < wide.size(); i++) narrow(widen(x[i]), wide[i]);
    const E* from = wide.empty() ? reinterpret_cast<const E*>(x) : wide.data();
    each_panel(m, rows, [&](int64_t number) { float_panel<W>(m, from, rows, number, out); });
  }
}

}  // namespace

Matrix::Matrix(const at::Tensor& panels, const MaybeTensor& scales, const MaybeTensor& offsets, const MaybeTensor& bias,
               int64_t outputs)
    : kind(panels.scalar_type()), panels(panels.const_data_ptr()), scales(scales ? pointer<bf16>(*scales) : nullptr),
      offsets(offsets ? pointer<bf16>(*offsets) : nullptr), bias(bias ? pointer<float>(*bias) : nullptr),
      inputs(panels.size(1) * (scales ? 4 : 2)), outputs(outputs), group(scales ? inputs / scales->size(1) : inputs) {
  TORCH_CHECK(panels.is_contiguous() && panels.size(0) == (outputs + kColumns - 1) / kColumns, "not these panels");
  TORCH_CHECK((kind == at::kBFloat16) == !scales, "integers, and only they, have scales");
  TORCH_CHECK(!scales || (group % 4 == 0 && kMostInputs % group == 0), "groups of 4, 8, ... inputs");
}

template <class T, class Out>
void multiply(const Matrix& m, const T* x, int64_t rows, Out* out) {
  if (!rows) return;
  if (m.kind == at::kByte) return product<nibbles>(m, x, rows, out);
  if (m.kind == at::kChar) return product<int8_t>(m, x, rows, out);
  product<bf16>(m, x, rows, out);
}
template void multiply(const Matrix&, const float*, int64_t, float*);
template void multiply(const Matrix&, const bf16*, int64_t, bf16*);
template void multiply(const Matrix&, const bf16*, int64_t, float*);

namespace {

// x (..., in) -> (..., outputs), in fp32 if `wide`. weight (panels, in / 2, 64) as bf16, (panels, in / 4, 128) as int8,
// (panels, in / 4, 64) as uint8 for 4 bits; scales and offsets (panels, groups, 32) in bf16, bias (outputs) in fp32.
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const MaybeTensor& scales, const MaybeTensor& offsets,
                  const MaybeTensor& bias, int64_t outputs, bool wide) {
  Matrix matrix(weight, scales, offsets, bias, outputs);
  auto shape = x.sizes().vec();
  TORCH_CHECK(matrix.inputs == shape.back(), "packed for another width");
  shape.back() = outputs;
  auto dense = x.contiguous();
  auto out = at::empty(shape, wide ? x.options().dtype(at::kFloat) : x.options());
  int64_t rows = dense.numel() / matrix.inputs;
  typed(x, [&]<class T>(T*) {
    if (wide) return multiply(matrix, pointer<T>(dense), rows, mutable_pointer<float>(out));
    multiply(matrix, pointer<T>(dense), rows, mutable_pointer<T>(out));
  });
  return out;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(intaglio, library) {
  library.def(
      "linear(Tensor x, Tensor weight, Tensor? scales, Tensor? offsets, Tensor? bias, int outputs, bool wide) "
      "-> Tensor");
}
TORCH_LIBRARY_IMPL(intaglio, CPU, library) { library.impl("linear", linear); }

}  // namespace intaglio
