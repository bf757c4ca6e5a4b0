// Threads that work on one plan together.
#pragma once
#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <sched.h>
#endif

namespace spx {

// Tells the processor that this thread waits.
inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// The processor that this thread runs on; -1 where nobody knows.
inline int processor() {
#if defined(__linux__)
  return sched_getcpu();
#else
  return -1;
#endif
}

// Moves this thread off a processor, if it may run elsewhere. A thread that has just been woken often starts on the
// processor of whoever woke it, which is busy; both would take turns there until the system notices.
inline void leave(int processor) {
#if defined(__linux__)
  cpu_set_t allowed;
  if (processor < 0 || sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  cpu_set_t others = allowed;
  if (processor >= CPU_SETSIZE || !CPU_ISSET(processor, &others) || CPU_COUNT(&others) < 2) return;
  CPU_CLR(processor, &others);
  if (sched_setaffinity(0, sizeof others, &others) == 0) sched_setaffinity(0, sizeof allowed, &allowed);
#else
  (void)processor;
#endif
}

// All threads meet here. It spins, because the next operation is microseconds away, and yields after a while, because
// there may be more threads than cores.
class Barrier {
 public:
  explicit Barrier(int count) : count_(count) {}

  void wait() {
    if (count_ == 1) return;
    const int generation = generation_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) == count_ - 1) {
      arrived_.store(0, std::memory_order_relaxed);
      generation_.store(generation + 1, std::memory_order_release);
      return;
    }
    for (int spins = 0; generation_.load(std::memory_order_acquire) == generation; spins++) {
      if (spins > 4000) std::this_thread::yield();
      else pause();
    }
  }

 private:
  const int count_;
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<int> generation_{0};
};

// A team runs one task at a time on all its threads; the caller is thread 0. Idle threads look out for the next task a
// little while, because to wake a thread takes as long as a few operations; then they sleep.
class Team {
 public:
  explicit Team(int size) : barrier(size), size_(size) {
    for (int i = 1; i < size; i++) threads_.emplace_back([this, i] { serve(i); });
  }

  ~Team() {
    {
      std::lock_guard<std::mutex> hold(mutex_);
      closing_ = true;
    }
    wake_.notify_all();
    for (auto& thread : threads_) thread.join();
  }

  void run(const std::function<void(int)>& task) {
    if (size_ > 1) {
      {
        std::lock_guard<std::mutex> hold(mutex_);
        task_ = &task;
        caller_ = processor();
        number_++;
      }
      wake_.notify_all();
    }
    task(0);
    barrier.wait();  // nobody may still use the task when it goes out of scope
  }

  int size() const { return size_; }

  Barrier barrier;

 private:
  void serve(int part) {
    constexpr int kLookouts = 5000;
    uint64_t seen = 0;
    for (;;) {
      for (int i = 0; i < kLookouts && number_.load(std::memory_order_relaxed) == seen; i++) pause();
      const std::function<void(int)>* task;
      int caller;
      {
        std::unique_lock<std::mutex> hold(mutex_);
        wake_.wait(hold, [&] { return closing_ || number_ != seen; });
        if (closing_) return;
        seen = number_;
        task = task_;
        caller = caller_;
      }
      if (processor() == caller) leave(caller);
      (*task)(part);
      barrier.wait();
    }
  }

  const int size_;
  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable wake_;
  const std::function<void(int)>* task_ = nullptr;
  int caller_ = -1;
  std::atomic<uint64_t> number_{0};
  bool closing_ = false;
};

}  // namespace spx
