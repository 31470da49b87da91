// A whole layer in one call: norm, attention over the paged cache, norm, SwiGLU, each added to the residual stream.
//
// The arithmetic, and what is rounded where, is that of the single operators, so both ways give the same bits. What is
// spared is the way through torch between them: with few tokens that took longer than the arithmetic.

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "kernels.h"

namespace intaglio {
namespace {

// `weights`: the norms of attention and feed-forward, and panels, scales, offsets and bias of each of the matrices QKV,
// output, gate-up, down.
struct Weights {
  const at::Tensor attention_norm, feed_forward_norm;
  Matrix qkv, out, gate_up, down;

  Weights(const c10::List<MaybeTensor>& w, int64_t hidden, int64_t attended, int64_t kept, int64_t inner)
      : attention_norm(w.get(0).value()), feed_forward_norm(w.get(1).value()), qkv(matrix(w, 2, attended + kept)),
        out(matrix(w, 6, hidden)), gate_up(matrix(w, 10, 2 * inner)), down(matrix(w, 14, hidden)) {}

  static Matrix matrix(const c10::List<MaybeTensor>& w, size_t at, int64_t outputs) {
    return Matrix(w.get(at).value(), w.get(at + 1), w.get(at + 2), w.get(at + 3), outputs);
  }
};

template <class T>
void add(T* x, const T* more, int64_t count) {
  for (int64_t i = 0; i < count; i += kLanes)
    narrow_some(load_some(x + i, count - i) + load_some(more + i, count - i), x + i, count - i);
}

// x (..., E), added to in place; cos and sin (N, R); keys and values (slots, K, D), written at `slots` (N) int64, then
// read as in `paged_attention`.
void layer_(const at::Tensor& x, const c10::List<MaybeTensor>& weights, const at::Tensor& cos, const at::Tensor& sin,
            const at::Tensor& keys, const at::Tensor& values, const at::Tensor& slots, const at::Tensor& table,
            const at::Tensor& starts, const at::Tensor& lengths, int64_t heads, int64_t inner, int64_t window,
            int64_t block_size, double attention_eps, double feed_forward_eps, double scale, double softcap) {
  int64_t hidden = x.size(-1), rows = slots.numel(), width = keys.size(2), turned = cos.size(-1);
  int64_t attended = heads * width, kept = keys.size(1) * width, joined = attended + 2 * kept;
  Weights w(weights, hidden, attended, 2 * kept, inner);
  TORCH_CHECK(x.is_contiguous() && x.numel() == rows * hidden, "x must be dense, and as long as there are slots");
  TORCH_CHECK(cos.is_contiguous() && sin.is_contiguous() && cos.numel() == rows * turned, "an angle for each token");
  TORCH_CHECK(keys.is_contiguous() && values.is_contiguous() && values.sizes() == keys.sizes(), "caches must be dense");
  AttentionSizes sizes{heads, keys.size(1), width, width, block_size, table.stride(0), window, joined, width,
                       kept, width, kept, width, float(scale), float(softcap)};
  typed(x, [&]<class T>(T*) {
    auto scratch = at::empty({rows * std::max(hidden + joined + attended, hidden + 3 * inner)}, x.options());
    T *stream = mutable_pointer<T>(x), *normed = mutable_pointer<T>(scratch), *qkv = normed + rows * hidden;
    T *mixed = qkv + rows * joined, *bent = qkv + rows * 2 * inner;

    rms_norm(stream, pointer<float>(w.attention_norm), attention_eps, rows, hidden, normed);
    multiply(w.qkv, normed, rows, qkv);
    each_row(rows, joined, [&](int64_t row) {
      T *query = qkv + row * joined, *key = query + attended, *value = key + kept;
      turn(query, heads + keys.size(1), width, pointer<T>(cos) + row * turned, pointer<T>(sin) + row * turned,
           turned / 2);
      int64_t slot = pointer<int64_t>(slots)[row] * kept;
      std::copy(key, value, mutable_pointer<T>(keys) + slot);
      std::copy(value, value + kept, mutable_pointer<T>(values) + slot);
    });
    attend(sizes, qkv, pointer<T>(keys), pointer<T>(values), pointer<int32_t>(table), pointer<int32_t>(starts),
           pointer<int32_t>(lengths), lengths.numel(), mixed);
    multiply(w.out, mixed, rows, normed);
    add(stream, normed, rows * hidden);

    rms_norm(stream, pointer<float>(w.feed_forward_norm), feed_forward_eps, rows, hidden, normed);
    multiply(w.gate_up, normed, rows, qkv);
    silu_mul(qkv, rows, inner, bent);
    multiply(w.down, bent, rows, normed);
    add(stream, normed, rows * hidden);
  });
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(intaglio, library) {
  library.def(
      "layer_(Tensor(a!) x, Tensor?[] weights, Tensor cos, Tensor sin, Tensor(b!) keys, Tensor(c!) values, "
      "Tensor slots, Tensor table, Tensor starts, Tensor lengths, int heads, int inner, int window, int block_size, "
      "float attention_eps, float feed_forward_eps, float scale, float softcap) -> ()");
}
TORCH_LIBRARY_IMPL(intaglio, CPU, library) { library.impl("layer_", layer_); }

}  // namespace intaglio
