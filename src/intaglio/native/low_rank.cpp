// A low-rank update beside a product, and its gradients, each in one pass over what is large.
//
// Legend: N tokens, I inputs, O outputs, r rank; A (r, I) and B (O, r) in fp32, s a factor; y = out + s B A x.
// A, s B and what stands between them are rounded to bf16, as all that they are multiplied with is.

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/sum.h>
#include <torch/library.h>

#include <tuple>

#include "kernels.h"
#include "units.h"

namespace intaglio {
namespace {

using at::Tensor;

constexpr int64_t kRun = 256;  // rows whose part of a gradient is summed at once

// Asks for rows that will be walked over in blocks, which no processor foresees.
inline void fetch(const bf16* from, int64_t count) {
  for (const bf16* at = from; at < from + count; at += 32) __builtin_prefetch(at, 0, 2);
}

// Rows of some tokens (N, width), width in whole blocks.
struct Rows {
  const bf16* data;
  int64_t count, width;

  Rows(const Tensor& x) : data(pointer<bf16>(x)), count(x.size(0)), width(x.size(1)) {
    TORCH_CHECK(x.scalar_type() == at::kBFloat16 && x.is_contiguous() && width % kBlock == 0, "whole blocks of bf16");
  }

  // 32 of them as operands: where they stand, or copied where they are none yet, or fewer.
  const E* block(int64_t first, Block& copy) const {
    if constexpr (std::is_same_v<E, bf16>)
      if (first + kBlock <= count) return reinterpret_cast<const E*>(data + first * width);
    copy.read(std::min(kBlock, count - first), width, [&](int64_t r) { return data + (first + r) * width; });
    return copy.rows.data();
  }

  // Columns c to c + 31 of 32 rows as one panel (32, 32) of what sums over rows.
  void panel(int64_t first, int64_t c, E* to) const {
    static const bf16 nothing[kBlock] = {};
    alignas(64) E wide[kBlock][kBlock];
    const E* lines[kColumns];
    for (int64_t j = 0; j < kBlock; j++) {
      const bf16* line = first + j < count ? data + (first + j) * width + c : nothing;
      if constexpr (std::is_same_v<E, bf16>) {
        lines[j] = reinterpret_cast<const E*>(line);
      } else {
        for (int64_t i = 0; i < kBlock; i++) narrow(widen(line[i]), wide[j][i]);
        lines[j] = wide[j];
      }
    }
    value_panel(lines, 0, kBlock, to);
  }
};

struct Factors {
  Block a, b;

  Factors(const Tensor& of_a, const Tensor& of_b, double scale) {
    TORCH_CHECK(of_a.is_contiguous() && of_b.is_contiguous() && of_a.size(0) == of_b.size(1), "A (r, I) and B (O, r)");
    const float *from_a = pointer<float>(of_a), *from_b = pointer<float>(of_b);
    int64_t inputs = of_a.size(1), rank = of_a.size(0);
    a.read(rank, inputs, [&](int64_t r) { return from_a + r * inputs; });
    b.read(of_b.size(0), rank, [&](int64_t o) { return from_b + o * rank; }, float(scale));
  }
  int64_t rank() const { return a.count; }
};

template <class F>
void each_block(int64_t rows, F f) {
  at::parallel_for(0, (rows + kBlock - 1) / kBlock, 2, [&](int64_t begin, int64_t end) {
    Units units;
    for (int64_t block = begin; block < end; block++) f(units, block * kBlock, std::min(kBlock, rows - block * kBlock));
  });
}

// x (32, k) times panels of all of the rank -> (32, rank), rounded.
void shrink(const Units& units, const E* x, int64_t k, const std::vector<E>& panels, int64_t rank, E* low) {
  static thread_local std::vector<float> sums;
  at_least(sums, kBlock * rank);
  for (int64_t c = 0; c < rank; c += kBlock) blocks<true>(units, x, k, kBlock, &panels[c * k], k, &sums[c], rank);
  for (int64_t i = 0; i < kBlock * rank; i += kLanes) narrow(load(&sums[i]), low + i);
}

// low (32, rank) times panels (rank, width) -> to (count, width), on top of `base`, which may be `to`.
void grow(const Units& units, const E* low, int64_t rank, const std::vector<E>& panels, int64_t width, int64_t count,
          const bf16* base, bf16* to) {
  alignas(64) float sums[kBlock * kColumns];
  for (int64_t c = 0; c < width; c += kColumns) {
    blocks<true>(units, low, rank, kBlock, &panels[c * rank], rank, sums, kColumns);
    for (int64_t r = 0; r < count; r++)
      for (int64_t i = 0; i < kColumns; i += kLanes) {
        Lanes lanes = load(sums + r * kColumns + i);
        narrow(lanes + load(base + r * width + c + i), to + r * width + c + i);
      }
  }
}

// left (rank, run) times rows (run, width) from `first` on -> to (rank, width)
void outer(const Units& units, const std::vector<E>& left, int64_t rank, const Rows& rows, int64_t first, int64_t run,
           float* to) {
  alignas(64) E panel[kRun * kColumns];
  for (int64_t c = 0; c < rows.width; c += kBlock) {
    for (int64_t row = 0; row < run; row += kBlock) rows.panel(first + row, c, &panel[row * kColumns]);
    blocks<true>(units, left.data(), kRun, rank, panel, run, to + c, rows.width);
  }
}

// out (N, O) and x (N, I) -> out + s B A x (N, O), and A x (N, r).
std::tuple<Tensor, Tensor> low_rank_added(const Tensor& out, const Tensor& x, const Tensor& a, const Tensor& b,
                                          double scale) {
  Rows inputs(x), before(out);
  Factors factors(a, b, scale);
  int64_t rank = factors.rank(), kept = a.size(0);
  std::vector<E> down, up;
  factors.a.across(down), factors.b.across(up);
  auto changed = at::empty_like(out), low = at::empty({x.size(0), kept}, x.options());
  bf16 *to = mutable_pointer<bf16>(changed), *lows = mutable_pointer<bf16>(low);
  each_block(inputs.count, [&](const Units& units, int64_t row, int64_t count) {
    static thread_local Block copy;
    static thread_local std::vector<E> here;
    at_least(here, kBlock * rank);
    fetch(before.data + row * before.width, count * before.width);
    shrink(units, inputs.block(row, copy), inputs.width, down, rank, here.data());
    for (int64_t r = 0; r < count; r++)
      for (int64_t i = 0; i < kept; i++) narrow(widen(here[r * rank + i]), lows[(row + r) * kept + i]);
    int64_t at = row * before.width;
    grow(units, here.data(), rank, up, before.width, count, before.data + at, to + at);
  });
  return {changed, low};
}

// d_out (N, O), x (N, I) and A x (N, r) -> the gradients by A and B, in fp32; that by x is added to d_x, if given.
std::tuple<Tensor, Tensor> low_rank_backward(const Tensor& d_out, const Tensor& x, const Tensor& low, const Tensor& a,
                                             const Tensor& b, double scale, std::optional<Tensor> d_x) {
  Rows gradients(d_out), inputs(x);
  Factors factors(a, b, scale);
  int64_t rank = factors.rank(), kept = a.size(0);
  std::vector<E> down, up;
  factors.b.along(down), factors.a.along(up);
  const bf16* lows = pointer<bf16>(low);
  bf16* to = d_x ? mutable_pointer<bf16>(*d_x) : nullptr;
  int64_t runs = (inputs.count + kRun - 1) / kRun;  // each by itself, so that what it reads twice is still near
  auto parts_a = at::empty({runs, rank, inputs.width}, a.options());
  auto parts_b = at::empty({runs, rank, gradients.width}, a.options());
  float *to_a = mutable_pointer<float>(parts_a), *to_b = mutable_pointer<float>(parts_b);
  at::parallel_for(0, runs, 1, [&](int64_t begin, int64_t end) {
    Units units;
    static thread_local Block copy, low_here;
    static thread_local std::vector<E> here, low_turned, d_low_turned;
    at_least(here, kBlock * rank), at_least(low_turned, rank * kRun), at_least(d_low_turned, rank * kRun);
    for (int64_t number = begin; number < end; number++) {
      int64_t first = number * kRun, run = whole_blocks(std::min(kRun, inputs.count - first));
      for (int64_t at = 0; at < run; at += kBlock) {
        int64_t row = first + at, filled = std::min(kBlock, inputs.count - row);
        fetch(inputs.data + row * inputs.width, filled * inputs.width);
        if (to) fetch(to + row * inputs.width, filled * inputs.width);
        shrink(units, gradients.block(row, copy), gradients.width, down, rank, here.data());
        bf16* line = to ? to + row * inputs.width : nullptr;
        if (line) grow(units, here.data(), rank, up, inputs.width, filled, line, line);
        low_here.read(filled, kept, [&](int64_t r) { return lows + (row + r) * kept; });
        for (int64_t c = 0; c < rank; c += 16) {
          turn_block(&here[c], rank, &d_low_turned[c * kRun + at], kRun);
          turn_block(&low_here.rows[c], rank, &low_turned[c * kRun + at], kRun);
        }
      }
      outer(units, d_low_turned, rank, inputs, first, run, to_a + number * rank * inputs.width);
      outer(units, low_turned, rank, gradients, first, run, to_b + number * rank * gradients.width);
    }
  });
  return {parts_a.sum(0).narrow(0, 0, kept), parts_b.sum(0).narrow(0, 0, kept).mul_(scale).t().contiguous()};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(intaglio, library) {
  library.def("low_rank_added(Tensor out, Tensor x, Tensor a, Tensor b, float scale) -> (Tensor, Tensor)");
  library.def(
      "low_rank_backward(Tensor d_out, Tensor x, Tensor low, Tensor a, Tensor b, float scale, Tensor(a!)? d_x) "
      "-> (Tensor, Tensor)");
}
TORCH_LIBRARY_IMPL(intaglio, CPU, library) {
  library.impl("low_rank_added", low_rank_added);
  library.impl("low_rank_backward", low_rank_backward);
}

}  // namespace intaglio
