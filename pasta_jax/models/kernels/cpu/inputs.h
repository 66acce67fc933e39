// Inputs as codes of 8 or 16 bits, with a scale for each group. Included by integers.h.

constexpr float LEAST = 1e-30f;  // smaller inputs count as zero: their scale would have no inverse

typedef int32_t Four __attribute__((vector_size(16)));

TARGET TOGETHER Integers rounded(Vector x) {
#if LANES == 16
  return (Integers)_mm512_cvtps_epi32((__m512)x);
#else
  return (Integers)_mm256_cvtps_epi32((__m256)x);
#endif
}

// Of all lanes, joined in pairs.
template <class Join>
TARGET TOGETHER int32_t folded(Integers lanes, const Join& join) {
  Four parts[LANES / 4];
  std::memcpy(parts, &lanes, sizeof lanes);
  for (int width = LANES / 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) parts[i] = join(parts[i], parts[i + width]);
  }
  const Four four = parts[0];
  return join(join(four[0], four[2]), join(four[1], four[3]));
}

// The codes of a group that holds an infinity or NaN, and its total: the scale has it, and what is finite beside it
// counts for nothing.
inline float code_special(const float* x, int64_t group, int32_t most, int32_t* codes, float* total) {
  bool is_nan = false;
  *total = 0;
  for (int64_t i = 0; i < group; ++i) {
    is_nan |= std::isnan(x[i]);
    codes[i] = std::isinf(x[i]) ? (x[i] > 0 ? most : -most) : 0;
    if (!std::isfinite(x[i])) *total += x[i];
  }
  return is_nan ? NAN : INFINITY;
}

TARGET TOGETHER __m128i bytes(__m256i shorts) {
  return _mm_packs_epi16(_mm256_castsi256_si128(shorts), _mm256_extracti128_si256(shorts, 1));
}

// Writes the codes of STEP inputs.
template <Form FORM>
TARGET TOGETHER void write(const int32_t* codes, int8_t* to) {
  const __m256i* from = reinterpret_cast<const __m256i*>(codes);
  const __m256i pairs = _mm256_packs_epi32(_mm256_load_si256(from), _mm256_load_si256(from + 1));
  const __m256i whole = _mm256_permute4x64_epi64(pairs, 0xd8);
  __m128i* const at = reinterpret_cast<__m128i*>(to);
  if (FORM == QUADS) _mm_storeu_si128(at, bytes(whole));
  if (FORM == PAIRS) {  // the first and third of four, then the others
    const __m256i ordered = _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(whole, 0xd8), 0xd8);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), ordered);
  }
  if (FORM == PLANES) {
    const __m256i upper = _mm256_srai_epi16(_mm256_add_epi16(whole, _mm256_set1_epi16(128)), 8);
    const __m128i low = bytes(_mm256_sub_epi16(whole, _mm256_slli_epi16(upper, 8))), high = bytes(upper);
    _mm_storeu_si128(at, _mm_unpacklo_epi32(low, high));
    _mm_storeu_si128(at + 1, _mm_unpackhi_epi32(low, high));
  }
}

// Groups `begin` to `end` of rows [R][inputs] as codes of at most `most`.
template <Form FORM>
TARGET void code(const Matrix& w, const float* x, int64_t rows, int64_t begin, int64_t end, float most,
                 const CodedRows& to) {
  alignas(64) int32_t codes[LARGEST];
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t g = begin; g < end; ++g) {
      const float* from = x + r * w.inputs + g * w.group;
      Integers sizes = {};  // bits of positive floats are in the order of the floats
      for (int64_t i = 0; i < w.group; i += LANES) {
        const Integers size = (Integers)load(from + i) & 0x7fffffff;
        sizes = size > sizes ? size : sizes;
      }
      const int32_t size = folded(sizes, [](auto a, auto b) { return a > b ? a : b; });
      float largest, total;
      std::memcpy(&largest, &size, sizeof size);
      float scale = largest < LEAST ? 0 : largest / most;
      Integers sums = {};
      const bool is_special = size >= 0x7f800000;
      if (is_special) {
        scale = code_special(from, w.group, static_cast<int32_t>(most), codes, &total);
      } else {
        const float inverse = largest < LEAST ? 0 : most / largest;
        for (int64_t i = 0; i < w.group; i += LANES) {
          const Integers whole = rounded(load(from + i) * inverse);
          std::memcpy(codes + i, &whole, sizeof whole);
          sums += whole;
        }
      }
      for (int64_t i = 0; i < w.group; i += STEP) {
        write<FORM>(codes + i, to.codes + ((g * w.group + i) / STEP * rows + r) * STEP * words_of(FORM));
      }
      const int64_t at = g * rows + r;
      const int32_t sum = is_special ? std::accumulate(codes, codes + w.group, 0) : folded(sums, std::plus<>());
      to.first[at] = -offset_of(w.kind) * sum;
      to.scales[at] = scale;
      // Of the rounded inputs: then an error of rounding meets the weight, not the weight less the minimum, which is
      // several times as large.
      to.totals[at] = is_special ? total : scale * static_cast<float>(sum);
    }
  }
}
