// Which instruction set to use: the best one that this processor has, or the one that SOFTPRUNE_KERNELS_LEVEL names.
#pragma once
#include <cstdlib>
#include <cstring>

namespace spx {

enum class Instructions { portable, avx2, avx512 };

inline Instructions best_instructions() {
#if defined(__x86_64__)
  const char* wish = std::getenv("SOFTPRUNE_KERNELS_LEVEL");
  const auto wanted = [&](const char* name) { return !wish || !*wish || !std::strcmp(wish, name); };
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  if (avx512 && wanted("avx512")) return Instructions::avx512;
  if (avx2 && (wanted("avx2") || wanted("avx512"))) return Instructions::avx2;
#endif
  return Instructions::portable;
}

}  // namespace spx
