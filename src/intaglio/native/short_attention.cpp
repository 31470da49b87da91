// Causal attention of short documents, forward and backward, document by document and head by head in the cache.
//
// Legend: N tokens of some documents, L of one of them, H query heads, K key/value heads, G = H / K, D width of a head;
// P = softmax(Q K^T * scale), O = P V, and with dP = dO V^T for each row dS = P (dP - sum(P dP)) * scale;
// then dQ = dS K, dK = dS^T Q, dV = P^T dO. Scores are fp32; P and dS are rounded to bf16 for the products they go into.
//
// Rows stand in blocks of 32, the last one of a document filled up with zeros. Of a block of queries only the keys up to
// its own are looked at. Nothing but Q, K and V is wanted of the forward: the softmax is taken again in the backward.
// In a document that forks a token of a branch does not see the branches between it and the prompt: `hidden` (N, 2) says
// from where to where, counted from the document's first token.

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <optional>
#include <tuple>
#include <vector>

#include "kernels.h"
#include "units.h"

namespace intaglio {
namespace {

using at::Tensor;

// Heads of tokens, wherever they stand.
template <class T>
struct Heads {
  T* data;
  int64_t token, head;
  T* at(int64_t t, int64_t h) const { return data + t * token + h * head; }
};

Heads<const bf16> heads_of(const Tensor& x) {  // (1, H, N, D)
  TORCH_CHECK(x.scalar_type() == at::kBFloat16 && x.size(0) == 1 && x.stride(3) == 1, "dense rows of bf16");
  return {pointer<bf16>(x), x.stride(2), x.stride(1)};
}

Heads<bf16> made_like(const Tensor& x, Tensor& out) {  // lies as (N, H, D)
  int64_t heads = x.size(1), width = x.size(3);
  auto made = at::empty({1, x.size(2), heads, width}, x.options());
  out = made.transpose(1, 2);
  return {mutable_pointer<bf16>(made), heads * width, width};
}

struct Document {
  int64_t first, length;
};

void read(Block& block, const Heads<const bf16>& from, const Document& document, int64_t head, int64_t features) {
  block.read(document.length, features, [&](int64_t t) { return from.at(document.first + t, head); });
}

// Row of scores -> e^(score - the largest) of those that are seen, 0 of the others; their sum.
float powers(float* scores, int64_t seen, int64_t width, float scale) {
  int64_t whole = seen / kLanes * kLanes;
  Lanes top = splat(-INFINITY);
  for (int64_t i = 0; i < whole; i += kLanes) top = most_of(top, load(scores + i));
  float best = largest(top);
  for (int64_t i = whole; i < seen; i++) best = std::max(best, scores[i]);
  Lanes total = {};
  for (int64_t i = 0; i < width; i += kLanes) {
    Lanes power = exp((load(scores + i) - best) * scale);
    if (i >= whole) power = choose(counting() < int32_t(seen - i), power, Lanes{});
    store(power, scores + i);
    total += power;
  }
  return sum(total);
}

void write(const float* rows, int64_t stride, int64_t count, int64_t features, const Heads<bf16>& to, int64_t first,
           int64_t head) {
  for (int64_t r = 0; r < count; r++)
    for (int64_t i = 0; i < features; i += kLanes)
      narrow_some(load(rows + r * stride + i), to.at(first + r, head) + i, features - i);
}

struct Problem {
  std::vector<Document> documents;
  int64_t heads, kv_heads, width;
  float scale;
  const int32_t* hidden = nullptr;

  Problem(const Tensor& query, const Tensor& key, const Tensor& value, at::IntArrayRef lengths, double scale,
          const std::optional<Tensor>& between)
      : heads(query.size(1)), kv_heads(key.size(1)), width(query.size(3)), scale(float(scale)) {
    TORCH_CHECK(key.size(3) == width && value.size(3) == width && heads % kv_heads == 0, "heads of one width");
    TORCH_CHECK(scale > 0, "a positive scale");
    int64_t first = 0;
    for (int64_t length : lengths) {
      if (length) documents.push_back({first, length});
      first += length;
    }
    TORCH_CHECK(first == query.size(2) && first == key.size(2) && first == value.size(2), "lengths of all tokens");
    if (!between) return;
    TORCH_CHECK(between->scalar_type() == at::kInt && between->is_contiguous() && between->numel() == 2 * first,
                "two places for each token");
    hidden = between->const_data_ptr<int32_t>();
  }

  // The scores of one row of a document, those that it does not see struck out.
  void hide(float* scores, const Document& document, int64_t row) const {
    if (!hidden || row >= document.length) return;
    const int32_t* between = hidden + 2 * (document.first + row);
    std::fill(scores + between[0], scores + between[1], -INFINITY);
  }
  int64_t groups() const { return heads / kv_heads; }

  // f(document, key/value head) for all of them, by a worker of each thread.
  template <class Worker, class... Inputs>
  void each(const Inputs&... inputs) const {
    std::atomic<int64_t> next{0};
    int64_t items = documents.size() * kv_heads, threads = std::min<int64_t>(at::get_num_threads(), items);
    at::parallel_for(0, threads, 1, [&](int64_t, int64_t) {
      static thread_local Worker worker;  // what it has allocated stays for the next layer
      Units units;
      for (int64_t i; (i = next++) < items;) worker.run(*this, units, documents[i / kv_heads], i % kv_heads, inputs...);
    });
  }
};

using Inputs = std::array<Heads<const bf16>, 3>;  // queries, keys, values

struct Forward {
  Block q, k, v;
  std::vector<E> keys, values, weights;
  std::vector<float> scores, sums, totals;

  void run(const Problem& p, const Units& units, const Document& document, int64_t kv, const Inputs& in,
           const Heads<bf16>& out) {
    read(k, in[1], document, kv, p.width);
    read(v, in[2], document, kv, p.width);
    int64_t length = whole_blocks(document.length), width = k.width;
    k.across(keys);
    v.along(values);
    at_least(scores, kBlock * length), at_least(weights, kBlock * length);
    at_least(sums, kBlock * width), at_least(totals, kBlock);
    for (int64_t head = kv * p.groups(); head < (kv + 1) * p.groups(); head++) {
      read(q, in[0], document, head, p.width);
      for (int64_t row = 0; row < length; row += kBlock) {
        int64_t seen = row + kBlock, count = std::min(kBlock, document.length - row);
        for (int64_t key = 0; key < seen; key += kBlock)
          blocks<true>(units, &q.rows[row * width], width, kBlock, &keys[key * width], width, &scores[key], length);
        for (int64_t r = 0; r < kBlock; r++) {
          float* line = &scores[r * length];
          p.hide(line, document, row + r);
          totals[r] = powers(line, row + r + 1, seen, p.scale);
          for (int64_t i = 0; i < seen; i += kLanes) narrow(load(line + i), &weights[r * length + i]);
        }
        for (int64_t c = 0; c < width; c += kBlock)
          blocks<true>(units, weights.data(), length, kBlock, &values[c * length], seen, &sums[c], width);
        for (int64_t r = 0; r < count; r++)
          for (int64_t i = 0; i < width; i += kLanes)
            store(load(&sums[r * width + i]) * (1 / totals[r]), &sums[r * width + i]);
        write(sums.data(), width, count, p.width, out, document.first + row, head);
      }
    }
  }
};

struct Backward {
  Block q, k, v, d;
  std::vector<E> keys, values, keys_along, q_along, d_along;  // panels
  std::vector<E> weights, slopes;                             // P and dS of a block of queries
  std::vector<E> weights_turned, slopes_turned;               // of all of them (key, query)
  std::vector<float> scores, d_weights, sums, d_key, d_value;

  void run(const Problem& p, const Units& units, const Document& document, int64_t kv, const Inputs& in,
           const Heads<const bf16>& d_out, const std::array<Heads<bf16>, 3>& out) {
    read(k, in[1], document, kv, p.width);
    read(v, in[2], document, kv, p.width);
    int64_t length = whole_blocks(document.length), width = k.width;
    k.across(keys);
    v.across(values);
    k.along(keys_along);
    for (auto* rows : {&weights, &slopes}) at_least(*rows, kBlock * length);
    for (auto* rows : {&weights_turned, &slopes_turned}) at_least(*rows, length * length);
    for (auto* rows : {&scores, &d_weights}) at_least(*rows, kBlock * length);
    at_least(sums, kBlock * width);
    for (auto* rows : {&d_key, &d_value}) rows->assign(length * width, 0.0f);
    for (int64_t head = kv * p.groups(); head < (kv + 1) * p.groups(); head++) {
      read(q, in[0], document, head, p.width);
      read(d, d_out, document, head, p.width);
      q.along(q_along);
      d.along(d_along);
      for (int64_t row = 0; row < length; row += kBlock) {
        soften(p, units, document, row, length, width);
        turn(weights, row, length, weights_turned);
        turn(slopes, row, length, slopes_turned);
        for (int64_t c = 0; c < width; c += kBlock)
          blocks<true>(units, slopes.data(), length, kBlock, &keys_along[c * length], row + kBlock, &sums[c], width);
        write(sums.data(), width, std::min(kBlock, document.length - row), p.width, out[0], document.first + row, head);
      }
      gather(units, slopes_turned, q_along, length, width, d_key);
      gather(units, weights_turned, d_along, length, width, d_value);
    }
    write(d_key.data(), width, document.length, p.width, out[1], document.first, kv);
    write(d_value.data(), width, document.length, p.width, out[2], document.first, kv);
  }

 private:
  // P and dS of the block of queries that starts at `row`.
  void soften(const Problem& p, const Units& units, const Document& document, int64_t row, int64_t length,
              int64_t width) {
    int64_t seen = row + kBlock;
    for (int64_t key = 0; key < seen; key += kBlock) {
      blocks<true>(units, &q.rows[row * width], width, kBlock, &keys[key * width], width, &scores[key], length);
      blocks<true>(units, &d.rows[row * width], width, kBlock, &values[key * width], width, &d_weights[key], length);
    }
    for (int64_t r = 0; r < kBlock; r++) {
      float *line = &scores[r * length], *d_line = &d_weights[r * length];
      p.hide(line, document, row + r);
      float inverse = 1 / powers(line, row + r + 1, seen, p.scale);
      Lanes products = {};
      for (int64_t i = 0; i < seen; i += kLanes) products += load(line + i) * load(d_line + i);
      float mean = sum(products) * inverse;
      for (int64_t i = 0; i < seen; i += kLanes) {
        Lanes weight = load(line + i) * inverse;
        narrow(weight, &weights[r * length + i]);
        narrow(weight * (load(d_line + i) - mean) * p.scale, &slopes[r * length + i]);
      }
    }
  }

  static void turn(const std::vector<E>& rows, int64_t row, int64_t length, std::vector<E>& turned) {
    for (int64_t key = 0; key < row + kBlock; key += 16)
      turn_block(&rows[key], length, &turned[key * length + row], length);
  }

  // sums (keys, width) += turned (keys, queries from each key's block on) * rows (queries, width)
  static void gather(const Units& units, const std::vector<E>& turned, const std::vector<E>& rows, int64_t length,
                     int64_t width, std::vector<float>& sums) {
    for (int64_t key = 0; key < length; key += kBlock)
      for (int64_t c = 0; c < width; c += kBlock)
        blocks<false>(units, &turned[key * length + key], length, kBlock, &rows[c * length + key * kColumns],
                      length - key, &sums[key * width + c], width);
  }
};

// query (1, H, N, D), key and value (1, K, N, D) -> (1, H, N, D)
Tensor documents_attention(const Tensor& query, const Tensor& key, const Tensor& value, at::IntArrayRef lengths,
                           double scale, const std::optional<Tensor>& hidden) {
  Problem problem(query, key, value, lengths, scale, hidden);
  Tensor out;
  auto to = made_like(query, out);
  problem.each<Forward>(Inputs{heads_of(query), heads_of(key), heads_of(value)}, to);
  return out;
}

std::tuple<Tensor, Tensor, Tensor> documents_attention_backward(const Tensor& d_out, const Tensor& query,
                                                                const Tensor& key, const Tensor& value,
                                                                at::IntArrayRef lengths, double scale,
                                                                const std::optional<Tensor>& hidden) {
  Problem problem(query, key, value, lengths, scale, hidden);
  auto gradient = d_out.stride(3) == 1 ? d_out : d_out.contiguous();
  Tensor d_query, d_key, d_value;
  std::array<Heads<bf16>, 3> to{made_like(query, d_query), made_like(key, d_key), made_like(value, d_value)};
  problem.each<Backward>(Inputs{heads_of(query), heads_of(key), heads_of(value)}, heads_of(gradient), to);
  return {d_query, d_key, d_value};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(intaglio, library) {
  library.def(
      "documents_attention(Tensor query, Tensor key, Tensor value, int[] lengths, float scale, Tensor? hidden) "
      "-> Tensor");
  library.def(
      "documents_attention_backward(Tensor d_out, Tensor query, Tensor key, Tensor value, int[] lengths, float scale, "
      "Tensor? hidden) -> (Tensor, Tensor, Tensor)");
}
TORCH_LIBRARY_IMPL(intaglio, CPU, library) {
  library.impl("documents_attention", documents_attention);
  library.impl("documents_attention_backward", documents_attention_backward);
}

}  // namespace intaglio
