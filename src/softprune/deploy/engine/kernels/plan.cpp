// The functions that Python calls: a plan is a list of records that a team of threads runs in order.
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "abi.h"
#include "team.h"

namespace {

constexpr int64_t kSizes[spx::kKinds] = {
    sizeof(spx::Sparse), sizeof(spx::Dense),  sizeof(spx::Maps),   sizeof(spx::Pool), sizeof(spx::Reduce),
    sizeof(spx::Matmul), sizeof(spx::Linear), sizeof(spx::Resize), sizeof(spx::Depthwise), sizeof(spx::Clear),
    sizeof(spx::Group),  sizeof(spx::Conv8),  sizeof(spx::Conv8),  sizeof(spx::Linear8), sizeof(spx::Move8),
    sizeof(spx::Pool8),  sizeof(spx::Split8),  sizeof(spx::Mean8)};

struct Step {
  spx::Kernel kernel;
  std::vector<char> record;
};

struct Plan {
  explicit Plan(spx::Team* workers) : team(workers) {}
  spx::Team* team;
  std::vector<Step> steps;
};

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void run_group(Plan& plan, const spx::Group& group, spx::Share share) {
  for (int64_t i = 0; i < group.count; i++) {
    const spx::Band& band = group.bands[i];
    share.first = band.first;
    share.last = band.last;
    spx::kernel_of(band.kind)(band.record, share);
    if (i + 1 < group.count) plan.team->barrier.wait();
  }
}

void run_steps(Plan& plan, float* const* slots, double* seconds) {
  const int parts = plan.team->size();
  const std::function<void(int)> task = [&](int part) {
    const spx::Share share{part, parts, slots, 0, -1};
    double before = seconds && part == 0 ? now() : 0;
    for (size_t i = 0; i < plan.steps.size(); i++) {
      const Step& step = plan.steps[i];
      if (step.kernel) step.kernel(step.record.data(), share);
      else run_group(plan, *reinterpret_cast<const spx::Group*>(step.record.data()), share);
      plan.team->barrier.wait();
      if (seconds && part == 0) {
        const double after = now();
        if (after - before < seconds[i]) seconds[i] = after - before;
        before = after;
      }
    }
  };
  plan.team->run(task);
}

}  // namespace

#define SPX_API extern "C" __attribute__((visibility("default")))

SPX_API int32_t spx_abi() { return 5; }

SPX_API const char* spx_level() { return spx::table().name; }

// The integer kernels: "vnni512", "vnni256" or "portable".
SPX_API const char* spx_level8() { return spx::table8().name; }

// Facts about the chosen instruction set, in the order of the fields of Table, then those of Table8.
SPX_API void spx_facts(int32_t* facts) {
  const spx::Table& t = spx::table();
  const int32_t values[] = {t.width, t.dense_channels, t.dense_vectors, t.expands, t.shifts, spx::table8().lanes};
  std::memcpy(facts, values, sizeof values);
}

SPX_API int64_t spx_record_size(int32_t kind) { return kind >= 0 && kind < spx::kKinds ? kSizes[kind] : -1; }

SPX_API void* spx_team_new(int32_t size) {
  if (size < 1 || size > spx::kMaxThreads) return nullptr;
  try {
    return new spx::Team(size);
  } catch (...) {
    return nullptr;
  }
}

SPX_API void spx_team_free(void* team) { delete static_cast<spx::Team*>(team); }

SPX_API void* spx_plan_new(void* team) { return new (std::nothrow) Plan(static_cast<spx::Team*>(team)); }

SPX_API void spx_plan_free(void* plan) { delete static_cast<Plan*>(plan); }

// Adds a step, or replaces step `place` when place >= 0. Returns its place, -1 if it was refused.
SPX_API int64_t spx_plan_set(void* handle, int64_t place, int32_t kind, const void* record, int64_t size) {
  Plan& plan = *static_cast<Plan*>(handle);
  if (kind < 0 || kind >= spx::kKinds || size != kSizes[kind] || place >= (int64_t)plan.steps.size()) return -1;
  try {
    const char* bytes = static_cast<const char*>(record);
    Step step{spx::kernel_of(kind), std::vector<char>(bytes, bytes + size)};
    if (place < 0) {
      plan.steps.push_back(std::move(step));
      return (int64_t)plan.steps.size() - 1;
    }
    plan.steps[place] = std::move(step);
    return place;
  } catch (...) {
    return -1;
  }
}

SPX_API void spx_plan_run(void* plan, float* const* slots) { run_steps(*static_cast<Plan*>(plan), slots, nullptr); }

// Runs the plan `repeats` times; seconds[i] becomes the smallest time of step i, if it was larger.
SPX_API void spx_plan_time(void* plan, float* const* slots, int64_t repeats, double* seconds) {
  for (int64_t i = 0; i < repeats; i++) run_steps(*static_cast<Plan*>(plan), slots, seconds);
}

// Zeroed memory on huge pages where there are any: planes are read at random, small pages would miss the TLB.
SPX_API void* spx_alloc(int64_t bytes) {
  constexpr size_t kHuge = 2 << 20;
  if (bytes < 0) return nullptr;
  const size_t alignment = (size_t)bytes >= kHuge ? kHuge : 64;
  const size_t size = ((size_t)bytes + 64 + alignment - 1) / alignment * alignment;
  void* memory = std::aligned_alloc(alignment, size);
  if (!memory) return nullptr;
#if defined(__linux__)
  if (alignment == kHuge) madvise(memory, size, MADV_HUGEPAGE);
#endif
  std::memset(memory, 0, size);
  return memory;
}

SPX_API void spx_free(void* memory) { std::free(memory); }

// Seconds for `repeats` passes of multiply-adds over a buffer of `bytes` bytes.
SPX_API double spx_rate(const float* data, int64_t bytes, int64_t repeats) {
  const double before = now();
  volatile double sink = spx::table().rate(data, bytes, repeats);
  (void)sink;
  return now() - before;
}
