// Products of rows with panels. Included by level.h once for each instruction set.

template <Kind KIND>
constexpr bool IS_CODED = KIND != NUMBERS && KIND != HALVES;

template <int V>
TARGET TOGETHER void read(const float* from, Vector (&to)[V]) {
  for (int v = 0; v < V; ++v) to[v] = load(from + v * LANES);
}

template <int V>
TARGET TOGETHER void read(const Scales& from, int64_t group, int64_t block, Vector (&to)[V]) {
  for (int v = 0; v < V; ++v) to[v] = load(from, factors(from, block, v * LANES), group, v * LANES);
}

// Adds V vectors of weights, times each row's number.
template <int R, int V>
TARGET TOGETHER void add(const Vector (&weights)[V], const float* rows, int64_t stride, Vector (&sums)[R][V]) {
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const float one = rows[r * stride];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) sums[r][v] += weights[v] * one;
  }
}

// R rows with V vectors of a panel. Sums add in the order of the inputs, of codes by groups.
template <Kind KIND, int R, int V>
TARGET TOGETHER void tile(const Matrix& w, const Rows& in, float* y, int64_t stride) {
  Vector sums[R][V] = {};
  Vector weights[V];
  for (int64_t i = 0; i < in.inputs && !IS_CODED<KIND>; ++i) {
    for (int v = 0; v < V; ++v) {
      const int64_t at = i * PANEL + v * LANES;
      weights[v] = KIND == NUMBERS ? load(w.numbers + at) : halves(w.halves + at);
    }
    for (int v = 0; v < V * LANES && KIND == NUMBERS; v += 16) __builtin_prefetch(w.numbers + (i + 32) * PANEL + v);
    if (KIND == HALVES) __builtin_prefetch(w.halves + (i + 64) * PANEL);
    add(weights, in.x + i, in.inputs, sums);
  }
  const uint32_t* from = w.words;
  for (int64_t g = 0; g < in.groups && IS_CODED<KIND>; ++g) {
    constexpr int64_t W = words_of(KIND);
    Vector parts[R][V] = {};
    for (int64_t i = g * w.group; i < (g + 1) * w.group; i += STEP, from += W * PANEL) {
      Integers words[V][W];
      for (int v = 0; v < V; ++v) {
        for (int64_t k = 0; k < W; ++k) {
          words[v][k] = load(from + k * PANEL + v * LANES);
          __builtin_prefetch(from + (k + 4 * W) * PANEL + v * LANES);
        }
      }
#pragma GCC unroll 16
      for (int n = 0; n < STEP; ++n) {
        for (int v = 0; v < V; ++v) weights[v] = codes<KIND>(words[v], n);
        add(weights, in.x + i + n, in.inputs, parts);
      }
    }
    const int64_t block = g * w.group / w.block;
    read(w.scales, g, block, weights);
    for (int r = 0; r < R; ++r) {
      for (int v = 0; v < V; ++v) sums[r][v] += parts[r][v] * weights[v];
    }
    if (!w.minimums.are_there()) continue;
    read(w.minimums, g, block, weights);
    add(weights, in.totals + g, in.groups, sums);
  }
  for (int64_t j = 0; j < in.rank; ++j) {
    read(w.up + j * PANEL, weights);
    add(weights, in.down + j, in.rank, sums);
  }
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) std::memcpy(y + r * stride + v * LANES, &sums[r][v], sizeof(Vector));
  }
}

// R rows with one panel: with all of its vectors if their sums fit the registers, else with some after others.
template <Kind KIND, int R>
TARGET void whole(const Matrix& w, const Rows& in, float* y, int64_t stride) {
  constexpr int64_t ALL = PANEL / LANES;
  constexpr int64_t MOST = IS_CODED<KIND> ? SUMS / 2 : SUMS;  // a group of codes has sums of its own
  constexpr int64_t V = R * ALL <= MOST ? ALL : R * ALL <= 2 * MOST ? ALL / 2 : R * ALL <= 4 * MOST ? ALL / 4 : 1;
  for (int64_t v = 0; v < ALL; v += V) tile<KIND, R, V>(w.from(v * LANES), in, y + v * LANES, stride);
}

// Any rows with one panel, in groups whose sums fit the registers. A panel stays in the cache from group to group.
template <Kind KIND, int R = LANES == 16 ? 8 : 6>
TARGET void panel(const Matrix& w, Rows in, float* y, int64_t rows, int64_t stride) {
  for (; rows >= R; rows -= R, in = in.from(R), y += R * stride) whole<KIND, R>(w, in, y, stride);
  if constexpr (R > 1) panel<KIND, R - 1>(w, in, y, rows, stride);
}

template <Kind KIND>
TARGET void panels(const Matrix& w, const Rows& in, float* y, int64_t rows, int64_t outputs, int64_t first,
                   int64_t last) {
  for (int64_t p = first; p < last; ++p) {
    const Matrix here = w.panel(p);
    const int64_t width = std::min(PANEL, outputs - p * PANEL);
    if (width == PANEL) {
      panel<KIND>(here, in, y + p * PANEL, rows, outputs);
      continue;
    }
    for (int64_t r = 0; r < rows; ++r) {  // the last panel is padded
      float all[PANEL];
      panel<KIND>(here, in.from(r), all, 1, PANEL);
      std::memcpy(y + r * outputs + p * PANEL, all, width * sizeof(float));
    }
  }
}

// The products of rows [R][I] with the rows of another matrix [N][I], as [R][N]; in sixteen sums whatever the vectors.
TARGET void dots(const float* x, const float* matrix, float* y, int64_t rows, int64_t inputs, int64_t outputs) {
  const int64_t whole = inputs / 16 * 16;
  for (int64_t o = 0; o < outputs; ++o) {
    const float* one = matrix + o * inputs;
    for (int64_t r = 0; r < rows; ++r) {
      Vector sums[16 / LANES] = {};
      for (int64_t i = 0; i < whole; i += 16) {
        for (int k = 0; k < 16 / LANES; ++k) {
          sums[k] += load(x + r * inputs + i + k * LANES) * load(one + i + k * LANES);
        }
      }
      for (int width = 8 / LANES; width > 0; width /= 2) {
        for (int k = 0; k < width; ++k) sums[k] += sums[k + width];
      }
      float all = sum(sums[0]);
      for (int64_t i = whole; i < inputs; ++i) all += x[r * inputs + i] * one[i];
      y[r * outputs + o] = all;
    }
  }
}
