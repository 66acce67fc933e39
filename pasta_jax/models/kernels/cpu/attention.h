// Attention to the visible slots of a pool. Included by level.h once for each instruction set.

// e^x of numbers up to 88, within two units in the last place; 0 below -87, and NaN of NaN.
TARGET TOGETHER Vector exponential(Vector x) {
  const Vector turns = x * 1.44269504f + 12582912.f;  // rounds to an integer, in the low bits
  const Vector whole = turns - 12582912.f;
  const Vector rest = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
  Vector series = rest * 1.9875691500e-4f + 1.3981999507e-3f;
  series = series * rest + 8.3334519073e-3f;
  series = series * rest + 4.1665795894e-2f;
  series = series * rest + 1.6666665459e-1f;
  series = series * rest + 5.0000001201e-1f;
  series = series * rest * rest + rest + 1.f;
  const Vector power = (Vector)(((Integers)turns - 0x4b400000 + 127) << 23);
  return (Vector)((Integers)(series * power) & ~(Integers)(x <= -87.f));
}

// Slots of other threads lie between the visible ones, where the processor's own prefetching loses track.
TARGET TOGETHER void prefetch(const float* from, const Heads& a, int64_t i) {
  const float* row = from + a.slots[std::min(i, a.visible - 1)] * a.dims;
  for (int64_t d = 0; d < a.dims; d += 16) __builtin_prefetch(row + d);
}

// The weights of G query heads: softmax over the visible slots, without the division by its sum, which is returned.
template <int G>
TARGET TOGETHER void weigh(const Heads& a, int64_t from, float* totals) {
  const int64_t whole = a.dims / LANES * LANES;
  const float* q = a.q + from * a.dims;
  float* weights = a.weights + from * a.visible;
  float most[G];
  for (int g = 0; g < G; ++g) most[g] = -INFINITY;
  for (int64_t i = 0; i < a.visible; ++i) {
    const float* key = a.k + a.slots[i] * a.dims;
    prefetch(a.k, a, i + AHEAD);
    Vector sums[G] = {};
    for (int64_t d = 0; d < whole; d += LANES) {
      const Vector keys = load(key + d);
#pragma GCC unroll 4
      for (int g = 0; g < G; ++g) sums[g] += keys * load(q + g * a.dims + d);
    }
    for (int g = 0; g < G; ++g) {
      float score = sum(sums[g]);
      for (int64_t d = whole; d < a.dims; ++d) score += key[d] * q[g * a.dims + d];
      weights[g * a.visible + i] = score * a.scale;
    }
  }
  for (int g = 0; g < G; ++g) {
    float* row = weights + g * a.visible;
    if (a.cap != 0) {
      for (int64_t i = 0; i < a.visible; ++i) row[i] = a.cap * std::tanh(row[i] / a.cap);
    }
    for (int64_t i = 0; i < a.visible; ++i) most[g] = std::max(most[g], row[i]);
    totals[g] = 0;
    for (int64_t i = 0; i < a.visible; i += LANES) {
      Vector part = Vector{} - INFINITY;
      const int64_t count = std::min<int64_t>(LANES, a.visible - i);
      std::memcpy(&part, row + i, count * sizeof(float));
      part = exponential(part - most[g]);
      std::memcpy(row + i, &part, count * sizeof(float));
      totals[g] += sum(part);
    }
  }
}

// G query heads' weighted sums of the values in V vectors.
template <int G, int V>
TARGET TOGETHER void mix(const Heads& a, int64_t from, int64_t at, const float* totals) {
  Vector sums[G][V] = {};
  const float* weights = a.weights + from * a.visible;
  for (int64_t i = 0; i < a.visible; ++i) {
    const float* value = a.v + a.slots[i] * a.dims + at;
    if (at == 0) prefetch(a.v, a, i + AHEAD);
    Vector values[V];
    for (int v = 0; v < V; ++v) values[v] = load(value + v * LANES);
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g) {
      const float weight = weights[g * a.visible + i];
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
      for (int64_t i = 0; i < a.visible; ++i) sum += a.weights[(from + g) * a.visible + i] * a.v[a.slots[i] * a.dims + at];
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
