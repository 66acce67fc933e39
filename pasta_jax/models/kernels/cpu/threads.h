// Threads for the parts of a job, shared by all products and all attention of a process.

#pragma once

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace {

constexpr auto SPIN = std::chrono::microseconds(100);  // longer than between two products of a layer; then it sleeps

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
  explicit Pool(int threads) : shares_(std::max(1, threads)) {
    for (int i = 1; i < threads; ++i) {
      try {
        helpers_.emplace_back([this, i] { help(i); });
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
    const int64_t workers = shares_.size();
    for (int64_t w = 0; w < workers; ++w) {
      shares_[w].next.store(parts * w / workers, std::memory_order_relaxed);
      shares_[w].end = parts * (w + 1) / workers;
    }
    Job job{[](const void* part, int64_t i) { (*static_cast<const Part*>(part))(i); }, &part};
    job_.store(&job);
    wake();
    work(job, 0);
    job_.store(nullptr);
    wait_for_helpers();
    busy_.clear(std::memory_order_release);
  }

 private:
  struct Job {
    void (*call)(const void*, int64_t);
    const void* part;
  };

  // The parts of a worker: one run, so that what it reads is one run of memory, and what is fetched ahead is its own.
  struct alignas(64) Share {
    std::atomic<int64_t> next{0};
    int64_t end = 0;
  };

  // All parts of the worker's own share; then what the others have left.
  void work(const Job& job, size_t worker) {
    for (size_t n = 0; n < shares_.size(); ++n) {
      Share& share = shares_[(worker + n) % shares_.size()];
      for (int64_t i; (i = share.next.fetch_add(1, std::memory_order_relaxed)) < share.end;) job.call(job.part, i);
    }
  }

  void wake() {
    epoch_.fetch_add(1);
    if (asleep_.load() == 0) return;
    { std::lock_guard<std::mutex> lock(mutex_); }  // who is about to sleep has looked at the epoch, or sleeps
    wakes_.notify_all();
  }

  void help(size_t worker) {
    for (uint64_t seen = 0; !stops_.load();) {
      wait_for_another(seen);
      seen = epoch_.load();
      inside_.fetch_add(1);
      if (const Job* job = job_.load()) work(*job, worker);
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
  std::atomic<const Job*> job_{nullptr};
  std::atomic<int> inside_{0}, asleep_{0};
  std::atomic<bool> stops_{false}, is_waited_for_{false};
  std::atomic_flag busy_ = ATOMIC_FLAG_INIT;
  std::mutex mutex_;
  std::condition_variable wakes_, leaves_;
  std::vector<Share> shares_;  // the caller's first
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

// A child process begins its own threads.
void forget_threads_in_children() {
  pthread_atfork(nullptr, nullptr, [] { shared_pool.store(nullptr); });
}

}  // namespace
