// One row of what chains of small operations do, for a step that generates and for one that trains.
#pragma once

#include "lanes.h"

namespace intaglio {

// x / sqrt(mean x^2 + eps) * weight -> out; the factor before the weight.
template <class T, class W>
inline float norm_row(const T* x, const W* weight, float eps, int64_t width, T* out) {
  Lanes squares = {};
  for (int64_t i = 0; i < width; i += kLanes) {
    Lanes lanes = load_some(x + i, width - i);
    squares += lanes * lanes;
  }
  float scale = 1.0f / std::sqrt(sum(squares) / width + eps);
  for (int64_t i = 0; i < width; i += kLanes)
    narrow_some(load_some(x + i, width - i) * scale * load_some(weight + i, width - i), out + i, width - i);
  return scale;
}

// Halves of a head (2 * half) times cos, each plus the other one times its half of sin -> to, which may be `from`.
template <class T>
inline void turn_head(const T* from, const T* cos, const T* sin_of_first, const T* sin_of_second, int64_t half, T* to) {
  for (int64_t i = 0; i < half; i += kLanes) {
    int64_t count = half - i;
    Lanes first = load_some(from + i, count), second = load_some(from + half + i, count);
    narrow_some(first * load_some(cos + i, count) + second * load_some(sin_of_first + i, count), to + i, count);
    narrow_some(second * load_some(cos + half + i, count) + first * load_some(sin_of_second + i, count), to + half + i,
                count);
  }
}

// silu(gate) * up -> out
template <class T>
inline void gate_row(const T* gate, const T* up, int64_t width, T* out) {
  for (int64_t i = 0; i < width; i += kLanes) {
    Lanes g = load_some(gate + i, width - i);
    narrow_some(g * sigmoid(g) * load_some(up + i, width - i), out + i, width - i);
  }
}

}  // namespace intaglio
