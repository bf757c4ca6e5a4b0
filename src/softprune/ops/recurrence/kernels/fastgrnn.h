// FastGRNN over all steps of a sequence, forward and backward.
//
//   pre = W x + U h,  z = gate(pre + gate_bias),  c = update(pre + update_bias)
//   h' = z * h + (zeta * (1 - z) + nu) * c
//
// A group of samples goes through all steps while U stays in the cache. Backward makes z and c again from `pre`:
// that costs less than writing and reading them.
#pragma once
#include <algorithm>
#include <cstring>
#include <vector>
#include "abi.h"
#include "curve.h"
#include "product.h"

namespace {

using spr::Call;
using spr::kGroup;

// Scratch rows of one group, each padded to whole vectors with zeros.
struct Rows {
  int64_t pitch;
  std::vector<float> values;
  explicit Rows(int64_t pitch, int64_t rows = kGroup) : pitch(pitch), values(rows * pitch) {}
  float* at(int64_t row) { return values.data() + row * pitch; }
  void clear() { std::fill(values.begin(), values.end(), 0.0f); }
};

// The rows of one step of a group, in arrays [n, t, h].
struct Step {
  int64_t first, count, steps, hidden, step;
  int64_t offset(int64_t row) const { return ((first + row) * steps + step) * hidden; }
};

void read_rows(const float* from, const Step& s, Rows& rows) {
  for (int64_t r = 0; r < s.count; r++) std::memcpy(rows.at(r), from + s.offset(r), s.hidden * sizeof(float));
}

void write_rows(Rows& rows, const Step& s, float* to) {
  for (int64_t r = 0; r < s.count; r++) std::memcpy(to + s.offset(r), rows.at(r), s.hidden * sizeof(float));
}

// The same for arrays [n, h], which have one step.
Step only(const Step& s) { return {s.first, s.count, 1, s.hidden, 0}; }

void read_or_clear(const float* from, const Step& s, Rows& rows) {
  rows.clear();
  if (from) read_rows(from, s, rows);
}

std::vector<float> padded(const float* from, int64_t count, int64_t pitch) {
  std::vector<float> row(pitch);
  std::memcpy(row.data(), from, count * sizeof(float));
  return row;
}

void run_forward(const Call& call, int64_t first_group, int64_t last_group) {
  const Matrix matrix(call.u, call.hidden, true);
  const int64_t pitch = matrix.pitch;
  const auto gate_bias = padded(call.gate_bias, call.hidden, pitch);
  const auto update_bias = padded(call.update_bias, call.hidden, pitch);
  const float zeta = call.zeta, open = call.zeta + call.nu;
  Rows states(pitch), pre(pitch), gates(pitch), updates(pitch);
  for (int64_t group = first_group; group < last_group; group++) {
    const int64_t first = group * kGroup, count = std::min<int64_t>(kGroup, call.samples - first);
    Step s{first, count, call.steps, call.hidden, 0};
    read_or_clear(call.start, only(s), states);
    for (; s.step < call.steps; s.step++) {
      read_rows(call.pre, s, pre);
      product(matrix, count, states.at(0), pre.at(0));
      write_rows(pre, s, call.pre);
      for (int64_t r = 0; r < count; r++) {
        float *z = gates.at(r), *c = updates.at(r), *h = states.at(r);
        kValueRows[call.gate](pre.at(r), gate_bias.data(), z, pitch);
        kValueRows[call.update](pre.at(r), update_bias.data(), c, pitch);
        for (int64_t i = 0; i < pitch; i++) h[i] = z[i] * h[i] + (open - zeta * z[i]) * c[i];
      }
      write_rows(states, s, call.states);
    }
  }
}

// One row of one step backward: `grad` holds dL/dh' and leaves with what of it goes straight to h; `grad_pre` gets
// dL/dpre; `sums` takes what the group adds to both biases, zeta and nu.
void back_row(const Call& call, int64_t pitch, const float* pre, const float* biases, const float* h, float* grad,
              float* grad_pre, float* work, Rows& sums) {
  const float *gate_bias = biases, *update_bias = biases + pitch, zeta = call.zeta, open = call.zeta + call.nu;
  float *z = work, *c = work + pitch, *grad_c = work + 2 * pitch;
  float *gate_sum = sums.at(0), *update_sum = sums.at(1), *zeta_sum = sums.at(2), *nu_sum = sums.at(3);
  kValueRows[call.gate](pre, gate_bias, z, pitch);
  kValueRows[call.update](pre, update_bias, c, pitch);
  for (int64_t i = 0; i < pitch; i++) {
    grad_pre[i] = grad[i] * (h[i] - zeta * c[i]);
    grad_c[i] = grad[i] * (open - zeta * z[i]);
    const float both = grad[i] * c[i];
    nu_sum[i] += both;
    zeta_sum[i] += both - both * z[i];
    grad[i] *= z[i];
  }
  kSlopeRows[call.gate](pre, gate_bias, z, grad_pre, pitch);
  kSlopeRows[call.update](pre, update_bias, c, grad_c, pitch);
  for (int64_t i = 0; i < pitch; i++) {
    gate_sum[i] += grad_pre[i];
    update_sum[i] += grad_c[i];
    grad_pre[i] += grad_c[i];
  }
}

void run_backward(const Call& call, int64_t first_group, int64_t last_group) {
  const Matrix matrix(call.u, call.hidden, false);
  const int64_t pitch = matrix.pitch;
  auto biases = padded(call.gate_bias, call.hidden, 2 * pitch);
  std::memcpy(biases.data() + pitch, call.update_bias, call.hidden * sizeof(float));
  Rows states(pitch), pre(pitch), grad(pitch), grad_pre(pitch), more(pitch), work(pitch, 3), sums(pitch, 4);
  for (int64_t group = first_group; group < last_group; group++) {
    const int64_t first = group * kGroup, count = std::min<int64_t>(kGroup, call.samples - first);
    Step s{first, count, call.steps, call.hidden, call.steps - 1};
    sums.clear();
    read_or_clear(call.grad_last, only(s), grad);
    for (; s.step >= 0; s.step--) {
      const Step before{first, count, call.steps, call.hidden, s.step - 1};
      if (call.grad_states) {
        read_rows(call.grad_states, s, more);
        for (int64_t i = 0; i < count * pitch; i++) grad.at(0)[i] += more.at(0)[i];
      }
      read_rows(call.pre, s, pre);
      if (s.step) read_rows(call.states, before, states);
      else read_or_clear(call.start, only(s), states);
      for (int64_t r = 0; r < count; r++)
        back_row(call, pitch, pre.at(r), biases.data(), states.at(r), grad.at(r), grad_pre.at(r), work.at(0), sums);
      write_rows(grad_pre, s, call.grad_pre);
      product(matrix, count, grad_pre.at(0), grad.at(0));
    }
    write_rows(grad, only(s), call.grad_start);
    for (int64_t k = 0; k < 4; k++)
      std::memcpy(call.grad_small + (group * 4 + k) * call.hidden, sums.at(k), call.hidden * sizeof(float));
  }
}

}  // namespace
