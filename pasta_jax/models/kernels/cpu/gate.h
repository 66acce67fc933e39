// What an MLP passes to its second product. Included by level.h once for each instruction set.

// The first and second numbers of pairs.
TARGET TOGETHER void take_apart(const float* pairs, Vector& first, Vector& second) {
#if LANES == 16
  const __m512 a = (__m512)load(pairs), b = (__m512)load(pairs + LANES);
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  first = (Vector)_mm512_permutex2var_ps(a, even, b);
  second = (Vector)_mm512_permutex2var_ps(a, _mm512_add_epi32(even, _mm512_set1_epi32(1)), b);
#elif LANES == 8
  const __m256 a = (__m256)load(pairs), b = (__m256)load(pairs + LANES);
  first = (Vector)_mm256_permute4x64_epi64((__m256i)_mm256_shuffle_ps(a, b, 0x88), 0xd8);
  second = (Vector)_mm256_permute4x64_epi64((__m256i)_mm256_shuffle_ps(a, b, 0xdd), 0xd8);
#else
  for (int k = 0; k < LANES; ++k) first[k] = pairs[2 * k], second[k] = pairs[2 * k + 1];
#endif
}

// gate * sigmoid(slope * gate + cubic * gate^3) * up, of pairs of a gate and an up.
TARGET TOGETHER Vector gated(const float* pairs, float slope, float cubic) {
  Vector gate = {}, up = {};
  take_apart(pairs, gate, up);
  const Vector square = gate * gate, minus = gate * ((square > 1e30f ? 1e30f + Vector{} : square) * -cubic - slope);
  return gate / (exponential(minus > 80.f ? 80.f + Vector{} : minus) + 1.f) * up;
}

TARGET void gate(const float* pairs, float* out, int64_t count, float slope, float cubic) {
  int64_t i = 0;
  for (; i + LANES <= count; i += LANES) {
    const Vector some = gated(pairs + 2 * i, slope, cubic);
    std::memcpy(out + i, &some, sizeof some);
  }
  float rest[2 * LANES] = {};
  std::memcpy(rest, pairs + 2 * i, 2 * (count - i) * sizeof(float));
  const Vector last = gated(rest, slope, cubic);
  std::memcpy(out + i, &last, (count - i) * sizeof(float));
}
