// Products of bf16 by blocks of 32 x 32, by the processor's matrix units where it has some (AMX with bf16).
//
// Their sums are rounded in another order than `multiply`'s, and they want whole blocks: they are for operators whose
// rows are padded and need not have the same bits whatever stands beside them.
#pragma once

#include <vector>

#include "panels.h"

#if defined(__AMX_BF16__) && defined(__AVX512BF16__) && defined(__linux__)
#define INTAGLIO_UNITS 1
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace intaglio {

using E = Operand<bf16>;
constexpr int64_t kBlock = 32;
inline int64_t whole_blocks(int64_t count) { return (count + kBlock - 1) / kBlock * kBlock; }

#if defined(INTAGLIO_UNITS)
// Whether the kernel lets this process have their registers.
inline bool has_units() {
  constexpr int kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM of XFEATURE_XTILEDATA
  static const bool allowed = syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
  return allowed;
}

// While one stands, its thread may multiply: eight registers of 16 rows of 64 bytes.
class Units {
 public:
  Units() : on(has_units()) {
    if (!on) return;
    struct alignas(64) {
      uint8_t palette = 1, start = 0, nothing[14] = {};
      uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } shape;
    asm volatile("" ::"r"(&shape) : "memory");  // or the compiler would write no more than it sees read
    _tile_loadconfig(&shape);
  }
  ~Units() {
    if (on) _tile_release();
  }
  Units(const Units&) = delete;
  const bool on;
};

template <bool Fresh>
inline void unit_block(const bf16* x, int64_t x_stride, const bf16* panel, int64_t k, float* out, int64_t out_stride) {
  asm volatile("" ::: "memory");  // the compiler does not know that tiles are read from memory
  int64_t down = out_stride * 4, along = x_stride * 2;
  float* below = out + 16 * out_stride;
  if constexpr (Fresh) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  } else {
    _tile_loadd(0, out, down);
    _tile_loadd(1, out + 16, down);
    _tile_loadd(2, below, down);
    _tile_loadd(3, below + 16, down);
  }
  for (int64_t i = 0; i < k; i += kBlock) {
    _tile_loadd(4, x + i, along);
    _tile_loadd(6, panel + i * kColumns, 4 * kColumns);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, panel + i * kColumns + 32, 4 * kColumns);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, x + 16 * x_stride + i, along);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, out, down);
  _tile_stored(1, out + 16, down);
  _tile_stored(2, below, down);
  _tile_stored(3, below + 16, down);
}
#else
struct Units {
  static constexpr bool on = false;
};
#endif

// out (rows, 32) = x (rows, k) * panel (k, 32), added to what stands there unless `Fresh`; rows and k in whole blocks.
template <bool Fresh>
inline void blocks(const Units& units, const E* x, int64_t x_stride, int64_t rows, const E* panel, int64_t k,
                   float* out, int64_t out_stride) {
#if defined(INTAGLIO_UNITS)
  if (units.on) {
    for (int64_t row = 0; row < rows; row += kBlock)
      unit_block<Fresh>(x + row * x_stride, x_stride, panel, k, out + row * out_stride, out_stride);
    return;
  }
#endif
  if (Fresh)
    for (int64_t row = 0; row < rows; row++) std::fill_n(out + row * out_stride, kColumns, 0.0f);
  multiply(x, x_stride, rows, panel, k, out, out_stride);
}

// A buffer that is used again and again, for less or more.
template <class T>
void at_least(std::vector<T>& buffer, int64_t size) {
  if (int64_t(buffer.size()) < size) buffer.resize(size);
}

// A matrix as operands, filled up to whole blocks both ways with zeros.
struct Block {
  std::vector<E> rows;  // (count, width)
  int64_t count = 0, width = 0;

  // `line(r)` is row r of `height`, of `features` numbers, which are multiplied by `scale`.
  template <class Line>
  void read(int64_t height, int64_t features, Line line, float scale = 1) {
    count = whole_blocks(height), width = whole_blocks(features);
    at_least(rows, count * width);
    for (int64_t r = 0; r < count; r++) {
      E* to = &rows[r * width];
      int64_t filled = r < height ? features : 0;
      if (filled) fill(line(r), filled, scale, to);
      std::memset(static_cast<void*>(to + filled), 0, (width - filled) * sizeof(E));
    }
  }

  // For products that give a column for each row: block by block (width, 32).
  void across(std::vector<E>& panels) const {
    at_least(panels, count * width);
    for (int64_t row = 0; row < count; row += kBlock) {
      const E* lines[kColumns];
      key_panel(lines_from(row, lines), width, &panels[row * width]);
    }
  }

  // For products that sum over rows: 32 features by 32 (count, 32).
  void along(std::vector<E>& panels) const {
    at_least(panels, count * width);
    for (int64_t row = 0; row < count; row += kBlock) {
      const E* lines[kColumns];
      lines_from(row, lines);
      for (int64_t c = 0; c < width; c += kBlock) value_panel(lines, c, width, &panels[c * count + row * kColumns]);
    }
  }

 private:
  const E* const* lines_from(int64_t row, const E** lines) const {
    for (int64_t j = 0; j < kColumns; j++) lines[j] = &rows[(row + j) * width];
    return lines;
  }
  template <class T>
  static void fill(const T* from, int64_t features, float scale, E* to) {
    if constexpr (std::is_same_v<T, E>) {
      if (scale == 1) {
        std::memcpy(static_cast<void*>(to), from, features * sizeof(E));
        return;
      }
    }
    for (int64_t i = 0; i < features; i += kLanes)
      narrow_some(load_some(from + i, features - i) * scale, to + i, features - i);
  }
};

}  // namespace intaglio
