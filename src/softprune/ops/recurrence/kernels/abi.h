// What Python and the kernels share: one plain record per call, and one table of functions per instruction set.
#pragma once
#include <cstdint>

namespace spr {

// All arrays are float32 and contiguous; h = hidden, n = samples, t = steps. A null pointer stands for zeros.
struct Call {
  int64_t samples, steps, hidden;
  int32_t gate, update;  // curves, see curve.h
  float zeta, nu;        // after their sigmoid
  const float* u;        // [h, h]
  const float* gate_bias;
  const float* update_bias;
  const float* start;    // [n, h], the state before the first step; may be null
  float* pre;            // [n, t, h]; forward: W x in, W x + U h out. Backward: only read
  float* states;         // [n, t, h]; forward: out. Backward: only read
  // Backward only.
  const float* grad_states;  // [n, t, h]; may be null
  const float* grad_last;    // [n, h]; may be null
  float* grad_pre;           // [n, t, h], out
  float* grad_start;         // [n, h], out
  float* grad_small;         // [groups, 4, h], out: gate bias, update bias, zeta, nu
};

// Samples that run through the steps together; fixed, so that no sum depends on the number of threads.
constexpr int kGroup = 4;

using Run = void (*)(const Call&, int64_t first_group, int64_t last_group);

struct Table {
  const char* name;
  Run forward, backward;
};

extern const Table kPortable, kAvx2, kAvx512;

}  // namespace spr
