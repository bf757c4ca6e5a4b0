// Which instruction set to use: the best one that this processor has, or the one that SOFTPRUNE_KERNELS_LEVEL names.
#include <cstdlib>
#include <cstring>
#include "abi.h"

namespace spx {

namespace {

const Table& best() {
  const char* wish = std::getenv("SOFTPRUNE_KERNELS_LEVEL");
  const auto wanted = [&](const char* name) { return !wish || !*wish || !std::strcmp(wish, name); };
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  if (avx512 && wanted("avx512")) return kAvx512;
  if (avx2 && (wanted("avx2") || wanted("avx512"))) return kAvx2;
#endif
  (void)wanted;
  return kPortable;
}

}  // namespace

const Table& table() {
  static const Table& chosen = best();
  return chosen;
}

}  // namespace spx
