// Products of rows with panels of codes, in integers: VNNI multiplies four pairs of bytes at a time. Included once.
//
// The inputs of each group become codes too, of 8 or 16 bits with a scale. A group's sum of codes times codes is exact,
// and groups add in their order: a row's result depends neither on other rows nor on threads.

#define VNNI __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")))

namespace {
namespace vnni {

using avx512::load;

constexpr float MOST[] = {0, 127, 32512};  // of a code, by planes: both halves of the largest fit a byte
constexpr int64_t FETCH = 16;              // words of each output that are fetched before they are used
constexpr float LEAST = 1e-30f;            // smaller inputs count as zero: their scale would have no inverse

// The codes of a group that holds an infinity or NaN: the scale has it, and what is finite beside it counts for nothing.
VNNI inline float code_special(const float* x, int64_t group, int32_t* codes, int32_t most) {
  bool is_nan = false;
  for (int64_t i = 0; i < group; ++i) {
    is_nan |= std::isnan(x[i]);
    codes[i] = std::isinf(x[i]) ? (x[i] > 0 ? most : -most) : 0;
  }
  return is_nan ? NAN : INFINITY;
}

// Groups `begin` to `end` of R rows [R][inputs] as codes.
template <int P>
VNNI void code(const Matrix& w, const float* x, int64_t rows, int64_t begin, int64_t end, const CodedRows& to) {
  alignas(64) int32_t codes[LARGEST];
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t g = begin; g < end; ++g) {
      const float* from = x + r * w.inputs + g * w.group;
      __m512 most = _mm512_setzero_ps(), total = _mm512_setzero_ps();
      __mmask16 is_special = 0;
      for (int64_t i = 0; i < w.group; i += STEP) {
        const __m512 part = _mm512_loadu_ps(from + i);
        is_special |= _mm512_fpclass_ps_mask(part, 0x99);  // infinities and NaNs
        most = _mm512_max_ps(most, _mm512_abs_ps(part));
        total = _mm512_add_ps(total, part);
      }
      const float largest = _mm512_reduce_max_ps(most);
      float scale = largest < LEAST ? 0 : largest / MOST[P];
      if (is_special) {
        scale = code_special(from, w.group, codes, static_cast<int32_t>(MOST[P]));
      } else {
        const __m512 inverse = _mm512_set1_ps(largest < LEAST ? 0 : MOST[P] / largest);
        for (int64_t i = 0; i < w.group; i += STEP) {
          _mm512_store_si512(codes + i, _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(from + i), inverse)));
        }
      }
      __m512i sums[P] = {};
      for (int64_t i = 0; i < w.group; i += STEP) {
        __m512i parts[P] = {_mm512_load_si512(codes + i)};
        if (P == 2) {
          const __m512i whole = parts[0];
          parts[P - 1] = _mm512_srai_epi32(_mm512_add_epi32(whole, _mm512_set1_epi32(128)), 8);
          parts[0] = _mm512_sub_epi32(whole, _mm512_slli_epi32(parts[P - 1], 8));
        }
        for (int p = 0; p < P; ++p) {
          alignas(16) int32_t four[4];
          _mm_store_si128(reinterpret_cast<__m128i*>(four), _mm512_cvtepi32_epi8(parts[p]));
          for (int64_t k = 0; k < 4; ++k) {
            const int64_t quad = (g * w.group + i) / 4 + k;
            std::memcpy(to.codes + ((quad * rows + r) * P + p) * 4, &four[k], 4);
          }
          sums[p] = _mm512_add_epi32(sums[p], parts[p]);
        }
      }
      int32_t sum = 0;
      for (int p = P - 1; p >= 0; --p) {
        const int32_t of_plane = _mm512_reduce_add_epi32(sums[p]);
        sum = 256 * sum + of_plane;
        to.first[(g * rows + r) * P + p] = -offset_of(w.kind) * of_plane;
      }
      to.scales[g * rows + r] = scale;
      // Of the rounded inputs: then an error of rounding meets the weight, not the weight less the minimum, which is
      // several times as large.
      to.totals[g * rows + r] = is_special ? _mm512_reduce_add_ps(total) : scale * static_cast<float>(sum);
    }
  }
}

// The codes of STEP inputs, four in each lane.
template <Kind KIND>
VNNI TOGETHER void decode(const uint32_t* words, __m512i (&codes)[4]) {
  const __m512i nibble = _mm512_set1_epi8(15), upper = _mm512_set1_epi8(48);
  if (KIND == BYTES) {
    for (int k = 0; k < 4; ++k) codes[k] = _mm512_loadu_si512(words + k * PANEL);
    return;
  }
  const __m512i high = KIND == SIXES ? _mm512_loadu_si512(words + 2 * PANEL) : __m512i{};
  const __m512i shifted[] = {_mm512_slli_epi16(high, 4), _mm512_slli_epi16(high, 2), high, _mm512_srli_epi16(high, 2)};
  for (int k = 0; k < 4; ++k) {
    __m512i low = _mm512_loadu_si512(words + k / 2 * PANEL);
    if (k % 2) low = _mm512_srli_epi16(low, 4);
    codes[k] = _mm512_and_si512(low, nibble);
    if (KIND == SIXES) codes[k] = _mm512_ternarylogic_epi64(codes[k], shifted[k], upper, 0xF8);  // codes | shifted & upper
  }
}

// R rows with V vectors of a panel.
template <Kind KIND, int P, int R, int V>
VNNI TOGETHER void tile(const Matrix& w, const CodedRows& in, const float* down, float* y, int64_t stride) {
  constexpr int64_t W = words_of(KIND);
  const uint32_t* words = w.words;
  const int8_t* x = in.codes;
  __m512 sums[R][V];
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) sums[r][v] = _mm512_setzero_ps();
  }
  const int64_t groups = w.groups(), per_block = w.block / w.group;
  for (int64_t g = 0, block = 0, next = per_block; g < groups; ++g) {
    if (g == next) ++block, next += per_block;
    __m512i dots[P][R][V];
    for (int p = 0; p < P; ++p) {
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        for (int v = 0; v < V; ++v) {
          dots[p][r][v] = KIND == NIBBLES ? _mm512_setzero_si512() : _mm512_set1_epi32(in.first[(g * R + r) * P + p]);
        }
      }
    }
    for (int64_t i = 0; i < w.group; i += STEP, words += W * PANEL, x += STEP * R * P) {
      __m512i codes[V][4];
      for (int v = 0; v < V; ++v) {
        decode<KIND>(words + v * 16, codes[v]);
        for (int64_t k = 0; k < W; ++k) __builtin_prefetch(words + (k + FETCH) * PANEL + v * 16);
      }
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k) {
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          for (int p = 0; p < P; ++p) {
            int32_t four;
            std::memcpy(&four, x + ((k * R + r) * P + p) * 4, 4);
            for (int v = 0; v < V; ++v) {
              dots[p][r][v] = _mm512_dpbusd_epi32(dots[p][r][v], codes[v][k], _mm512_set1_epi32(four));
            }
          }
        }
      }
    }
    __m512 scales[V], minimums[V];
    const bool has_minimums = w.minimums.are_there();
    for (int v = 0; v < V; ++v) scales[v] = (__m512)load(w.scales, g, block, v * 16);
    for (int v = 0; v < V && has_minimums; ++v) minimums[v] = (__m512)load(w.minimums, g, block, v * 16);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const __m512 scale = _mm512_set1_ps(in.scales[g * R + r]);
      for (int v = 0; v < V; ++v) {
        __m512i dot = dots[0][r][v];
        if (P == 2) dot = _mm512_add_epi32(dot, _mm512_slli_epi32(dots[P - 1][r][v], 8));
        sums[r][v] = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(dot), scale), scales[v], sums[r][v]);
      }
    }
    if (!has_minimums) continue;
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const __m512 total = _mm512_set1_ps(in.totals[g * R + r]);
      for (int v = 0; v < V; ++v) sums[r][v] = _mm512_fmadd_ps(total, minimums[v], sums[r][v]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) {
      for (int64_t j = 0; j < w.rank; ++j) {
        const __m512 up = _mm512_loadu_ps(w.up + j * PANEL + v * 16);
        sums[r][v] = _mm512_fmadd_ps(_mm512_set1_ps(down[r * w.rank + j]), up, sums[r][v]);
      }
      _mm512_storeu_ps(y + r * stride + v * 16, sums[r][v]);
    }
  }
}

// R rows with one panel: with both of its vectors if all sums fit the registers.
template <Kind KIND, int P, int R>
VNNI void whole(const Matrix& w, const CodedRows& in, const float* down, float* y, int64_t stride) {
  constexpr int V = 2 * R * (P + 1) <= 28 ? 2 : 1;
  for (int64_t v = 0; v < 2; v += V) tile<KIND, P, R, V>(w.from(v * 16), in, down, y + v * 16, stride);
}

// A block of rows with one panel.
template <Kind KIND, int P, int R = BLOCK / P>
VNNI void panel(const Matrix& w, const CodedRows& in, int64_t rows, const float* down, float* y, int64_t stride) {
  if constexpr (R > 1) {
    if (rows < R) return panel<KIND, P, R - 1>(w, in, rows, down, y, stride);
  }
  whole<KIND, P, R>(w, in, down, y, stride);
}

}  // namespace vnni
}  // namespace
