// Products of a few rows with large matrices, for decoding on the CPU: y[R, O] = x[R, I] · W[I, O], called by XLA.
//
// A decoding step reads every weight of a model for each of its few rows. Here they are read once for all rows. A
// matrix is packed in panels of 32 outputs, [O/32][I][32]: a panel is one run of memory, and the sums of its 32 outputs
// stay in registers for up to 8 rows while it is read. A sum adds its products in the order of the inputs, whatever
// the number of rows and of threads, so a row's result doesn't depend on its neighbours.
//
// The file includes itself once for each instruction set; the machine's best is chosen when the library is loaded.

#ifndef TARGET

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
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
constexpr auto SPIN = std::chrono::microseconds(30);  // between two products of a layer; then a thread sleeps

inline void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

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
    // A helper that comes late finds no job; one that has found it is waited for.
    for (int turn = 0; inside_.load() != 0; ++turn) turn < 4096 ? pause_briefly() : void(sched_yield());
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
      inside_.fetch_sub(1);
    }
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
  std::atomic<bool> stops_{false};
  std::atomic_flag busy_ = ATOMIC_FLAG_INIT;
  std::mutex mutex_;
  std::condition_variable wakes_;
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
#include __FILE__
#undef TARGET
#undef LEVEL
#undef LANES
#undef SUMS

#if defined(__x86_64__)
#define TARGET __attribute__((target("avx2,fma")))
#define LEVEL avx2
#define LANES 8
#define SUMS 12
#include __FILE__
#undef TARGET
#undef LEVEL
#undef LANES
#undef SUMS

#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")))
#define LEVEL avx512
#define LANES 16
#define SUMS 16
#include __FILE__
#undef TARGET
#undef LEVEL
#undef LANES
#undef SUMS
#endif

namespace {

using Panels = void (*)(const float* w, const float* x, float* y, int64_t rows, int64_t inputs, int64_t outputs,
                        int64_t from, int64_t to);
struct Level {
  const char* name;
  bool is_there;
  Panels panels;
};

// Best last.
Level* levels() {
  static Level all[] = {
      {"portable", true, portable::panels},
#if defined(__x86_64__)
      {"avx2", __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"), avx2::panels},
      {"avx512",
       __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl"),
       avx512::panels},
#endif
      {nullptr, false, nullptr},
  };
  return all;
}

std::atomic<Panels> chosen{nullptr};

void multiply(const float* x, const float* w, float* y, int64_t rows, int64_t inputs, int64_t outputs) {
  const Panels panels = chosen.load();
  const int64_t count = (outputs + PANEL - 1) / PANEL;
  // Small parts: a thread that is late, or not there, leaves its share to the others.
  const int64_t share = std::max<int64_t>(1, count / 32);
  pool().run((count + share - 1) / share, [=](int64_t part) {
    panels(w, x, y, rows, inputs, outputs, part * share, std::min(count, (part + 1) * share));
  });
}

ffi::Error product(ffi::BufferR2<ffi::F32> x, ffi::BufferR3<ffi::F32> w, ffi::ResultBufferR2<ffi::F32> y) {
  const auto xs = x.dimensions(), ws = w.dimensions(), ys = y->dimensions();
  if (xs[0] != ys[0] || xs[1] != ws[1] || ws[0] != (ys[1] + PANEL - 1) / PANEL || ws[2] != PANEL) {
    return ffi::Error::InvalidArgument("pasta_jax: rows, panels and result don't fit; pack the matrix with by_panels");
  }
  multiply(x.typed_data(), w.typed_data(), y->typed_data(), xs[0], xs[1], ys[1]);
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(pasta_product, product,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::BufferR2<ffi::F32>>()
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
    chosen.store(level->panels);
    is_found = true;
  }
  return is_found;
}

// The product without XLA, for tests.
void pasta_multiply(const float* x, const float* w, float* y, int64_t rows, int64_t inputs, int64_t outputs) {
  multiply(x, w, y, rows, inputs, outputs);
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

TARGET TOGETHER Vector load(const float* from) {
  Vector vector;
  std::memcpy(&vector, from, sizeof vector);
  return vector;
}

// R rows with V vectors of a panel.
template <int R, int V>
TARGET TOGETHER void tile(const float* w, const float* x, float* y, int64_t inputs, int64_t stride) {
  Vector sums[R][V] = {};
  for (int64_t i = 0; i < inputs; ++i, w += PANEL) {
    Vector weights[V];
    for (int v = 0; v < V; ++v) weights[v] = load(w + v * LANES);
    for (int v = 0; v < V * LANES; v += 16) __builtin_prefetch(w + v + 8 * PANEL);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const float one = x[r * inputs + i];
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) sums[r][v] += weights[v] * one;
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) std::memcpy(y + r * stride + v * LANES, &sums[r][v], sizeof(Vector));
  }
}

// R rows with one panel: with all of its vectors if their sums fit the registers, else with some after others.
template <int R>
TARGET void whole(const float* w, const float* x, float* y, int64_t inputs, int64_t stride) {
  constexpr int64_t ALL = PANEL / LANES;
  constexpr int64_t V = R * ALL <= SUMS ? ALL : R * ALL <= 2 * SUMS ? ALL / 2 : R * ALL <= 4 * SUMS ? ALL / 4 : 1;
  for (int64_t v = 0; v < ALL; v += V) tile<R, V>(w + v * LANES, x, y + v * LANES, inputs, stride);
}

// Any rows with one panel, in groups whose sums fit the registers. A panel stays in the cache from group to group.
TARGET void panel(const float* w, const float* x, float* y, int64_t rows, int64_t inputs, int64_t stride) {
  constexpr int64_t MOST = LANES == 16 ? 8 : 6;
  for (; rows >= MOST; rows -= MOST, x += MOST * inputs, y += MOST * stride) whole<MOST>(w, x, y, inputs, stride);
  switch (rows) {
    case 7: return whole<7>(w, x, y, inputs, stride);
    case 6: return whole<6>(w, x, y, inputs, stride);
    case 5: return whole<5>(w, x, y, inputs, stride);
    case 4: return whole<4>(w, x, y, inputs, stride);
    case 3: return whole<3>(w, x, y, inputs, stride);
    case 2: return whole<2>(w, x, y, inputs, stride);
    case 1: return whole<1>(w, x, y, inputs, stride);
    default: return;
  }
}

TARGET void panels(const float* w, const float* x, float* y, int64_t rows, int64_t inputs, int64_t outputs,
                   int64_t from, int64_t to) {
  for (int64_t p = from; p < to; ++p) {
    const float* weights = w + p * PANEL * inputs;
    const int64_t width = std::min(PANEL, outputs - p * PANEL);
    if (width == PANEL) {
      panel(weights, x, y + p * PANEL, rows, inputs, outputs);
      continue;
    }
    for (int64_t r = 0; r < rows; ++r) {  // the last panel is padded
      float all[PANEL];
      panel(weights, x + r * inputs, all, 1, inputs, PANEL);
      std::memcpy(y + r * outputs + p * PANEL, all, width * sizeof(float));
    }
  }
}

}  // namespace LEVEL
}  // namespace

#endif
