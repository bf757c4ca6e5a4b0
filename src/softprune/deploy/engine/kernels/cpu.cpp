// The kernels of the instruction set in use.
#include "abi.h"
#include "instructions.h"

namespace spx {

namespace {

const Table& best() {
#if defined(__x86_64__)
  switch (best_instructions()) {
    case Instructions::avx512: return kAvx512;
    case Instructions::avx2: return kAvx2;
    case Instructions::portable: break;
  }
#endif
  return kPortable;
}

}  // namespace

const Table& table() {
  static const Table& chosen = best();
  return chosen;
}

}  // namespace spx
