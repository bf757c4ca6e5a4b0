// What Python calls. The instruction set is chosen as for the engine.
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

}  // namespace

#define SPR_EXPORT extern "C" __attribute__((visibility("default")))

SPR_EXPORT int32_t spr_abi() { return 2; }
SPR_EXPORT int64_t spr_record_size() { return sizeof(Call); }
SPR_EXPORT const char* spr_level() { return table().name; }
SPR_EXPORT void spr_forward(const Call* call, int64_t threads) { table().forward(*call, {threads}); }
SPR_EXPORT void spr_backward(const Call* call, int64_t threads) { table().backward(*call, {threads}); }
