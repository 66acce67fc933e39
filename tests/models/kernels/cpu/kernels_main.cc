// Products by rows.cc on buffers of exactly their size, from two threads and over a fork: to run under sanitizers.

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <thread>
#include <vector>

#include "rows.cc"

int products(unsigned seed) {
  int wrong = 0;
  auto next = [&](int most) { return static_cast<int>((seed = seed * 1103515245 + 12345) >> 16) % most; };
  for (int round = 0; round < 20; ++round) {
    const int rows = 1 + next(17), inputs = 1 + next(70), outputs = 1 + next(200), panels = (outputs + 31) / 32;
    std::vector<float> x(rows * inputs), w(panels * inputs * 32), y(rows * outputs);
    for (float& value : x) value = next(200) / 100.f - 1;
    for (float& value : w) value = next(200) / 100.f - 1;
    auto multiply = [&](int kind, const void* panels) {
      const int64_t plain[] = {rows, inputs, outputs, kind, inputs, inputs, 0, 32, 32};
      pasta_multiply(x.data(), panels, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, y.data(), plain);
    };
    multiply(0, w.data());
    for (int r = 0; r < rows; ++r) {
      for (int o = 0; o < outputs; ++o) {
        float sum = 0;
        for (int i = 0; i < inputs; ++i) sum += x[r * inputs + i] * w[(o / 32 * inputs + i) * 32 + o % 32];
        wrong += std::abs(sum - y[r * outputs + o]) > 1e-4f;
      }
    }
    const std::vector<uint16_t> halves(panels * inputs * 32, 0x4040);  // 3
    std::fill(x.begin(), x.end(), 1.f);
    multiply(1, halves.data());
    for (float value : y) wrong += value != 3.f * inputs;
    const int groups = 1 + next(3), group = 16 * (1 + next(5)), rank = next(4), coded = groups * group;
    const std::vector<float> scales(panels * groups * 32, 0.5f), minimums(panels * groups * 32, -1.f);
    const std::vector<float> ones(rows * coded, 1.f), a(rank * coded, 2.f), b(panels * rank * 32, 0.25f);
    const std::vector<int8_t> small(panels * groups * 32, 2), low(panels * groups * 32, 4);
    const std::vector<uint16_t> half(panels * groups * 32, 0x3800), less(panels * groups * 32, 0xbc00);  // 0.5 and -1
    const int blocks = next(2) ? 1 : groups;
    const std::vector<uint16_t> factors(panels * blocks * 32, 0x3400), floors(panels * blocks * 32, 0xb400);  // 0.25
    for (int kind : {2, 3, 4}) {  // all codes are 3
      std::vector<uint32_t> codes(panels * coded / 16 * kind * 32, kind == 4 ? 0x83838383 : 0x33333333);
      for (size_t at = 0; kind == 3 && at < codes.size(); ++at) {
        if (at / 32 % 3 == 2) codes[at] = 0xaaaaaaaa;
      }
      for (int bits : {8, 16, 32}) {
        auto of_codes = [&](int width, const void* scales, const void* minimums, const uint16_t* factors,
                            const uint16_t* floors) {
          const int64_t sizes[] = {rows, coded, outputs, kind, group, coded / blocks, rank, width, bits};
          pasta_multiply(ones.data(), codes.data(), scales, minimums, factors, floors, a.data(), b.data(), y.data(), sizes);
          for (float value : y) wrong += std::abs(value - 0.5f * coded * (1 + rank)) > 1e-2f;
        };
        of_codes(32, scales.data(), minimums.data(), nullptr, nullptr);
        of_codes(16, half.data(), less.data(), nullptr, nullptr);
        of_codes(8, small.data(), low.data(), factors.data(), floors.data());
      }
    }
    std::vector<float> total(rows), three(rows * inputs, 3.f);
    add_up(three.data(), total.data(), rows, inputs);
    for (float value : total) wrong += value != 3.f * inputs;
    std::vector<float> cosine(rows), sine(rows);
    cosines(total.data(), cosine.data(), sine.data(), rows);
    for (int r = 0; r < rows; ++r) wrong += std::abs(cosine[r] * cosine[r] + sine[r] * sine[r] - 1) > 1e-5f;
    std::vector<float> logits(rows * outputs), temperatures(rows, round % 2);
    for (float& value : logits) value = next(400) / 100.f - 2;
    for (int r = 0; r < rows; ++r) logits[r * outputs + r % outputs] = 60;  // more than all noise
    const std::vector<uint32_t> keys(rows * 2, round);
    std::vector<int32_t> ids(outputs), places(rows);
    for (int o = 0; o < outputs; ++o) ids[o] = 3 * o;
    const std::vector<int32_t> most(rows, next(3) * next(outputs + 5));
    const std::vector<float> mass(rows, 1 - next(3) * 0.4f), least(rows, next(2) * 0.5f);
    draw({logits.data(), temperatures.data(), most.data(), mass.data(), least.data(), keys.data(),
          round % 3 ? ids.data() : nullptr, places.data(), rows, outputs});
    for (int r = 0; r < rows; ++r) wrong += places[r] != r % outputs;
    const int64_t rows_seen = 1 + next(9), heads = 1 + next(3), shared = 1 + next(5), room = 1 + next(60), dims = 1 + next(70);
    const int64_t in_pool = 1 + next(3), sizes[] = {rows_seen, heads, shared, room, dims, in_pool};
    const int64_t queries = rows_seen * heads * shared * dims, slots = in_pool * heads * room * dims;
    std::vector<float> q(queries, 0.5f), k(slots, 0.25f), v(slots, 2.f), out(queries);
    std::vector<char> see(rows_seen * room, 1);
    std::vector<int32_t> threads(in_pool * room), order(threads.size());
    for (int32_t& thread : threads) thread = next(2 * room) - room / 2;  // also none that there are
    by_thread(threads.data(), order.data(), in_pool, room);
    std::vector<int32_t> lanes(rows_seen);
    for (int32_t& lane : lanes) lane = next(in_pool + 2) - 1;  // also beyond the pool, which is one of it
    pasta_attend(q.data(), k.data(), v.data(), lanes.data(), reinterpret_cast<const bool*>(see.data()), order.data(),
                 out.data(), sizes, 1, 0);
    for (float value : out) wrong += std::abs(value - 2) > 1e-5f;
    const int64_t many = 1 + next(9);
    const std::vector<float> news(many * heads * dims, 7.f);
    std::vector<int32_t> to_lanes(many), to_slots(many);
    for (int32_t& lane : to_lanes) lane = next(in_pool + 2) - 1;  // also beyond the pool
    for (int32_t& slot : to_slots) slot = next(room + 2) - 1;
    write({news.data(), news.data(), to_lanes.data(), to_slots.data(), k.data(), v.data(), many, heads, dims, in_pool,
           room});
    for (int64_t row = 0; row < many; ++row) {
      const int64_t lane = to_lanes[row], slot = to_slots[row];
      if (lane < 0 || lane >= in_pool || slot < 0 || slot >= room) continue;
      const int64_t last = (((lane + 1) * heads - 1) * room + slot) * dims + dims - 1;
      wrong += k[last] != 7 || v[last] != 7;
    }
  }
  return wrong;
}

int main() {
  int wrong = 0, other = 0;
  unsigned seed = 0;
  for (const char* level : {"portable", "avx2", "avxvnni", "avx512", "vnni"}) {
    pasta_level(level);
    for (int threads : {1, 2, 8}) {
      pasta_threads(threads);
      std::thread beside([&, theirs = ++seed] { other += products(theirs); });
      wrong += products(++seed);
      beside.join();
    }
  }
  const pid_t child = fork();
  if (child == 0) _exit(products(++seed) != 0);
  int status = 1;
  waitpid(child, &status, 0);
  std::printf("%d %d %d\n", wrong, other, status);
  return wrong + other + status != 0;
}
