// Chains of small operations in one pass over a row: each costs as much to start as to run when a step has few rows.

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include "lanes.h"

namespace intaglio {
namespace {

constexpr int64_t kGrain = 16384;  // numbers for which another thread is woken

// Runs f with a pointer of x's own type.
template <class F>
void typed(const at::Tensor& x, F f) {
  TORCH_CHECK(x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kFloat, "bf16 or fp32 only");
  if (x.scalar_type() == at::kFloat) {
    f(static_cast<float*>(x.data_ptr()));
  } else {
    f(static_cast<bf16*>(x.data_ptr()));
  }
}

template <class F>
void each_row(int64_t rows, int64_t width, F f) {
  at::parallel_for(0, rows, std::max<int64_t>(1, kGrain / std::max<int64_t>(width, 1)), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; row++) f(row);
  });
}

// x / sqrt(mean x^2 + eps) * weight over the last dimension, weight in fp32.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  auto dense = x.contiguous();
  auto out = at::empty_like(dense);
  int64_t width = weight.numel();
  const float* w = weight.const_data_ptr<float>();
  typed(dense, [&](auto* from) {
    auto* to = static_cast<decltype(from)>(out.mutable_data_ptr());
    each_row(dense.numel() / width, width, [&](int64_t row) {
      auto *in = from + row * width, *made = to + row * width;
      Lanes squares = {};
      int64_t i = 0;
      for (; i + kLanes <= width; i += kLanes) {
        Lanes lanes = load(in + i);
        squares += lanes * lanes;
      }
      Lanes rest = load_some(in + i, width - i);
      float scale = 1.0f / std::sqrt(sum(squares + rest * rest) / width + float(eps));
      for (int64_t j = 0; j < width; j++) narrow(widen(in[j]) * scale * w[j], made[j]);
    });
  });
  return out;
}

// x (B, H, T, D), any strides above the last: its first R features turned in place, cos and sin (B or 1, 1, T, R).
void rotate_(at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  int64_t heads = x.size(1), tokens = x.size(2), half = cos.size(3) / 2;
  TORCH_CHECK(x.stride(3) == 1 && cos.is_contiguous() && sin.is_contiguous(), "rows must be dense");
  typed(x, [&](auto* from) {
    using T = std::remove_pointer_t<decltype(from)>;
    auto *c = static_cast<const T*>(cos.const_data_ptr()), *s = static_cast<const T*>(sin.const_data_ptr());
    each_row(x.size(0) * tokens, heads * half * 2, [&](int64_t row) {
      int64_t b = row / tokens, t = row % tokens, angle = (cos.size(0) == 1 ? t : row) * half * 2;
      for (int64_t h = 0; h < heads; h++) {
        T* head = from + b * x.stride(0) + h * x.stride(1) + t * x.stride(2);
        for (int64_t i = 0; i < half; i++) {
          float first = widen(head[i]), second = widen(head[i + half]);
          narrow(first * widen(c[angle + i]) + second * widen(s[angle + i]), head[i]);
          narrow(second * widen(c[angle + half + i]) + first * widen(s[angle + half + i]), head[i + half]);
        }
      }
    });
  });
}

// (..., 2 * I), a gate and what it multiplies -> (..., I): silu(gate) * up.
at::Tensor silu_mul(const at::Tensor& both) {
  auto dense = both.contiguous();
  auto shape = dense.sizes().vec();
  int64_t width = shape.back() /= 2;
  auto out = at::empty(shape, dense.options());
  typed(dense, [&](auto* from) {
    auto* to = static_cast<decltype(from)>(out.mutable_data_ptr());
    each_row(out.numel() / width, width * 4, [&](int64_t row) {
      auto *gate = from + row * 2 * width, *up = gate + width, *made = to + row * width;
      for (int64_t i = 0; i < width; i += kLanes) {
        int64_t count = std::min<int64_t>(kLanes, width - i);
        Lanes g = count == kLanes ? load(gate + i) : load_some(gate + i, count);
        Lanes u = count == kLanes ? load(up + i) : load_some(up + i, count);
        Lanes product = g * sigmoid(g) * u;
        if (count == kLanes) {
          narrow(product, made + i);
        } else {
          for (int64_t j = 0; j < count; j++) narrow(product[j], made[i + j]);
        }
      }
    });
  });
  return out;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(intaglio, library) {
  library.def("rms_norm(Tensor x, Tensor weight, float eps) -> Tensor");
  library.def("rotate_(Tensor(a!) x, Tensor cos, Tensor sin) -> ()");
  library.def("silu_mul(Tensor both) -> Tensor");
}
TORCH_LIBRARY_IMPL(intaglio, CPU, library) {
  library.impl("rms_norm", rms_norm);
  library.impl("rotate_", rotate_);
  library.impl("silu_mul", silu_mul);
}

}  // namespace intaglio
