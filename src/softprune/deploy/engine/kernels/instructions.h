// Which instruction set to use: the best one that this processor has, or the one that SOFTPRUNE_KERNELS_LEVEL names.
#pragma once
#include <cstdlib>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

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

// Products of bytes: the widest that the processor has and that goes with the instruction set in use.
enum class IntegerInstructions { portable, vnni256, vnni512 };

inline IntegerInstructions best_integer_instructions() {
#if defined(__x86_64__)
  const Instructions floats = best_instructions();
  const char* wish = std::getenv("SOFTPRUNE_INT8_LEVEL");
  const auto wanted = [&](const char* name) { return !wish || !*wish || !std::strcmp(wish, name); };
  if (floats == Instructions::avx512 && __builtin_cpu_supports("avx512vnni") && wanted("vnni512"))
    return IntegerInstructions::vnni512;
  // AVX-VNNI: leaf 7, sub-leaf 1, bit 4 of eax; older compilers do not know its name.
  unsigned a = 0, b = 0, c = 0, d = 0;
  const bool has = __get_cpuid_count(7, 0, &a, &b, &c, &d) && a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d) &&
                   (a >> 4 & 1);
  if (floats != Instructions::portable && has && wanted("vnni256")) return IntegerInstructions::vnni256;
#endif
  return IntegerInstructions::portable;
}

}  // namespace spx
