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

const Table8& best8() {
#if defined(__x86_64__)
  switch (best_integer_instructions()) {
    case IntegerInstructions::vnni512: return kVnni512;
    case IntegerInstructions::vnni256: return kVnni256;
    case IntegerInstructions::portable: break;
  }
#endif
  return kPortable8;
}

}  // namespace

const Table8& table8() {
  static const Table8& chosen = best8();
  return chosen;
}

const Table& table() {
  static const Table& chosen = best();
  return chosen;
}

}  // namespace spx
