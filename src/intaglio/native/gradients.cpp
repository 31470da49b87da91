// The chains of small operations that a training step is full of, each in one pass forward and one backward.
//
// Everything between a read and a write is fp32, so what comes out is rounded once. Sums over rows are taken in groups
// of a fixed size, so no bit depends on the number of threads.

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <tuple>

#include "kernels.h"
#include "rows.h"

namespace intaglio {
namespace {

using at::Tensor;

constexpr int64_t kGroup = 128;  // rows whose part of a weight's gradient is summed together

// x (..., E), weight (E) -> x / sqrt(mean x^2 + eps) * weight, and the factor before the weight (..., 1) in fp32.
std::tuple<Tensor, Tensor> rms_norm_kept(const Tensor& x, const Tensor& weight, double eps) {
  auto dense = x.contiguous();
  int64_t width = weight.numel(), rows = dense.numel() / width;
  auto shape = x.sizes().vec();
  shape.back() = 1;
  auto out = at::empty_like(dense), scales = at::empty(shape, x.options().dtype(at::kFloat));
  typed(x, [&]<class T>(T*) {
    const T *from = pointer<T>(dense), *by = pointer<T>(weight);
    T* to = mutable_pointer<T>(out);
    float* kept = mutable_pointer<float>(scales);
    each_row(rows, width, [=](int64_t row) {
      kept[row] = norm_row(from + row * width, by, float(eps), width, to + row * width);
    });
  });
  return {out, scales};
}

// One row of the gradient by x; its part of that by the weight is added to `by_weight`, if there is one.
template <class T>
void slope_row(const T* d_out, const T* x, const T* weight, float scale, int64_t width, T* d_x, float* by_weight) {
  Lanes along = {};  // the part of d_row that points along the row
  for (int64_t i = 0; i < width; i += kLanes) {
    int64_t count = width - i;
    Lanes row = load_some(x + i, count) * scale, d = load_some(d_out + i, count);
    along += d * load_some(weight + i, count) * row;
    if (by_weight) narrow_some(load_some(by_weight + i, count) + d * row, by_weight + i, count);
  }
  float mean = sum(along) / width;
  for (int64_t i = 0; i < width; i += kLanes) {
    int64_t count = width - i;
    Lanes row = load_some(x + i, count) * scale;
    Lanes d_row = load_some(d_out + i, count) * load_some(weight + i, count);
    narrow_some((d_row - row * mean) * scale, d_x + i, count);
  }
}

// -> the gradients by x, and by the weight (E) in fp32, of no elements unless it is wanted.
std::tuple<Tensor, Tensor> rms_norm_backward(const Tensor& d_out, const Tensor& x, const Tensor& weight,
                                             const Tensor& scales, bool wanted) {
  auto gradient = d_out.contiguous(), dense = x.contiguous();
  int64_t width = weight.numel(), rows = dense.numel() / width, groups = (rows + kGroup - 1) / kGroup;
  auto d_x = at::empty_like(dense);
  auto parts = at::zeros({wanted ? groups : 0, width}, scales.options());
  typed(x, [&]<class T>(T*) {
    const T *d = pointer<T>(gradient), *from = pointer<T>(dense), *by = pointer<T>(weight);
    const float* scale = pointer<float>(scales);
    T* to = mutable_pointer<T>(d_x);
    float* sums = wanted ? mutable_pointer<float>(parts) : nullptr;
    at::parallel_for(0, groups, 1, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin * kGroup; row < std::min(end * kGroup, rows); row++)
        slope_row(d + row * width, from + row * width, by, scale[row], width, to + row * width,
                 sums ? sums + row / kGroup * width : nullptr);
    });
  });
  return {d_x, wanted ? parts.sum(0) : parts};
}

// gate, up (..., I) -> silu(gate) * up.
Tensor gated(const Tensor& gate, const Tensor& up) {
  auto left = gate.contiguous(), right = up.contiguous();
  auto out = at::empty_like(left);
  int64_t width = gate.size(-1);
  typed(gate, [&]<class T>(T*) {
    const T *from = pointer<T>(left), *by = pointer<T>(right);
    T* to = mutable_pointer<T>(out);
    each_row(left.numel() / width, width * 4,
             [=](int64_t row) { gate_row(from + row * width, by + row * width, width, to + row * width); });
  });
  return out;
}

// -> the gradients by gate and up.
std::tuple<Tensor, Tensor> gated_backward(const Tensor& d_out, const Tensor& gate, const Tensor& up) {
  auto gradient = d_out.contiguous(), left = gate.contiguous(), right = up.contiguous();
  auto d_gate = at::empty_like(left), d_up = at::empty_like(right);
  int64_t width = gate.size(-1);
  typed(gate, [&]<class T>(T*) {
    const T *d_from = pointer<T>(gradient), *from = pointer<T>(left), *by = pointer<T>(right);
    T *to = mutable_pointer<T>(d_gate), *and_to = mutable_pointer<T>(d_up);
    each_row(left.numel() / width, width * 4, [=](int64_t row) {
      for (int64_t i = row * width, end = i + width; i < end; i += kLanes) {
        Lanes d = load_some(d_from + i, end - i), g = load_some(from + i, end - i), u = load_some(by + i, end - i);
        Lanes open = sigmoid(g), bent = g * open;
        narrow_some(d * bent, and_to + i, end - i);
        narrow_some(d * u * (open + bent * (1.0f - open)), to + i, end - i);
      }
    });
  });
  return {d_gate, d_up};
}

// x (B, H, T, D), dense heads -> its rotation, or that of a gradient `back`; D features turned, cos and sin
// (B or 1, 1, T, D) with the sign of the half split in sin. What comes out lies as (B, T, H, D).
Tensor rotated(const Tensor& x, const Tensor& cos, const Tensor& sin, bool back) {
  int64_t heads = x.size(1), tokens = x.size(2), width = x.size(3), half = width / 2;
  TORCH_CHECK(x.stride(3) == 1 && cos.is_contiguous() && sin.is_contiguous(), "rows must be dense");
  TORCH_CHECK(cos.size(3) == width && width % 2 == 0, "turn all features");
  auto out = at::empty({x.size(0), tokens, heads, width}, x.options());
  typed(x, [&]<class T>(T*) {
    each_row(x.size(0) * tokens, heads * width, [&](int64_t row) {
      int64_t b = row / tokens, t = row % tokens, angle = (cos.size(0) == 1 ? t : row) * width;
      const T *from = pointer<T>(x) + b * x.stride(0) + t * x.stride(2), *c = pointer<T>(cos) + angle;
      // forward the first half takes in the second times the first half of sin; the transpose swaps these halves
      const T *into_first = pointer<T>(sin) + angle + (back ? half : 0);
      const T *into_second = pointer<T>(sin) + angle + (back ? 0 : half);
      T* to = mutable_pointer<T>(out) + row * heads * width;
      for (int64_t head = 0; head < heads; head++, from += x.stride(1), to += width)
        turn_head(from, c, into_first, into_second, half, to);
    });
  });
  return out.transpose(1, 2);
}

// A row of logits becomes the gradient of its loss z * s^2 + s - logits[target], s the log of the sum of exp.
template <class T>
float one_loss(T* logits, int64_t width, int64_t target, float z) {
  Lanes tops = splat(-INFINITY);
  for (int64_t i = 0; i < width; i += kLanes)
    tops = most_of(tops, width - i < kLanes ? choose(counting() < int32_t(width - i), load_some(logits + i, width - i),
                                                     splat(-INFINITY))
                                            : load(logits + i));
  float top = largest(tops), chosen = widen(logits[target]);
  Lanes mass = {};
  int64_t whole = width / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) mass += exp(load(logits + i) - top);
  float total = sum(mass);
  for (int64_t i = whole; i < width; i++) total += exp(widen(logits[i]) - top);
  float above = std::log(total), partition = top + above, factor = (1 + 2 * z * partition) / total;
  float at_target = exp(chosen - top) * factor - 1;
  for (int64_t i = 0; i < width; i += kLanes)
    narrow_some(exp(load_some(logits + i, width - i) - top) * factor, logits + i, width - i);
  narrow(at_target, logits[target]);
  return z * partition * partition + (top - chosen + above);
}

// logits (R, V), written over by the gradients of the losses that come out (R) in fp32; targets (R).
Tensor cross_entropy_(Tensor& logits, const Tensor& targets, double z) {
  TORCH_CHECK(logits.is_contiguous() && targets.is_contiguous(), "rows must be dense");
  int64_t rows = logits.size(0), width = logits.size(1);
  auto losses = at::empty({rows}, logits.options().dtype(at::kFloat));
  typed(logits, [&]<class T>(T*) {
    each_row(rows, width, [&](int64_t row) {
      int64_t target = pointer<int64_t>(targets)[row];
      TORCH_CHECK_INDEX(0 <= target && target < width, "target ", target, " of ", width);
      mutable_pointer<float>(losses)[row] = one_loss(mutable_pointer<T>(logits) + row * width, width, target, z);
    });
  });
  return losses;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(intaglio, library) {
  library.def("rms_norm_kept(Tensor x, Tensor weight, float eps) -> (Tensor, Tensor)");
  library.def(
      "rms_norm_backward(Tensor d_out, Tensor x, Tensor weight, Tensor scales, bool wanted) -> (Tensor, Tensor)");
  library.def("gated(Tensor gate, Tensor up) -> Tensor");
  library.def("gated_backward(Tensor d_out, Tensor gate, Tensor up) -> (Tensor, Tensor)");
  library.def("rotated(Tensor x, Tensor cos, Tensor sin, bool back) -> Tensor");
  library.def("cross_entropy_(Tensor(a!) logits, Tensor targets, float z) -> Tensor");
}
TORCH_LIBRARY_IMPL(intaglio, CPU, library) {
  library.impl("rms_norm_kept", rms_norm_kept);
  library.impl("rms_norm_backward", rms_norm_backward);
  library.impl("gated", gated);
  library.impl("gated_backward", gated_backward);
  library.impl("rotated", rotated);
  library.impl("cross_entropy_", cross_entropy_);
}

}  // namespace intaglio
