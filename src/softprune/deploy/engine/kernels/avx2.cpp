#if defined(__x86_64__)
#define SPX_AVX2
#include "level.h"
namespace spx {
extern const Table kAvx2 = SPX_TABLE("avx2");
}
#endif
