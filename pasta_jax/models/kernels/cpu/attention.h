// Attention to the visible slots of a pool. Included by level.h once for each instruction set.

// Slots of other threads lie between the visible ones, where the processor's own prefetching loses track.
TARGET TOGETHER void prefetch(const float* from, const Heads& a, int64_t i) {
  const float* row = from + a.slots[std::min(i, a.visible - 1)] * a.dims;
  for (int64_t d = 0; d < a.dims; d += 16) __builtin_prefetch(row + d);
}

// The scores of G query heads for four slots, from slot i of the visible ones on; beyond the last, its own once more.
template <int G>
TARGET TOGETHER void score(const Heads& a, const float* q, float* weights, int64_t i) {
  const int64_t whole = a.dims / LANES * LANES;
  const float* keys[4];
  for (int n = 0; n < 4; ++n) {
    keys[n] = a.k + a.slots[std::min(i + n, a.visible - 1)] * a.dims;
    prefetch(a.k, a, i + n + AHEAD);
  }
  Vector sums[G][4] = {};
  for (int64_t d = 0; d < whole; d += LANES) {
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g) {
      const Vector query = load(q + g * a.dims + d);
#pragma GCC unroll 4
      for (int n = 0; n < 4; ++n) sums[g][n] += load(keys[n] + d) * query;
    }
  }
#pragma GCC unroll 4
  for (int g = 0; g < G; ++g) {
    Four scores = four_sums(sums[g]);
    for (int64_t d = whole; d < a.dims; ++d) {
      for (int n = 0; n < 4; ++n) scores[n] += keys[n][d] * q[g * a.dims + d];
    }
    scores *= a.scale;
    std::memcpy(weights + g * a.width + i, &scores, sizeof scores);
  }
}

// The weights of G query heads: softmax over the visible slots, without the division by its sum, which is returned.
template <int G>
TARGET TOGETHER void weigh(const Heads& a, int64_t from, float* totals) {
  float* weights = a.weights + from * a.width;
  for (int64_t i = 0; i < a.visible; i += 4) score<G>(a, a.q + from * a.dims, weights, i);
  for (int g = 0; g < G; ++g) {
    float* row = weights + g * a.width;
    if (a.cap != 0) {
      for (int64_t i = 0; i < a.visible; ++i) row[i] = a.cap * std::tanh(row[i] / a.cap);
    }
    std::fill(row + a.visible, row + a.width, -INFINITY);
    Vector most = load(row);
    for (int64_t i = LANES; i < a.width; i += LANES) {
      const Vector part = load(row + i);
      most = part > most ? part : most;
    }
    float greatest = -INFINITY;
    for (int i = 0; i < LANES; ++i) greatest = std::max(greatest, most[i]);
    totals[g] = 0;
    for (int64_t i = 0; i < a.width; i += LANES) {
      const Vector part = exponential(load(row + i) - greatest);
      std::memcpy(row + i, &part, sizeof part);
      totals[g] += sum(part);
    }
  }
}

// G query heads' weighted sums of the values in V vectors.
template <int G, int V>
TARGET TOGETHER void mix(const Heads& a, int64_t from, int64_t at, const float* totals) {
  Vector sums[G][V] = {};
  const float* weights = a.weights + from * a.width;
  for (int64_t i = 0; i < a.visible; ++i) {
    const float* value = a.v + a.slots[i] * a.dims + at;
    if (at == 0) prefetch(a.v, a, i + AHEAD);
    Vector values[V];
    for (int v = 0; v < V; ++v) values[v] = load(value + v * LANES);
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g) {
      const float weight = weights[g * a.width + i];
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) sums[g][v] += values[v] * weight;
    }
  }
  for (int g = 0; g < G; ++g) {
    for (int v = 0; v < V; ++v) {
      const Vector out = sums[g][v] / totals[g];
      std::memcpy(a.out + (from + g) * a.dims + at + v * LANES, &out, sizeof out);
    }
  }
}

template <int G>
TARGET void heads_of(const Heads& a, int64_t from) {
  float totals[G];
  weigh<G>(a, from, totals);
  int64_t at = 0;
  for (; at + 4 * LANES <= a.dims; at += 4 * LANES) mix<G, 4>(a, from, at, totals);
  for (; at + LANES <= a.dims; at += LANES) mix<G, 1>(a, from, at, totals);
  for (; at < a.dims; ++at) {
    for (int g = 0; g < G; ++g) {
      float sum = 0;
      for (int64_t i = 0; i < a.visible; ++i) sum += a.weights[(from + g) * a.width + i] * a.v[a.slots[i] * a.dims + at];
      a.out[(from + g) * a.dims + at] = sum / totals[g];
    }
  }
}

TARGET void attend(const Heads& a) {
  if (a.visible == 0) {
    std::fill(a.out, a.out + a.groups * a.dims, 0.f);
    return;
  }
  int64_t from = 0;
  for (; from + 3 <= a.groups; from += 3) heads_of<3>(a, from);
  for (; from < a.groups; ++from) heads_of<1>(a, from);
}
