#if defined(__x86_64__)
#define SPX_AVX512
#include "fastgrnn.h"
namespace spr {
extern const Table kAvx512 = {"avx512", run_forward, run_backward};
}
#endif
