// Vectors of one instruction set, and codes as vectors of floats. Included by level.h.

typedef float Vector __attribute__((vector_size(LANES * sizeof(float))));
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

// Codes of 8 bits.
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

// The codes of 4 bits that begin at a bit of each word.
TARGET TOGETHER Vector nibbles(Integers words, int bit) {
#if LANES == 16  // looks them up: neither a mask nor a conversion, as only the lowest bits of an index count
  const Vector table = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return (Vector)_mm512_permutexvar_ps(_mm512_srli_epi32((__m512i)words, bit), (__m512)table);
#else
  return __builtin_convertvector((words >> bit) & 15, Vector);
#endif
}

TARGET TOGETHER float sum(Vector vector) {
  typedef float Four __attribute__((vector_size(4 * sizeof(float))));
  Four parts[LANES / 4];
  std::memcpy(parts, &vector, sizeof vector);
  for (int width = LANES / 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) parts[i] += parts[i + width];
  }
  return (parts[0][0] + parts[0][2]) + (parts[0][1] + parts[0][3]);
}
