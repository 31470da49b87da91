// Chains of small operations in one pass over a row: each costs as much to start as to run when a step has few rows.

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include "kernels.h"
#include "rows.h"

namespace intaglio {

template <class T>
void rms_norm(const T* x, const float* weight, float eps, int64_t rows, int64_t width, T* out) {
  each_row(rows, width, [&](int64_t row) { norm_row(x + row * width, weight, eps, width, out + row * width); });
}

template <class T>
void turn(T* x, int64_t heads, int64_t stride, const T* cos, const T* sin, int64_t half) {
  for (T* head = x; head < x + heads * stride; head += stride) turn_head(head, cos, sin, sin + half, half, head);
}

template <class T>
void silu_mul(const T* both, int64_t rows, int64_t width, T* out) {
  each_row(rows, width * 4, [&](int64_t row) {
    const T* gate = both + row * 2 * width;
    gate_row(gate, gate + width, width, out + row * width);
  });
}

#define INTAGLIO_OF(T)                                                              \
  template void rms_norm(const T*, const float*, float, int64_t, int64_t, T*);      \
  template void turn(T*, int64_t, int64_t, const T*, const T*, int64_t);            \
  template void silu_mul(const T*, int64_t, int64_t, T*);
INTAGLIO_OF(float)
INTAGLIO_OF(bf16)

namespace {

// x / sqrt(mean x^2 + eps) * weight over the last dimension, weight in fp32.
at::Tensor rms_norm_(const at::Tensor& x, const at::Tensor& weight, double eps) {
  auto dense = x.contiguous();
  auto out = at::empty_like(dense);
  int64_t width = weight.numel();
  typed(x, [&]<class T>(T*) {
    rms_norm(pointer<T>(dense), pointer<float>(weight), eps, dense.numel() / width, width, mutable_pointer<T>(out));
  });
  return out;
}

// x (B, H, T, D), any strides above the last: its first R features turned in place, cos and sin (B or 1, 1, T, R).
void rotate_(at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  int64_t heads = x.size(1), tokens = x.size(2), width = cos.size(3);
  TORCH_CHECK(x.stride(3) == 1 && cos.is_contiguous() && sin.is_contiguous(), "rows must be dense");
  typed(x, [&]<class T>(T*) {
    each_row(x.size(0) * tokens, heads * width, [&](int64_t row) {
      int64_t b = row / tokens, t = row % tokens, angle = (cos.size(0) == 1 ? t : row) * width;
      T* token = mutable_pointer<T>(x) + b * x.stride(0) + t * x.stride(2);
      turn(token, heads, x.stride(1), pointer<T>(cos) + angle, pointer<T>(sin) + angle, width / 2);
    });
  });
}

// (..., 2 * I), a gate and what it multiplies -> (..., I): silu(gate) * up.
at::Tensor silu_mul_(const at::Tensor& both) {
  auto dense = both.contiguous();
  auto shape = dense.sizes().vec();
  int64_t width = shape.back() /= 2;
  auto out = at::empty(shape, dense.options());
  typed(both, [&]<class T>(T*) { silu_mul(pointer<T>(dense), out.numel() / width, width, mutable_pointer<T>(out)); });
  return out;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(intaglio, library) {
  library.def("rms_norm(Tensor x, Tensor weight, float eps) -> Tensor");
  library.def("rotate_(Tensor(a!) x, Tensor cos, Tensor sin) -> ()");
  library.def("silu_mul(Tensor both) -> Tensor");
}
TORCH_LIBRARY_IMPL(intaglio, CPU, library) {
  library.impl("rms_norm", rms_norm_);
  library.impl("rotate_", rotate_);
  library.impl("silu_mul", silu_mul_);
}

}  // namespace intaglio
