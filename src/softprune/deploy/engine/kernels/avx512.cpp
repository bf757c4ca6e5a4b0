#if defined(__x86_64__)
#define SPX_AVX512
#include "level.h"
namespace spx {
extern const Table kAvx512 = SPX_TABLE("avx512");
}
#endif
