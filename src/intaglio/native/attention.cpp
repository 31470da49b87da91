// Attention of a flat batch of new tokens over keys and values that lie in blocks (Kwon et al. 2023, section 4.3), with
// the softmax taken block by block (Dao et al. 2022) and, for single tokens, long contexts split (flash decoding).
//
// Legend: N new tokens of S sequences, H query heads, K key/value heads, G = H / K, D and Dv widths of keys and values.
//
// An item is a few queries of one sequence under some key/value heads; the G query heads of each are rows that share its
// keys. Keys are taken 32 at a time from absolute position 0, and every 512 make a softmax of their own that is then
// joined to the ones before. So a token's bits are the same whichever tokens stand beside it in its chunk or batch.

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <atomic>
#include <vector>

#include "kernels.h"
#include "panels.h"

namespace intaglio {
namespace {

constexpr int64_t kSplit = 512, kTileRows = 48;
constexpr float kNothing = -1e30f;  // the largest score before there is one: finite, so that differences are numbers

using Sizes = AttentionSizes;

struct Item {
  int64_t sequence, head, heads;                     // key/value heads
  int64_t first, queries, position;                  // `first`: the flat index of its first query, at `position`
  int64_t begin, end;                                // keys
  int64_t part;                                      // where its state is kept to be joined later; -1: it is whole
};

// The softmax of some rows so far: the largest score, the sum of weights, and the weighted sum of values.
struct State {
  std::vector<float> best, total, sums;
  State(int64_t rows, int64_t width) : best(rows), total(rows), sums(rows * width) {}
  void clear() {
    std::fill(best.begin(), best.end(), kNothing);
    std::fill(total.begin(), total.end(), 0.0f);
    std::fill(sums.begin(), sums.end(), 0.0f);
  }
};

void join(State& into, const State& more, int64_t rows, int64_t width) {
  for (int64_t r = 0; r < rows; r++) {
    float best = std::max(into.best[r], more.best[r]);
    float old = exp(into.best[r] - best), fresh = exp(more.best[r] - best);
    into.best[r] = best;
    into.total[r] = into.total[r] * old + more.total[r] * fresh;
    for (int64_t c = r * width; c < (r + 1) * width; c++) into.sums[c] = into.sums[c] * old + more.sums[c] * fresh;
  }
}

template <class T>
class Worker {
  using E = Operand<T>;
  struct Found {
    const T *keys[kColumns], *values[kColumns];
  };

 public:
  Worker(const Sizes& sizes, const T* query, const T* keys, const T* values, const int32_t* table, T* out)
      : s(sizes), query(query), keys(keys), values(values), table(table), out(out),
        most(std::max(kTileRows, s.heads)), whole(most, s.padded()), part(most, s.padded()),
        rows(most * s.width), weights(most * kColumns), panel(std::max(s.width, s.padded()) * kColumns),
        wide(kColumns * std::max(s.width, s.value_width)), scores(most * kColumns),
        nothing(std::max(s.width, s.value_width)) {}

  void run(const Item& item, std::vector<State>& parts) {
    read_queries(item);
    whole.clear();
    for (int64_t split = item.begin / kSplit * kSplit; split < item.end; split += kSplit) {
      part.clear();
      int64_t begin = std::max(split, item.begin / kColumns * kColumns);
      int64_t end = std::min(split + kSplit, item.end);
      find(item, begin);
      for (int64_t key = begin; key < end; key += kColumns) {
        Found here = found;
        if (key + kColumns < end) find(item, key + kColumns);  // early, so that memory has time to bring them
        for (int64_t head = 0; head < item.heads; head++) block(item, key, here, head);
      }
      join(whole, part, rows_of(item), s.padded());
    }
    if (item.part < 0) {
      write(item, whole);
    } else {
      parts[item.part] = whole;
    }
  }

  void write(const Item& item, const State& state) {
    for (int64_t r = 0; r < rows_of(item); r++) {
      T* to = out + ((item.first + query_of(item, r)) * s.heads + head_of(item, r)) * s.value_width;
      for (int64_t c = 0; c < s.value_width; c++) narrow(state.sums[r * s.padded() + c] / state.total[r], to[c]);
    }
  }

 private:
  // Rows lie by key/value head, then query, then query head.
  int64_t rows_a_head(const Item& item) const { return item.queries * s.groups(); }
  int64_t rows_of(const Item& item) const { return item.heads * rows_a_head(item); }
  int64_t query_of(const Item& item, int64_t r) const { return r % rows_a_head(item) / s.groups(); }
  int64_t head_of(const Item& item, int64_t r) const {
    return (item.head + r / rows_a_head(item)) * s.groups() + r % s.groups();
  }

  void read_queries(const Item& item) {
    for (int64_t r = 0; r < rows_of(item); r++) {
      const T* from = query + (item.first + query_of(item, r)) * s.query_token + head_of(item, r) * s.query_head;
      for (int64_t i = 0; i < s.width; i++) narrow(widen(from[i]), rows[r * s.width + i]);
    }
  }

  // 32 keys from `first` on of the item's head number `head`, as one step of the online softmax of its rows.
  void block(const Item& item, int64_t first, const Found& here, int64_t head) {
    int64_t count = rows_a_head(item), row = head * count;
    const T* lines[kColumns];
    for (int j = 0; j < kColumns; j++) lines[j] = here.keys[j] ? here.keys[j] + head * s.key_head : nothing.data();
    key_panel(operands(lines, s.width), s.width, panel.data());
    std::fill(scores.begin(), scores.begin() + count * kColumns, 0.0f);
    multiply(&rows[row * s.width], s.width, count, panel.data(), s.width, scores.data(), kColumns);
    for (int64_t r = 0; r < count; r++) softmax(r, row + r, first, item.position + query_of(item, r));
    for (int j = 0; j < kColumns; j++) lines[j] = here.values[j] ? here.values[j] + head * s.value_head : nothing.data();
    const E* const* values_of_head = operands(lines, s.value_width);
    for (int64_t c = 0; c < s.value_width; c += kColumns) {
      value_panel(values_of_head, c, s.value_width, panel.data());
      multiply(weights.data(), kColumns, count, panel.data(), kColumns, &part.sums[row * s.padded() + c],
               s.padded());
    }
  }

  // Where the keys and values stand; nowhere outside [begin, end), since what stands there may be anyone's.
  void find(const Item& item, int64_t first) {
    const int32_t* blocks = table + item.sequence * s.table_stride;
    int64_t key = first, place = first % s.block_size, block = first / s.block_size;
    for (int64_t j = 0; j < kColumns; j++, key++, place++) {
      if (place == s.block_size) place = 0, block++;
      if (key < item.begin || key >= item.end) {
        found.keys[j] = found.values[j] = nullptr;
        continue;
      }
      int64_t slot = int64_t(blocks[block]) * s.block_size + place;
      found.keys[j] = keys + slot * s.key_slot + item.head * s.key_head;
      found.values[j] = values + slot * s.value_slot + item.head * s.value_head;
      for (int64_t head = 0; head < item.heads; head++) {
        fetch(found.keys[j] + head * s.key_head, s.width);
        fetch(found.values[j] + head * s.value_head, s.value_width);
      }
    }
  }

  static void fetch(const T* row, int64_t width) {
    for (int64_t i = 0; i < width; i += 64 / int64_t(sizeof(T))) __builtin_prefetch(row + i);
  }

  // The rows as operands: themselves, or widened copies.
  const E* const* operands(const T* const* from, int64_t width) {
    if constexpr (std::is_same_v<E, T>) {
      return from;
    } else {
      E* to = wide.data();
      for (int j = 0; j < kColumns; j++, to += width) {
        copies[j] = to;
        for (int64_t i = 0; i < width; i++) to[i] = widen(from[j][i]);
      }
      return copies;
    }
  }

  // Row r of the scores, which is row `state` of the item.
  void softmax(int64_t r, int64_t state, int64_t first, int64_t position) {
    Lanes score[kVectors], top = splat(part.best[state]);
    int32_t begin = s.window ? std::max<int64_t>(0, position - s.window + 1) - first : -first;
    int32_t end = position + 1 - first;
    for (int v = 0; v < kVectors; v++) {
      score[v] = load(&scores[r * kColumns + v * kLanes]) * s.scale;
      if (s.softcap) score[v] = s.softcap * tanh(score[v] / s.softcap);
      Ints key = counting() + v * kLanes;
      score[v] = choose((key >= begin) & (key < end), score[v], splat(-INFINITY));
      top = most_of(top, score[v]);
    }
    float best = largest(top), shrink = best > part.best[state] ? exp(part.best[state] - best) : 1;
    Lanes total = {};
    for (int v = 0; v < kVectors; v++) {
      Lanes weight = exp(score[v] - best);
      total += weight;
      narrow(weight, &weights[r * kColumns + v * kLanes]);
    }
    part.best[state] = best;
    part.total[state] = part.total[state] * shrink + sum(total);
    if (shrink != 1)
      for (int64_t c = state * s.padded(); c < (state + 1) * s.padded(); c += kLanes)
        store(load(&part.sums[c]) * shrink, &part.sums[c]);
  }

  const Sizes s;
  const T *query, *keys, *values;
  const int32_t* table;
  T* out;
  int64_t most;
  State whole, part;
  std::vector<E> rows, weights, panel, wide;
  std::vector<float> scores;
  std::vector<T> nothing;
  const E* copies[kColumns];
  Found found;
};

std::vector<Item> plan(const Sizes& s, const int32_t* starts, const int32_t* lengths, int64_t sequences,
                       int64_t& num_parts) {
  std::vector<Item> items;
  int64_t tile = std::max<int64_t>(1, kTileRows / s.groups());
  bool many = sequences >= 4 * at::get_num_threads();
  for (int64_t sequence = 0; sequence < sequences; sequence++) {
    int64_t before = lengths[sequence] - (starts[sequence + 1] - starts[sequence]);
    for (int64_t first = starts[sequence]; first < starts[sequence + 1]; first += tile) {
      int64_t queries = std::min<int64_t>(tile, starts[sequence + 1] - first);
      int64_t position = before + first - starts[sequence], end = position + queries;
      int64_t begin = s.window ? std::max<int64_t>(0, position - s.window + 1) : 0;
      bool single = starts[sequence + 1] - starts[sequence] == 1;
      bool split = single && begin / kSplit < (end - 1) / kSplit;
      int64_t heads = single && many ? s.kv_heads : 1;  // the heads of a token lie side by side in memory
      for (int64_t head = 0; head < s.kv_heads; head += heads)
        for (int64_t at = begin; at < end;) {
          int64_t until = split ? std::min(end, at / kSplit * kSplit + kSplit) : end;
          items.push_back({sequence, head, heads, first, queries, position, at, until, split ? num_parts++ : -1});
          at = until;
        }
    }
  }
  return items;
}

}  // namespace

template <class T>
void attend(const AttentionSizes& s, const T* query, const T* keys, const T* values, const int32_t* table,
            const int32_t* starts, const int32_t* lengths, int64_t sequences, T* out) {
  int64_t num_parts = 0;
  auto items = plan(s, starts, lengths, sequences, num_parts);
  std::vector<State> parts(num_parts, State(0, 0));
  std::atomic<size_t> next{0};  // items differ in length, so threads take them as they come
  int64_t threads = std::min<int64_t>(at::get_num_threads(), items.size());
  at::parallel_for(0, threads, 1, [&](int64_t, int64_t) {
    Worker<T> worker(s, query, keys, values, table, out);
    for (size_t i; (i = next++) < items.size();) worker.run(items[i], parts);
  });
  if (!num_parts) return;
  Worker<T> worker(s, query, keys, values, table, out);
  State whole(s.heads, s.padded());
  for (size_t i = 0; i < items.size(); i++) {
    if (items[i].part < 0) continue;
    bool first = i == 0 || items[i - 1].first != items[i].first || items[i - 1].head != items[i].head;
    bool last = i + 1 == items.size() || items[i + 1].first != items[i].first || items[i + 1].head != items[i].head;
    if (first) whole.clear();
    join(whole, parts[items[i].part], items[i].heads * s.groups(), s.padded());
    if (last) worker.write(items[i], whole);
  }
}

template void attend(const AttentionSizes&, const float*, const float*, const float*, const int32_t*, const int32_t*,
                     const int32_t*, int64_t, float*);
template void attend(const AttentionSizes&, const bf16*, const bf16*, const bf16*, const int32_t*, const int32_t*,
                     const int32_t*, int64_t, bf16*);

namespace {

// query (N, H, D), keys (slots, K, D), values (slots, K, Dv), table (S, blocks), starts (S + 1), lengths (S) -> (N, H, Dv)
at::Tensor paged_attention(const at::Tensor& query, const at::Tensor& keys, const at::Tensor& values,
                           const at::Tensor& table, const at::Tensor& starts, const at::Tensor& lengths, double scale,
                           int64_t window, double softcap, int64_t block_size) {
  TORCH_CHECK(query.stride(2) == 1 && keys.stride(2) == 1 && values.stride(2) == 1, "rows must be dense");
  TORCH_CHECK(keys.scalar_type() == query.scalar_type() && values.scalar_type() == query.scalar_type(), "one dtype");
  TORCH_CHECK(table.stride(1) == 1 && starts.is_contiguous() && lengths.is_contiguous(), "tables must be dense");
  Sizes s{query.size(1), keys.size(1), query.size(2), values.size(2), block_size, table.stride(0), window,
          query.stride(0), query.stride(1), keys.stride(0), keys.stride(1), values.stride(0), values.stride(1),
          float(scale), float(softcap)};
  auto out = at::empty({query.size(0), s.heads, s.value_width}, query.options());
  TORCH_CHECK(query.scalar_type() == at::kFloat || s.width % 2 == 0, "bf16 of even width only");
  typed(query, [&]<class T>(T*) {
    attend(s, pointer<T>(query), pointer<T>(keys), pointer<T>(values), pointer<int32_t>(table),
           pointer<int32_t>(starts), pointer<int32_t>(lengths), lengths.size(0), mutable_pointer<T>(out));
  });
  return out;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(intaglio, library) {
  library.def(
      "paged_attention(Tensor query, Tensor keys, Tensor values, Tensor table, Tensor starts, Tensor lengths, "
      "float scale, int window, float softcap, int block_size) -> Tensor");
}
TORCH_LIBRARY_IMPL(intaglio, CPU, library) { library.impl("paged_attention", paged_attention); }

}  // namespace intaglio
