// Products of rows with panels of codes, in integers. Included after level.h once for each instruction set that has
// such products, with TARGET, LEVEL, LANES, INTEGERS and HAS_VNNI defined.
//
// TARGET, LEVEL and LANES: as in level.h. INTEGERS: the namespace in LEVEL's. HAS_VNNI: whether one instruction adds
// products of four pairs of bytes to sums of 32 bits; without it, two at a time add up in 16 bits.
//
// The inputs of each group become codes too, of 8 or 16 bits with a scale. A group's sum of codes times codes is exact,
// and groups add in their order: a row's result depends neither on other rows nor on threads nor on these instructions.

namespace {
namespace LEVEL {
namespace INTEGERS {

#include "inputs.h"

#if LANES == 16
#define OF_WIDTH(name) _mm512_##name
typedef __m512i Raw;
#else
#define OF_WIDTH(name) _mm256_##name
typedef __m256i Raw;
#endif
typedef int16_t Shorts __attribute__((vector_size(sizeof(Raw))));
typedef uint16_t Halves __attribute__((vector_size(sizeof(Raw))));

constexpr int64_t FETCH = 64;  // words of each output that are fetched before they are used; with 16, eight rows wait for memory

constexpr int VECTORS = PANEL / LANES;

// Rows that read a panel together; and how many of its vectors they add to at a time. Of the sixteen registers of AVX2,
// eight hold such sums, and others wait in memory; with AVX-512, eight rows leave some of their totals there.
#if LANES == 16
template <Form FORM>
constexpr int ROWS = FORM == PLANES ? BLOCK / 2 : BLOCK;
template <int R>
constexpr int AT_A_TIME = VECTORS;
#else
template <Form FORM>
constexpr int ROWS = 4;
template <int R>
constexpr int AT_A_TIME = R <= 2 ? VECTORS : VECTORS / 2;
#endif

// Whether all sums of a group stay in 16 bits.
template <Kind KIND, Form FORM>
constexpr bool IS_SHORT = KIND == NIBBLES && FORM == QUADS && !HAS_VNNI;
constexpr int64_t SHORT = 2 * STEP;  // such a group, at most: 16 products, 15 * 128 each, per sum

TARGET TOGETHER Integers repeated(int32_t one) { return (Integers)OF_WIDTH(set1_epi32)(one); }

// A word of inputs' codes.
TARGET TOGETHER Integers repeated(const int8_t* from) {
  int32_t word;
  std::memcpy(&word, from, sizeof word);
  return repeated(word);
}

// The codes of the k-th four of STEP inputs; `words`: those of a vector's outputs.
template <Kind KIND>
TARGET TOGETHER Integers codes(const uint32_t* words, int k) {
  if (KIND == BYTES) return load(words + k * PANEL);
  Integers low = load(words + k / 2 * PANEL);
  if (k % 2) low >>= 4;
  low &= 0x0f0f0f0f;
  if (KIND == NIBBLES) return low;
  const Integers stored = load(words + 2 * PANEL), upper = k == 3 ? stored >> 2 : stored << (4 - 2 * k);
#if LANES == 16
  return (Integers)_mm512_ternarylogic_epi64((Raw)low, (Raw)upper, (Raw)repeated(0x30303030), 0xF8);  // low | upper & …
#else
  return low | (upper & 0x30303030);
#endif
}

// Adds products of pairs, or of four bytes each where there is VNNI.
template <Form FORM>
TARGET TOGETHER Integers add_products(Integers sum, Integers codes, Integers x) {
#if HAS_VNNI && LANES == 16
  if (FORM != PAIRS) return (Integers)_mm512_dpbusd_epi32((Raw)sum, (Raw)codes, (Raw)x);
  return (Integers)_mm512_dpwssd_epi32((Raw)sum, (Raw)codes, (Raw)x);
#elif HAS_VNNI
  if (FORM != PAIRS) return (Integers)_mm256_dpbusd_avx_epi32((Raw)sum, (Raw)codes, (Raw)x);
  return (Integers)_mm256_dpwssd_avx_epi32((Raw)sum, (Raw)codes, (Raw)x);
#endif
  return sum + (Integers)OF_WIDTH(madd_epi16)((Raw)codes, (Raw)x);
}

// Products of bytes, two added up in 16 bits; and such sums added up in twos.
TARGET TOGETHER Shorts by_twos(Integers codes, Integers x) {
  return (Shorts)OF_WIDTH(maddubs_epi16)((Raw)codes, (Raw)x);
}
TARGET TOGETHER Integers add_twos(Integers sum, Integers twos) {
  return add_products<PAIRS>(sum, twos, repeated(0x00010001));
}

// Has it added here. Else the compiler first multiplies all, and has no registers for the products.
template <class Sum>
TARGET TOGETHER void now(Sum& sum) {
#if !HAS_VNNI
  asm volatile("" : "+v"(sum));
#endif
}

template <Kind KIND, int V>
TARGET TOGETHER void fetch(const uint32_t* words) {
  for (int64_t k = 0; k < words_of(KIND); ++k) {
    for (int v = 0; v < V * LANES; v += 16) __builtin_prefetch(words + (k + FETCH) * PANEL + v);
  }
}

// Adds the products of STEP inputs of R rows with V vectors of outputs.
template <Kind KIND, Form FORM, int R, int V>
TARGET TOGETHER void add_step(const uint32_t* words, const int8_t* x, Integers (&dots)[dots_of(FORM)][R][V]) {
  constexpr int P = words_of(FORM);
  fetch<KIND, V>(words);
#pragma GCC unroll 4
  for (int k = 0; k < 4; ++k) {
    Integers fours[V];
    for (int v = 0; v < V; ++v) fours[v] = codes<KIND>(words + v * LANES, k);
#pragma GCC unroll 2
    for (int p = 0; p < P; ++p) {
      Integers some[V];
      for (int v = 0; v < V; ++v) {
        some[v] = FORM != PAIRS ? fours[v] : p ? (Integers)((Halves)fours[v] >> 8) : fours[v] & 0x00ff00ff;
      }
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const Integers one = repeated(x + ((r * 4 + k) * P + p) * 4);
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) {
          Integers& dot = dots[FORM == PLANES ? p : 0][r][v];
          dot = add_products<FORM>(dot, some[v], one);
          now(dot);
        }
      }
    }
  }
}

// The same of SIXES without VNNI: 63 * 128 * 4 fits 16 bits, so two sums of two products add up there.
template <int R, int V>
TARGET TOGETHER void add_sixes(const uint32_t* words, const int8_t* x, Integers (&dots)[1][R][V]) {
  fetch<SIXES, V>(words);
#pragma GCC unroll 2
  for (int k = 0; k < 4; k += 2) {
    Integers fours[2][V];
    for (int v = 0; v < V; ++v) {
      for (int i = 0; i < 2; ++i) fours[i][v] = codes<SIXES>(words + v * LANES, k + i);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Integers one = repeated(x + (r * 4 + k) * 4), other = repeated(x + (r * 4 + k + 1) * 4);
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) {
        dots[0][r][v] = add_twos(dots[0][r][v], (Integers)(by_twos(fours[0][v], one) + by_twos(fours[1][v], other)));
        now(dots[0][r][v]);
      }
    }
  }
}

// Sums in 16 bits of a short group of NIBBLES.
template <int R, int V>
TARGET TOGETHER void add_nibbles(const uint32_t* words, const int8_t* x, int64_t steps, Shorts (&sums)[R][V]) {
#pragma GCC unroll 2
  for (int s = 0; s < SHORT / STEP; ++s, words += words_of(NIBBLES) * PANEL, x += STEP * R) {
    if (s == steps) break;
    fetch<NIBBLES, V>(words);
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) {
      Integers fours[V];
      for (int v = 0; v < V; ++v) fours[v] = codes<NIBBLES>(words + v * LANES, k);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const Integers one = repeated(x + (r * 4 + k) * 4);
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) {
          sums[r][v] = s == 0 && k == 0 ? by_twos(fours[v], one) : sums[r][v] + by_twos(fours[v], one);
          now(sums[r][v]);
        }
      }
    }
  }
}

// Adds what a group's dots mean: at `at` in a panel, with rows from this group on.
template <Kind KIND, Form FORM, bool HAS_MINIMUMS, int R, int V>
TARGET TOGETHER void add_group(const Scales& stored, const Scales& lowest, const Vector* factors, const Vector* floors,
                               const CodedRows& in, int64_t g, int64_t at, const Integers (&dots)[dots_of(FORM)][R][V], Vector (&sums)[R][V]) {
  Vector scales[V], minimums[V];
  for (int v = 0; v < V; ++v) scales[v] = load(stored, factors[v], g, at + v * LANES);
  for (int v = 0; v < V && HAS_MINIMUMS; ++v) minimums[v] = load(lowest, floors[v], g, at + v * LANES);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const float scale = in.scales[r], total = HAS_MINIMUMS ? in.totals[r] : 0;
    for (int v = 0; v < V; ++v) {
      Integers dot = dots[0][r][v];
      if (FORM == PLANES) dot += dots[dots_of(FORM) - 1][r][v] << 8;
      if (IS_SHORT<KIND, FORM>) dot = add_twos(Integers{}, dot);
      sums[r][v] += __builtin_convertvector(dot, Vector) * scale * scales[v];
      if (HAS_MINIMUMS) sums[r][v] += minimums[v] * total;
    }
  }
}

// R rows with a panel, V of its vectors at a time. Not inlined: g++ keeps less in registers where it is.
template <Kind KIND, Form FORM, int R, int V>
TARGET __attribute__((noinline)) void tile(const Matrix& w, CodedRows in, const float* down, float* y, int64_t stride) {
  constexpr int64_t OF_STEP = words_of(KIND) * PANEL, CODED = STEP * R * words_of(FORM);
  Vector sums[VECTORS / V][R][V] = {};
  const uint32_t* words = w.words;
  const Scales scales = w.scales, minimums = w.minimums;  // those of `w` would be read again after each asm statement
  const bool has_minimums = minimums.are_there();
  const int64_t groups = w.groups(), per_block = w.block / w.group, steps = w.group / STEP;
  Vector factors[VECTORS], floors[VECTORS];
  for (int64_t g = 0, block = 0, next = 0; g < groups; ++g) {
    if (g == next) {
      for (int v = 0; v < VECTORS; ++v) {
        factors[v] = LEVEL::factors(scales, block, v * LANES);
        floors[v] = LEVEL::factors(minimums, block, v * LANES);
      }
      ++block, next += per_block;
    }
    for (int n = 0; n < VECTORS / V; ++n) {
      // Else the compiler repeats the codes of all inputs ahead of this loop, and has no registers for them.
      if (VECTORS > V) asm volatile("" : "+r"(n)::"memory");
      const uint32_t* here = words + n * V * LANES;
      Integers dots[dots_of(FORM)][R][V] = {};
      if constexpr (IS_SHORT<KIND, FORM>) {
        Shorts of_group[R][V];
        add_nibbles(here, in.codes, steps, of_group);
        std::memcpy(dots, of_group, sizeof dots);
      } else {
        for (int r = 0; r < R && KIND != NIBBLES; ++r) {
          for (int v = 0; v < V; ++v) dots[0][r][v] = repeated(in.first[r]);
        }
        for (int64_t s = 0; s < steps; ++s) {
          if constexpr (FORM == QUADS && !HAS_VNNI) add_sixes(here + s * OF_STEP, in.codes + s * CODED, dots);
          else add_step<KIND, FORM>(here + s * OF_STEP, in.codes + s * CODED, dots);
        }
      }
      if (has_minimums) add_group<KIND, FORM, true>(scales, minimums, factors + n * V, floors + n * V, in, g, n * V * LANES, dots, sums[n]);
      else add_group<KIND, FORM, false>(scales, minimums, factors + n * V, floors + n * V, in, g, n * V * LANES, dots, sums[n]);
    }
    words += steps * OF_STEP, in.codes += steps * CODED, in.scales += R, in.totals += R, in.first += R;
  }
  for (int v = 0; v < VECTORS; ++v) {
    for (int r = 0; r < R; ++r) {
      Vector sum = sums[v / V][r][v % V];
      for (int64_t j = 0; j < w.rank; ++j) sum += load(w.up + j * PANEL + v * LANES) * down[r * w.rank + j];
      std::memcpy(y + r * stride + v * LANES, &sum, sizeof sum);
    }
  }
}

// A block of rows with one panel.
template <Kind KIND, Form FORM, int R = ROWS<FORM>>
TARGET void panel(const Matrix& w, const CodedRows& in, int64_t rows, const float* down, float* y, int64_t stride) {
  if constexpr (R > 1) {
    if (rows < R) return panel<KIND, FORM, R - 1>(w, in, rows, down, y, stride);
  }
  tile<KIND, FORM, R, AT_A_TIME<R>>(w, in, down, y, stride);
}

template <Kind KIND, Form FORM>
constexpr Products WITH{code<FORM>, panel<KIND, FORM>, ROWS<FORM>, words_of(FORM)};

template <Form FORM>
const Products& with(Kind kind) {
  return kind == NIBBLES ? WITH<NIBBLES, FORM> : kind == SIXES ? WITH<SIXES, FORM> : WITH<BYTES, FORM>;
}

// How a matrix is multiplied with so many rows of inputs of so many bits. Codes of few rows fit the registers as two
// planes; more of them share the work of making pairs of a matrix's codes.
inline const Products& products_with(const Matrix& w, int64_t bits, int64_t rows) {
#if HAS_VNNI
  if (bits == 8) return with<QUADS>(w.kind);
  return LANES == 16 && rows <= ROWS<PLANES> ? with<PLANES>(w.kind) : with<PAIRS>(w.kind);
#else
  if (bits == 8 && w.kind == SIXES) return WITH<SIXES, QUADS>;
  if (bits == 8 && w.kind == NIBBLES && w.group <= SHORT) return WITH<NIBBLES, QUADS>;
  return with<PAIRS>(w.kind);
#endif
}

}  // namespace INTEGERS
}  // namespace LEVEL
}  // namespace

#undef TARGET
#undef LEVEL
#undef LANES
#undef INTEGERS
#undef HAS_VNNI
#undef OF_WIDTH
