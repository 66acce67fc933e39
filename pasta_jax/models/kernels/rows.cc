// A few rows' products with large matrices, and their attention to a pool, for decoding on the CPU; called by XLA.
//
// A decoding step reads every weight of a model for each of its few rows. Here they are read once for all rows. A
// matrix is packed in panels of 32 outputs, [O/32][I][32]: a panel is one run of memory, and the sums of its 32 outputs
// stay in registers for up to 8 rows while it is read. Weights may be codes of 8 bits, decoded in registers. A sum adds
// its products in the order of the inputs, whatever the number of rows and of threads, so a row's result doesn't depend
// on its neighbours.
//
// Attention goes through the slots that a row sees, and no others: XLA's would compute all rows of all lanes with the
// slots of the fullest one.
//
// The file includes itself once for each instruction set; the machine's best is chosen when the library is loaded.

#ifndef TARGET

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = xla::ffi;

constexpr int64_t PANEL = 32;  // outputs
constexpr int64_t GROUP = 32;  // inputs
constexpr int64_t AHEAD = 6;   // slots whose keys or values are fetched before they are used
constexpr auto SPIN = std::chrono::microseconds(30);  // between two products of a layer; then a thread sleeps

inline void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

// A matrix, or a panel of it, by numbers, or by codes of 8 bits with a scale for each output and GROUP inputs.
struct Matrix {
  const float* weights;  // [I][PANEL]
  const int8_t* codes;   // [I][PANEL]
  const float* scales;   // [I / GROUP][PANEL]

  Matrix panel(int64_t number, int64_t inputs) const {
    const int64_t at = number * inputs * PANEL;
    return codes == nullptr ? Matrix{weights + at, codes, scales} : Matrix{weights, codes + at, scales + at / GROUP};
  }
  Matrix from(int64_t output) const {
    return codes == nullptr ? Matrix{weights + output, codes, scales} : Matrix{weights, codes + output, scales + output};
  }
};

// Query heads of one row that share a key/value head, and what they attend to.
struct Heads {
  const float *q, *k, *v;  // [G, D], [S, D], [S, D]
  float* out;              // [G, D]
  const int32_t* slots;    // the visible ones
  float* weights;          // room for as many per query head
  int64_t visible, groups, dims;
  float scale, cap;  // cap 0: none
};

// Threads that share the parts of one job at a time with the thread that brings it.
class Pool {
 public:
  explicit Pool(int threads) {
    for (int i = 1; i < threads; ++i) {
      try {
        helpers_.emplace_back([this] { help(); });
      } catch (const std::system_error&) {
        return;  // the system has no more threads; those there are compute everything
      }
    }
  }

  ~Pool() {
    stops_.store(true);
    wake();
    for (auto& helper : helpers_) helper.join();
  }

  // part(i) for all i < parts. While the pool works for another thread, the caller computes alone.
  template <class Part>
  void run(int64_t parts, const Part& part) {
    if (helpers_.empty() || parts < 2 || busy_.test_and_set(std::memory_order_acquire)) {
      for (int64_t i = 0; i < parts; ++i) part(i);
      return;
    }
    Job job{[](const void* part, int64_t i) { (*static_cast<const Part*>(part))(i); }, &part, parts};
    job_.store(&job);
    wake();
    job.work();
    job_.store(nullptr);
    wait_for_helpers();
    busy_.clear(std::memory_order_release);
  }

 private:
  struct Job {
    void (*call)(const void*, int64_t);
    const void* part;
    int64_t parts;
    std::atomic<int64_t> next{0};

    void work() {
      for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < parts;) call(part, i);
    }
  };

  void wake() {
    epoch_.fetch_add(1);
    if (asleep_.load() == 0) return;
    { std::lock_guard<std::mutex> lock(mutex_); }  // who is about to sleep has looked at the epoch, or sleeps
    wakes_.notify_all();
  }

  void help() {
    for (uint64_t seen = 0; !stops_.load();) {
      wait_for_another(seen);
      seen = epoch_.load();
      inside_.fetch_add(1);
      if (Job* job = job_.load()) job->work();
      if (inside_.fetch_sub(1) != 1 || !is_waited_for_.load()) continue;
      { std::lock_guard<std::mutex> lock(mutex_); }
      leaves_.notify_one();
    }
  }

  // A helper that comes late finds no job; one that has found it is waited for. On a busy machine it may have lost its
  // core for long, so waiting must not take the other.
  void wait_for_helpers() {
    for (int turn = 0; turn < 1024; ++turn) {
      if (inside_.load() == 0) return;
      pause_briefly();
    }
    std::unique_lock<std::mutex> lock(mutex_);
    is_waited_for_.store(true);
    leaves_.wait(lock, [&] { return inside_.load() == 0; });
    is_waited_for_.store(false);
  }

  void wait_for_another(uint64_t seen) {
    const auto until = std::chrono::steady_clock::now() + SPIN;
    for (int turn = 1; epoch_.load() == seen; ++turn) {
      pause_briefly();
      if (turn % 32 == 0 && std::chrono::steady_clock::now() > until) {
        std::unique_lock<std::mutex> lock(mutex_);
        asleep_.fetch_add(1);
        wakes_.wait(lock, [&] { return epoch_.load() != seen; });
        asleep_.fetch_sub(1);
        return;
      }
    }
  }

  std::atomic<uint64_t> epoch_{0};
  std::atomic<Job*> job_{nullptr};
  std::atomic<int> inside_{0}, asleep_{0};
  std::atomic<bool> stops_{false}, is_waited_for_{false};
  std::atomic_flag busy_ = ATOMIC_FLAG_INIT;
  std::mutex mutex_;
  std::condition_variable wakes_, leaves_;
  std::vector<std::thread> helpers_;
};

// The pool begins with the first product and lasts as long as the process: nothing waits for its threads at the exit.
// A child process has none of its parent's threads, and begins its own.
std::atomic<Pool*> shared_pool{nullptr};
std::atomic<int> shared_threads{1};

Pool& pool() {
  Pool* now = shared_pool.load();
  if (now == nullptr) {
    Pool* fresh = new Pool(shared_threads.load());
    if (shared_pool.compare_exchange_strong(now, fresh)) return *fresh;
    delete fresh;
  }
  return *now;
}

}  // namespace

#define TOGETHER inline __attribute__((always_inline))

#define TARGET
#define LEVEL portable  // SSE2 or NEON: what every machine of the architecture has
#define LANES 4
#define SUMS 12
#include "rows.cc"
#undef TARGET
#undef LEVEL
#undef LANES
#undef SUMS

#if defined(__x86_64__)
#define TARGET __attribute__((target("avx2,fma")))
#define LEVEL avx2
#define LANES 8
#define SUMS 12
#include "rows.cc"
#undef TARGET
#undef LEVEL
#undef LANES
#undef SUMS

#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")))
#define LEVEL avx512
#define LANES 16
#define SUMS 16
#include "rows.cc"
#undef TARGET
#undef LEVEL
#undef LANES
#undef SUMS
#endif

namespace {

using Panels = void (*)(const Matrix& w, const float* x, float* y, int64_t rows, int64_t inputs, int64_t outputs,
                        int64_t first, int64_t last);
using Attend = void (*)(const Heads& heads);
struct Level {
  const char* name;
  bool is_there;
  Panels numbers, codes;
  Attend attend;
};

// Best last.
Level* levels() {
  static Level all[] = {
      {"portable", true, portable::panels<false>, portable::panels<true>, portable::attend},
#if defined(__x86_64__)
      {"avx2", __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"), avx2::panels<false>,
       avx2::panels<true>, avx2::attend},
      {"avx512",
       __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl"),
       avx512::panels<false>, avx512::panels<true>, avx512::attend},
#endif
      {nullptr, false, nullptr, nullptr, nullptr},
  };
  return all;
}

std::atomic<const Level*> chosen{nullptr};

void multiply(const float* x, const Matrix& w, float* y, int64_t rows, int64_t inputs, int64_t outputs) {
  const Level* level = chosen.load();
  const Panels panels = w.codes == nullptr ? level->numbers : level->codes;
  const int64_t count = (outputs + PANEL - 1) / PANEL;
  // Small parts: a thread that is late, or not there, leaves its share to the others.
  const int64_t share = std::max<int64_t>(1, count / 32);
  pool().run((count + share - 1) / share, [=](int64_t part) {
    panels(w, x, y, rows, inputs, outputs, part * share, std::min(count, (part + 1) * share));
  });
}

using Dimensions = ffi::Span<const int64_t>;

ffi::Error unfit() {
  return ffi::Error::InvalidArgument("pasta_jax: rows, panels and result don't fit; pack the matrix as calls.py does");
}

bool fit(Dimensions x, Dimensions w, Dimensions y) {
  return x[0] == y[0] && x[1] == w[1] && w[0] == (y[1] + PANEL - 1) / PANEL && w[2] == PANEL;
}

ffi::Error product(ffi::BufferR2<ffi::F32> x, ffi::BufferR3<ffi::F32> w, ffi::ResultBufferR2<ffi::F32> y) {
  const auto xs = x.dimensions(), ys = y->dimensions();
  if (!fit(xs, w.dimensions(), ys)) return unfit();
  multiply(x.typed_data(), {w.typed_data(), nullptr, nullptr}, y->typed_data(), xs[0], xs[1], ys[1]);
  return ffi::Error::Success();
}

ffi::Error coded_product(ffi::BufferR2<ffi::F32> x, ffi::BufferR3<ffi::S8> codes, ffi::BufferR3<ffi::F32> scales,
                         ffi::ResultBufferR2<ffi::F32> y) {
  const auto xs = x.dimensions(), cs = codes.dimensions(), ss = scales.dimensions(), ys = y->dimensions();
  if (!fit(xs, cs, ys) || ss[0] != cs[0] || ss[1] * GROUP != cs[1] || ss[2] != PANEL) return unfit();
  multiply(x.typed_data(), {nullptr, codes.typed_data(), scales.typed_data()}, y->typed_data(), xs[0], xs[1], ys[1]);
  return ffi::Error::Success();
}

using Queries = ffi::Buffer<ffi::F32, 5>;

// q and out [B, T, K, G, D], k and v [B, K, S, D], see [B, T, S]. The result of a row that sees nothing is zero.
struct Attention {
  const float *q, *k, *v;
  const bool* see;
  float* out;
  int64_t lanes, rows, heads, groups, slots, dims;
  float scale, cap;
};

void attend(const Attention& a) {
  const Attend one = chosen.load()->attend;
  pool().run(a.lanes * a.rows * a.heads, [&](int64_t part) {
    const int64_t row = part / a.heads, lane = row / a.rows, head = part % a.heads;
    const int64_t pool_at = (lane * a.heads + head) * a.slots * a.dims, row_at = part * a.groups * a.dims;
    thread_local std::vector<int32_t> slots;
    thread_local std::vector<float> weights;
    slots.resize(a.slots);
    const bool* see = a.see + row * a.slots;
    const void* first = std::memchr(see, true, a.slots);  // most rows of many lanes see nothing
    int64_t visible = 0;
    for (int64_t s = first == nullptr ? a.slots : static_cast<const bool*>(first) - see; s < a.slots; ++s) {
      slots[visible] = s;
      visible += see[s];
    }
    weights.resize(visible * a.groups);
    one({a.q + row_at, a.k + pool_at, a.v + pool_at, a.out + row_at, slots.data(), weights.data(), visible, a.groups,
         a.dims, a.scale, a.cap});
  });
}

ffi::Error attention(float scale, float cap, Queries q, ffi::BufferR4<ffi::F32> k,
                     ffi::BufferR4<ffi::F32> v, ffi::BufferR3<ffi::PRED> see, ffi::Result<Queries> out) {
  const auto qs = q.dimensions(), ks = k.dimensions(), vs = v.dimensions(), ss = see.dimensions();
  const bool fits = qs[0] == ks[0] && qs[0] == ss[0] && qs[1] == ss[1] && qs[2] == ks[1] && ks[2] == ss[2] &&
                    qs[4] == ks[3] && std::equal(ks.begin(), ks.end(), vs.begin());
  if (!fits || q.element_count() != out->element_count()) {
    return ffi::Error::InvalidArgument("pasta_jax: queries, keys, values and mask don't fit each other");
  }
  attend({q.typed_data(), k.typed_data(), v.typed_data(), see.typed_data(), out->typed_data(), qs[0], qs[1], qs[2],
          qs[3], ks[2], qs[4], scale, cap});
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(pasta_attention, attention,
                              ffi::Ffi::Bind()
                                  .Attr<float>("scale")
                                  .Attr<float>("cap")
                                  .Arg<Queries>()
                                  .Arg<ffi::BufferR4<ffi::F32>>()
                                  .Arg<ffi::BufferR4<ffi::F32>>()
                                  .Arg<ffi::BufferR3<ffi::PRED>>()
                                  .Ret<Queries>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(pasta_product, product,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::BufferR2<ffi::F32>>()
                                  .Arg<ffi::BufferR3<ffi::F32>>()
                                  .Ret<ffi::BufferR2<ffi::F32>>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(pasta_coded_product, coded_product,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::BufferR2<ffi::F32>>()
                                  .Arg<ffi::BufferR3<ffi::S8>>()
                                  .Arg<ffi::BufferR3<ffi::F32>>()
                                  .Ret<ffi::BufferR2<ffi::F32>>());

extern "C" {

// Use so many threads from now on. Not while a product runs.
void pasta_threads(int threads) {
  shared_threads.store(threads);
  delete shared_pool.exchange(nullptr);
}

// Use an instruction set by its name, or the best one with an empty name; whether the machine has it.
int pasta_level(const char* name) {
  bool is_found = false;
  for (Level* level = levels(); level->name != nullptr; ++level) {
    if (!level->is_there || (*name != 0 && std::strcmp(name, level->name) != 0)) continue;
    chosen.store(level);
    is_found = true;
  }
  return is_found;
}

// Both without XLA, for tests. `sizes`: lanes, rows, heads, groups, slots and dims.
void pasta_attend(const float* q, const float* k, const float* v, const bool* see, float* out, const int64_t* sizes,
                  float scale, float cap) {
  attend({q, k, v, see, out, sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5], scale, cap});
}

void pasta_multiply(const float* x, const float* w, const int8_t* codes, const float* scales, float* y, int64_t rows,
                    int64_t inputs, int64_t outputs) {
  multiply(x, {w, codes, scales}, y, rows, inputs, outputs);
}

}  // extern "C"

namespace {
const bool is_ready = [] {
  pasta_level("");
  pthread_atfork(nullptr, nullptr, [] { shared_pool.store(nullptr); });
  return true;
}();
}  // namespace

#else  // Once for each instruction set.

namespace {
namespace LEVEL {

typedef float Vector __attribute__((vector_size(LANES * sizeof(float))));
typedef int32_t Integers __attribute__((vector_size(LANES * sizeof(int32_t))));

TARGET TOGETHER Vector decode(const int8_t* from) {
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

TARGET TOGETHER Vector load(const float* from) {
  Vector vector;
  std::memcpy(&vector, from, sizeof vector);
  return vector;
}

// R rows with V vectors of a panel.
template <bool CODED, int R, int V>
TARGET TOGETHER void tile(const Matrix& w, const float* x, float* y, int64_t inputs, int64_t stride) {
  Vector sums[R][V] = {};
  for (int64_t from = 0; from < inputs; from += CODED ? GROUP : 1) {
    Vector scales[V];
    for (int v = 0; v < V && CODED; ++v) scales[v] = load(w.scales + from / GROUP * PANEL + v * LANES);
    for (int64_t i = from; i < from + (CODED ? GROUP : 1); ++i) {
      Vector weights[V];
      for (int v = 0; v < V; ++v) {
        if (CODED) {
          weights[v] = decode(w.codes + i * PANEL + v * LANES) * scales[v];
        } else {
          weights[v] = load(w.weights + i * PANEL + v * LANES);
        }
      }
      for (int v = 0; v < V * LANES && !CODED; v += 16) __builtin_prefetch(w.weights + (i + 8) * PANEL + v);
      if (CODED) __builtin_prefetch(w.codes + (i + 32) * PANEL);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const float one = x[r * inputs + i];
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) sums[r][v] += weights[v] * one;
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) std::memcpy(y + r * stride + v * LANES, &sums[r][v], sizeof(Vector));
  }
}

// R rows with one panel: with all of its vectors if their sums fit the registers, else with some after others.
template <bool CODED, int R>
TARGET void whole(const Matrix& w, const float* x, float* y, int64_t inputs, int64_t stride) {
  constexpr int64_t ALL = PANEL / LANES;
  constexpr int64_t V = R * ALL <= SUMS ? ALL : R * ALL <= 2 * SUMS ? ALL / 2 : R * ALL <= 4 * SUMS ? ALL / 4 : 1;
  for (int64_t v = 0; v < ALL; v += V) {
    tile<CODED, R, V>(w.from(v * LANES), x, y + v * LANES, inputs, stride);
  }
}

// Any rows with one panel, in groups whose sums fit the registers. A panel stays in the cache from group to group.
template <bool CODED>
TARGET void panel(const Matrix& w, const float* x, float* y, int64_t rows, int64_t inputs, int64_t stride) {
  constexpr int64_t MOST = LANES == 16 ? 8 : 6;
  for (; rows >= MOST; rows -= MOST, x += MOST * inputs, y += MOST * stride) {
    whole<CODED, MOST>(w, x, y, inputs, stride);
  }
  switch (rows) {
    case 7: return whole<CODED, 7>(w, x, y, inputs, stride);
    case 6: return whole<CODED, 6>(w, x, y, inputs, stride);
    case 5: return whole<CODED, 5>(w, x, y, inputs, stride);
    case 4: return whole<CODED, 4>(w, x, y, inputs, stride);
    case 3: return whole<CODED, 3>(w, x, y, inputs, stride);
    case 2: return whole<CODED, 2>(w, x, y, inputs, stride);
    case 1: return whole<CODED, 1>(w, x, y, inputs, stride);
    default: return;
  }
}

template <bool CODED>
TARGET void panels(const Matrix& w, const float* x, float* y, int64_t rows, int64_t inputs, int64_t outputs,
                   int64_t first, int64_t last) {
  for (int64_t p = first; p < last; ++p) {
    const Matrix here = w.panel(p, inputs);
    const int64_t width = std::min(PANEL, outputs - p * PANEL);
    if (width == PANEL) {
      panel<CODED>(here, x, y + p * PANEL, rows, inputs, outputs);
      continue;
    }
    for (int64_t r = 0; r < rows; ++r) {  // the last panel is padded
      float all[PANEL];
      panel<CODED>(here, x + r * inputs, all, 1, inputs, PANEL);
      std::memcpy(y + r * outputs + p * PANEL, all, width * sizeof(float));
    }
  }
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

}  // namespace LEVEL
}  // namespace

#endif
