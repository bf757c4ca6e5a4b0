#if defined(__x86_64__)
#define SPX_AVX2
#include "fastgrnn.h"
namespace spr {
extern const Table kAvx2 = {"avx2", run_forward, run_backward};
}
#endif
