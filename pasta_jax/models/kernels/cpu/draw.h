// Draws of a next token: of the ids that the filters keep, that whose logit / temperature plus noise is greatest. Included
// once.
//
// The noise is Gumbel's, id by id as jax.random.gumbel has it for a row's key. It has bounds, so only ids whose logits
// are near the greatest can win, and only theirs is computed: of 50,000 ids some hundreds.

namespace {

constexpr float FORBIDDEN = -1e30f;  // a logit; as in sampling.py
constexpr float MOST_NOISE = 16;     // -log(-log(1 - 2^-23)) is 15.94
constexpr int64_t TOGETHER_IDS = 16;

// The 32 bits that threefry makes of a key and a count below 2^32.
inline uint32_t threefry(const uint32_t* key, uint32_t count) {
  constexpr int ROTATIONS[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
  const uint32_t keys[] = {key[0], key[1], key[0] ^ key[1] ^ 0x1BD11BDAu};
  uint32_t high = keys[0], low = count + keys[1];
  for (uint32_t round = 0; round < 5; ++round) {
    for (int rotation : ROTATIONS[round % 2]) {
      high += low;
      low = (low << rotation | low >> (32 - rotation)) ^ high;
    }
    high += keys[(round + 1) % 3];
    low += keys[(round + 2) % 3] + round + 1;
  }
  return high ^ low;
}

inline float noise(const uint32_t* key, uint32_t id) {
  const uint32_t bits = threefry(key, id) >> 9 | 0x3F800000u;
  float uniform;
  std::memcpy(&uniform, &bits, sizeof uniform);
  uniform = std::max(uniform - 1, std::numeric_limits<float>::min());
  return -std::log(-std::log(uniform));
}

// The place of the greatest of some logits: the first of equals, and NaN above all.
inline int64_t greatest(const float* logits, int64_t count) {
  float most[TOGETHER_IDS];
  std::fill_n(most, TOGETHER_IDS, -INFINITY);
  int32_t are_nan = 0;
  const int64_t whole = count / TOGETHER_IDS * TOGETHER_IDS;
  for (int64_t i = 0; i < whole; i += TOGETHER_IDS) {
    for (int64_t k = 0; k < TOGETHER_IDS; ++k) {
      most[k] = logits[i + k] > most[k] ? logits[i + k] : most[k];
      are_nan |= logits[i + k] != logits[i + k];
    }
  }
  float best = -INFINITY;
  for (float one : most) best = std::max(best, one);
  for (int64_t i = whole; i < count; ++i) {
    best = logits[i] > best ? logits[i] : best;
    are_nan |= logits[i] != logits[i];
  }
  return std::find_if(logits, logits + count, [=](float one) { return are_nan ? one != one : one == best; }) - logits;
}

// Which ids may be drawn, as sampling.py has it: the top_k likeliest, 0: all; of these the fewest that hold the mass
// top_p; and those at least min_p times as likely as the likeliest. Equal ones at an edge stay.
struct Filter {
  int32_t top_k;
  float top_p, min_p;

  bool keeps_all() const { return top_k <= 0 && top_p >= 1 && !(min_p > 0); }
};

// use(i) of each place whose logit is at least `least`, which may rise meanwhile.
template <typename Use>
void each_above(const float* logits, int64_t count, const float& least, Use use) {
  const int64_t whole = count / TOGETHER_IDS * TOGETHER_IDS;
  for (int64_t i = 0; i < whole; i += TOGETHER_IDS) {
    int32_t any = 0;
    for (int64_t k = 0; k < TOGETHER_IDS; ++k) any |= logits[i + k] >= least;
    for (int64_t k = 0; k < TOGETHER_IDS && any; ++k) {
      if (logits[i + k] >= least) use(i + k);
    }
  }
  for (int64_t i = whole; i < count; ++i) {
    if (logits[i] >= least) use(i);
  }
}

// The least (logit - most) / temperature that a filter keeps. Each row's sums add up in one order, whatever is beside it.
inline float edge_of(const Filter& filter, const float* logits, int64_t count, float most, float temperature) {
  const float allowed = std::nextafter(FORBIDDEN, 0.0f);
  thread_local std::vector<float> likely;
  float edge = -INFINITY, least = 0;
  const auto widen = [&] {  // most ids are far from any edge
    least = least < -1000 ? -INFINITY : 2 * least - 4;
    likely.clear();
    each_above(logits, count, std::max(allowed, most + least * temperature - 1e-5f * std::abs(most)), [&](int64_t i) {
      const float one = (logits[i] - most) / temperature;
      if (one >= least) likely.push_back(one);
    });
  };
  const auto mass_of = [&](float one) { return static_cast<double>(std::exp(one)); };
  double all = 0;
  if (filter.top_k > 0) {
    const size_t k = filter.top_k;
    do widen();
    while (likely.size() < k && least > -INFINITY);
    if (k <= likely.size()) {
      const auto last = likely.begin() + k - 1;
      std::nth_element(likely.begin(), last, likely.end(), std::greater<float>());
      edge = *last;
      likely.erase(std::remove_if(last, likely.end(), [=](float one) { return one < edge; }), likely.end());
    }
    for (float one : likely) all += mass_of(one);
  } else if (filter.top_p < 1) {
    each_above(logits, count, allowed, [&](int64_t i) { all += mass_of((logits[i] - most) / temperature); });
    widen();
  }
  bool is_found = filter.top_p >= 1;
  while (!is_found) {
    std::sort(likely.begin(), likely.end(), std::greater<float>());
    double held = 0;
    for (size_t i = 0; i < likely.size() && !is_found; ++i) {
      held += mass_of(likely[i]);
      is_found = held >= filter.top_p * all;
      if (is_found) edge = std::max(edge, likely[i]);
    }
    if (is_found || filter.top_k > 0 || least == -INFINITY) break;  // else sums round: all are kept
    widen();
  }
  return filter.min_p > 0 ? std::max(edge, std::log(filter.min_p)) : edge;
}

// The place of the id that wins. `ids` are those of the logits, ascending; null: their places.
inline int64_t drawn(const float* logits, int64_t count, float temperature, const Filter& filter, const uint32_t* key,
                     const int32_t* ids) {
  int64_t best = greatest(logits, count);
  const float most = best < count ? logits[best] : NAN;
  if (!(temperature > 0) || !(most > FORBIDDEN)) return best;
  const float edge = filter.keeps_all() || std::isinf(most) ? -INFINITY : edge_of(filter, logits, count, most, temperature);
  const auto sum_of = [&](int64_t i) { return (logits[i] - most) / temperature + noise(key, ids ? ids[i] : i); };
  float sum = sum_of(best), least = 0;
  const auto narrow = [&] {  // with room for rounding
    const float below = temperature * (MOST_NOISE + 0.01f - sum);
    least = std::max(most - below - 1e-6f * std::abs(most), std::nextafter(FORBIDDEN, 0.0f));
  };
  narrow();
  each_above(logits, count, least, [&](int64_t i) {
    if ((logits[i] - most) / temperature < edge) return;
    const float one = sum_of(i);
    if (!(one > sum || (one == sum && i < best))) return;
    best = i, sum = one;
    narrow();
  });
  return best;
}

// Of rows of logits [N, V], each with its temperature, filter and key [N, 2].
struct Draws {
  const float *logits, *temperature;
  const int32_t* top_k;
  const float *top_p, *min_p;
  const uint32_t* key;
  const int32_t* ids;
  int32_t* place;
  int64_t rows, count;
};

void draw(const Draws& d) {
  pool().run(d.rows, [&](int64_t row) {
    const Filter filter{d.top_k[row], d.top_p[row], d.min_p[row]};
    d.place[row] = drawn(d.logits + row * d.count, d.count, d.temperature[row], filter, d.key + row * 2, d.ids);
  });
}

}  // namespace
