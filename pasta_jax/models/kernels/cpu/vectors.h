// Vectors of one instruction set, and codes as vectors of floats. Included by level.h.

typedef float Vector __attribute__((vector_size(LANES * sizeof(float))));
typedef float Four __attribute__((vector_size(4 * sizeof(float))));
typedef int32_t Integers __attribute__((vector_size(LANES * sizeof(int32_t))));

TARGET TOGETHER Vector load(const float* from) {
  Vector vector;
  std::memcpy(&vector, from, sizeof vector);
  return vector;
}

TARGET TOGETHER Integers load(const uint32_t* from) {
  Integers vector;
  std::memcpy(&vector, from, sizeof vector);
  return vector;
}

// Numbers of which the upper halves are stored.
TARGET TOGETHER Vector halves(const uint16_t* from) {
#if LANES == 16
  const __m256i stored = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  return (Vector)_mm512_slli_epi32(_mm512_cvtepu16_epi32(stored), 16);
#elif LANES == 8
  const __m128i stored = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return (Vector)_mm256_slli_epi32(_mm256_cvtepu16_epi32(stored), 16);
#else
  Integers numbers;
  for (int i = 0; i < LANES; ++i) numbers[i] = from[i];
  return (Vector)(numbers << 16);
#endif
}

// Small whole numbers.
TARGET TOGETHER Vector bytes(const int8_t* from) {
#if LANES == 16
  const Integers codes = (Integers)_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#elif LANES == 8
  const Integers codes = (Integers)_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
#else
  Integers codes;
  for (int i = 0; i < LANES; ++i) codes[i] = from[i];
#endif
  return __builtin_convertvector(codes, Vector);
}

// Numbers of 16 bits, of IEEE's kind.
TARGET TOGETHER Vector short_numbers(const uint16_t* from) {
#if LANES == 16
  return (Vector)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
#elif LANES == 8
  return (Vector)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#else
  Integers stored;
  for (int i = 0; i < LANES; ++i) stored[i] = from[i];
  const Integers size = (stored & 0x7fff) << 13;
  const Integers is_subnormal = size < 0x00800000, is_special = size >= 0x0f800000;
  // From integers: XLA's threads read floats that are subnormal as 0.
  const Integers small = (Integers)(__builtin_convertvector(stored & 0x03ff, Vector) * 0x1p-24f);
  const Integers normal = size + ((112 + (is_special & 112)) << 23);
  return (Vector)((small & is_subnormal) | (normal & ~is_subnormal) | (stored & 0x8000) << 16);
#endif
}

// Of a block of groups: what scales or minimums that are bytes are times.
TARGET TOGETHER Vector factors(const Scales& from, int64_t block, int64_t at) {
  return from.small == nullptr ? Vector{} : short_numbers(from.factors + block * PANEL + at);
}

// Scales or minimums of a group.
TARGET TOGETHER Vector load(const Scales& from, Vector factors, int64_t group, int64_t at) {
  if (from.small != nullptr) return bytes(from.small + group * PANEL + at) * factors;
  if (from.halves != nullptr) return short_numbers(from.halves + group * PANEL + at);
  return load(from.numbers + group * PANEL + at);
}

// The codes of input n of STEP; `words`: those of a vector's outputs.
template <Kind KIND>
TARGET TOGETHER Vector codes(const Integers* words, int n) {
  if (KIND == BYTES) return __builtin_convertvector(((words[n / 4] ^ 0x80808080) << (24 - n % 4 * 8)) >> 24, Vector);
  const Integers low = words[n / 8] >> (n % 4 * 8 + n / 4 % 2 * 4);
#if LANES == 16  // looks them up: neither a mask nor a conversion, as only the lowest bits of an index count
  const Vector table = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  if (KIND == NIBBLES) return (Vector)_mm512_permutexvar_ps((__m512i)low, (__m512)table);
#endif
  if (KIND == NIBBLES) return __builtin_convertvector(low & 15, Vector);
  const int bit = n % 4 * 8 + n / 4 * 2;
  const Integers high = bit >= 4 ? words[2] >> (bit - 4) : words[2] << (4 - bit);
  return __builtin_convertvector(((low & 15) | (high & 48)) - 32, Vector);
}

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

TARGET TOGETHER float sum(Vector vector) {
  Four parts[LANES / 4];
  std::memcpy(parts, &vector, sizeof vector);
  for (int width = LANES / 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) parts[i] += parts[i + width];
  }
  return (parts[0][0] + parts[0][2]) + (parts[0][1] + parts[0][3]);
}

// The sums of four vectors, each added up as above.
TARGET TOGETHER Four four_sums(const Vector* of) {
#if LANES == 16
  const __m512 a = (__m512)of[0], b = (__m512)of[1], c = (__m512)of[2], d = (__m512)of[3];
  const __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
  const __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xee));
  const __m512 fours = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
  const __m512 pairs = _mm512_add_ps(fours, _mm512_permute_ps(fours, 0x4e));
  const __m512 all = _mm512_add_ps(pairs, _mm512_permute_ps(pairs, 0xb1));
  const __m512i firsts = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
  return (Four)_mm512_castps512_ps128(_mm512_permutexvar_ps(firsts, all));
#elif LANES == 8
  const __m256 a = (__m256)of[0], b = (__m256)of[1], c = (__m256)of[2], d = (__m256)of[3];
  const __m256 ab = _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
  const __m256 cd = _mm256_add_ps(_mm256_permute2f128_ps(c, d, 0x20), _mm256_permute2f128_ps(c, d, 0x31));
  const __m256 pairs = _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));
  const __m256 all = _mm256_hadd_ps(pairs, pairs);  // of a, c, a, c, b, d, b, d
  return (Four)_mm_unpacklo_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1));
#else
  return Four{sum(of[0]), sum(of[1]), sum(of[2]), sum(of[3])};
#endif
}
