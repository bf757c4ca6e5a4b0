// What Python calls. The instruction set is chosen as for the engine.
#include <functional>
#include <thread>
#include <vector>
#include "abi.h"
#include "instructions.h"

namespace {

using spr::Call;

const spr::Table& best() {
#if defined(__x86_64__)
  switch (spx::best_instructions()) {
    case spx::Instructions::avx512: return spr::kAvx512;
    case spx::Instructions::avx2: return spr::kAvx2;
    case spx::Instructions::portable: break;
  }
#endif
  return spr::kPortable;
}

const spr::Table& table() {
  static const spr::Table& chosen = best();
  return chosen;
}

// Threads live for one call: a process may fork between two of them. Each takes a run of neighbouring groups.
void share(spr::Run run, const Call& call, int64_t threads) {
  const int64_t groups = (call.samples + spr::kGroup - 1) / spr::kGroup;
  if (threads > groups) threads = groups;
  std::vector<std::thread> others;
  int64_t begun = 1;
  try {
    for (; begun < threads; begun++)
      others.emplace_back(run, std::cref(call), groups * begun / threads, groups * (begun + 1) / threads);
  } catch (...) {  // no more threads to be had: the rest is done here
  }
  run(call, 0, threads > 1 ? groups / threads : groups);
  if (threads > 1 && begun < threads) run(call, groups * begun / threads, groups);
  for (auto& other : others) other.join();
}

}  // namespace

#define SPR_EXPORT extern "C" __attribute__((visibility("default")))

SPR_EXPORT int32_t spr_abi() { return 1; }
SPR_EXPORT int64_t spr_record_size() { return sizeof(Call); }
SPR_EXPORT const char* spr_level() { return table().name; }
SPR_EXPORT void spr_forward(const Call* call, int64_t threads) { share(table().forward, *call, threads); }
SPR_EXPORT void spr_backward(const Call* call, int64_t threads) { share(table().backward, *call, threads); }
