// What the operators are made of, on plain pointers, so that one operator can be a chain of others.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <optional>

#include "lanes.h"

namespace intaglio {

using MaybeTensor = std::optional<at::Tensor>;

template <class T>
const T* pointer(const at::Tensor& x) { return static_cast<const T*>(x.const_data_ptr()); }
template <class T>
T* mutable_pointer(const at::Tensor& x) { return static_cast<T*>(x.mutable_data_ptr()); }

// Runs f with a null pointer of x's own type.
template <class F>
void typed(const at::Tensor& x, F f) {
  TORCH_CHECK(x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kFloat, "bf16 or fp32 only");
  x.scalar_type() == at::kFloat ? f(static_cast<float*>(nullptr)) : f(static_cast<bf16*>(nullptr));
}

// Shares out rows of `width` numbers, as many at least as are worth another thread.
template <class F>
void each_row(int64_t rows, int64_t width, F f) {
  int64_t grain = std::max<int64_t>(1, 16384 / std::max<int64_t>(width, 1));
  at::parallel_for(0, rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; row++) f(row);
  });
}

// products.cpp

struct Matrix {
  at::ScalarType kind;  // bf16, int8, or uint8 for two numbers of 4 bits
  const void* panels;
  const bf16 *scales, *offsets;  // (panels, groups, 32) each, or null
  const float* bias;
  int64_t inputs, outputs, group;

  Matrix(const at::Tensor& panels, const MaybeTensor& scales, const MaybeTensor& offsets, const MaybeTensor& bias,
         int64_t outputs);
  int64_t groups() const { return inputs / group; }
};

// x (rows, inputs) -> out (rows, outputs)
template <class T, class Out>
void multiply(const Matrix& matrix, const T* x, int64_t rows, Out* out);

// fused.cpp

template <class T>
void rms_norm(const T* x, const float* weight, float eps, int64_t rows, int64_t width, T* out);

// Turns `heads` heads of one token, `stride` apart: the first 2 * half features of each.
template <class T>
void turn(T* x, int64_t heads, int64_t stride, const T* cos, const T* sin, int64_t half);

// both (rows, 2 * width) -> out (rows, width)
template <class T>
void silu_mul(const T* both, int64_t rows, int64_t width, T* out);

// attention.cpp

struct AttentionSizes {
  int64_t heads, kv_heads, width, value_width, block_size, table_stride, window;
  int64_t query_token, query_head, key_slot, key_head, value_slot, value_head;  // strides
  float scale, softcap;
  int64_t groups() const { return heads / kv_heads; }
  int64_t padded() const { return (value_width + kColumns - 1) / kColumns * kColumns; }
};

// See `paged_attention` in attention.cpp.
template <class T>
void attend(const AttentionSizes& sizes, const T* query, const T* keys, const T* values, const int32_t* table,
            const int32_t* starts, const int32_t* lengths, int64_t sequences, T* out);

}  // namespace intaglio
