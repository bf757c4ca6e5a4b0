// What Python and the kernels share: one plain record per call, and one table of functions per instruction set.
#pragma once
#include <cstdint>

namespace spr {

// All arrays are float32 and contiguous; n = samples, t = steps, d = features, h = hidden, p = pitch(h).
struct Call {
  int64_t samples, steps, features, hidden;
  int32_t gate, update;  // curves, see curve.h
  float zeta, nu;        // after their sigmoid
  const float* x;        // [n, t, d]
  const float* w;        // [h, d]
  const float* u;        // [h, h]
  const float* biases;   // [2, h], of the gate and of the update
  const float* start;    // [n, h], the state before the first step; null for zeros
  float* states;         // [n, t, h]; forward: out. Backward: only read
  float* sums;           // n t p numbers, W x + U h in an order of our own; forward: out, unless null. Backward: read
  // Backward only.
  const float* grad_states;  // [n, t, h]; may be null
  const float* grad_last;    // [n, h]; may be null
  float* grad_x;             // [n, t, d], out, unless null
  float* grad_w;             // [h, d], out
  float* grad_u;             // [h, h], out
  float* grad_biases;        // [2, h], out
  float* grad_scales;        // [2], of zeta and nu, out
  float* grad_start;         // [n, h], out
};

// Runs `work(context, i)` for every i below `count`, on as many threads as there are.
struct Team {
  int64_t threads;
  void run(int64_t count, void (*work)(void* context, int64_t index), void* context) const;
};

struct Table {
  const char* name;
  void (*forward)(const Call&, const Team&);
  void (*backward)(const Call&, const Team&);
};

extern const Table kPortable, kAvx2, kAvx512;

}  // namespace spr
