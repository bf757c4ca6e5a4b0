// Threads. Those of torch are taken where they can be had: they spin for a while after each of torch's own operations,
// and other threads would have to wait for the cores that they keep busy.
#include <atomic>
#include <dlfcn.h>
#include <thread>
#include <vector>
#include "abi.h"

namespace {

struct Job {
  int64_t count;
  void (*work)(void*, int64_t);
  void* context;
  std::atomic<int64_t> next{0};

  void help() {
    for (int64_t i = next++; i < count; i = next++) work(context, i);
  }
};

void help(void* job) { static_cast<Job*>(job)->help(); }

// OpenMP as torch has loaded it, by the name that GCC's and LLVM's libraries share; null if there is none.
using Parallel = void (*)(void (*)(void*), void*, unsigned threads, unsigned flags);
Parallel openmp() {
  static const auto found = reinterpret_cast<Parallel>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
  return found;
}

// Threads that live for one call.
void run_alone(Job& job, int64_t threads) {
  std::vector<std::thread> others;
  try {
    for (int64_t i = 1; i < threads; i++) others.emplace_back(help, &job);
  } catch (...) {  // no more threads to be had: those that are there do it all
  }
  job.help();
  for (auto& other : others) other.join();
}

}  // namespace

void spr::Team::run(int64_t count, void (*work)(void*, int64_t), void* context) const {
  Job job{count, work, context};
  const int64_t wanted = threads < count ? threads : count;
  if (wanted <= 1) job.help();
  else if (Parallel parallel = openmp()) parallel(help, &job, static_cast<unsigned>(wanted), 0);
  else run_alone(job, wanted);
}
