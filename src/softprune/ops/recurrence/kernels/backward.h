// The gradients of FastGRNN, from the last step to the first; see forward.h.
//
// Gate and update are made again from the sums: that costs less than to write and read them. The gradient of [U | W]
// is a sum over samples and steps; it is added up for several steps at once, while their rows are in the cache.
#pragma once
#include "forward.h"

namespace {

// What adds up over samples and steps. One for each part of the batch, so that no order depends on threads.
struct Totals {
  Rows matrix;  // a row for each column of [U | W]
  Rows small;   // biases of the gate and of the update, zeta, nu

  explicit Totals(const Call& call) : matrix(call.hidden + call.features, call.hidden), small(4, call.hidden) {}
};

// One step of a group. `grad` holds dL/dh' and leaves with what of it goes straight to h; `grad_sum` gets dL/dsum.
// The rows of sums, grad and grad_sum have one pitch, those of the states before another.
template <int G, int U>
void back_rows(const Cell& cell, int64_t size, int64_t pitch, const float* sums, const float* states,
               int64_t state_pitch, float* grad, float* grad_sum, const Rows& small) {
  for (int64_t v = 0, i = 0; v < cell.vectors; v++, i += kWidth) {
    const Vec gate_bias = load(cell.biases.at(0) + i), update_bias = load(cell.biases.at(1) + i);
    Vec gate = load(small.at(0) + i), update = load(small.at(1) + i);
    Vec zeta = load(small.at(2) + i), nu = load(small.at(3) + i);
    for (int64_t r = 0; r < size; r++) {
      const Vec sum = load(sums + r * pitch + i), h = load(states + r * state_pitch + i), g = load(grad + r * pitch + i);
      const Vec at_gate = sum + gate_bias, at_update = sum + update_bias;
      const Vec z = value<G>(at_gate), c = value<U>(at_update);
      const Vec to_gate = g * (h - cell.zeta * c) * slope<G>(at_gate, z);
      const Vec to_update = g * (cell.open - cell.zeta * z) * slope<U>(at_update, c);
      const Vec both = g * c;
      nu += both;
      zeta += both - both * z;
      gate += to_gate;
      update += to_update;
      store(grad + r * pitch + i, g * z);
      store(grad_sum + r * pitch + i, to_gate + to_update);
    }
    store(small.at(0) + i, gate);
    store(small.at(1) + i, update);
    store(small.at(2) + i, zeta);
    store(small.at(3) + i, nu);
  }
}

using BackRows = void (*)(const Cell&, int64_t, int64_t, const float*, const float*, int64_t, float*, float*,
                          const Rows&);

template <int... I>
constexpr BackRows back_rows_of(int index, std::integer_sequence<int, I...>) {
  constexpr BackRows all[] = {back_rows<I / kCurves, I % kCurves>...};
  return all[index];
}

struct Backward {
  const Call& call;
  Cell cell;
  Panels u, w;

  explicit Backward(const Call& call)
      : call(call), cell(call), u(call.hidden, call.hidden), w(call.hidden, call.grad_x ? call.features : 0) {
    u.read(0, call.hidden, call.hidden, call.u, call.hidden, 1);
    if (call.grad_x) w.read(0, call.hidden, call.features, call.w, call.features, 1);
  }

  void run(const Group& group, Totals& totals) const {
    constexpr int64_t kTogether = 128;  // rows of the product that makes the gradient of the matrices
    const int64_t together = std::max<int64_t>(1, kTogether / group.size);
    const int64_t hidden = call.hidden, features = call.features, wide = hidden + features;
    const BackRows back =
        back_rows_of(call.gate * kCurves + call.update, std::make_integer_sequence<int, kCurves * kCurves>());
    Rows rows(together * group.size, wide + kLine), grad_sums(together * group.size, hidden), grad(group.size, hidden);
    Rows grad_x(group.size, features);
    for (int64_t r = 0; r < group.size; r++)
      copy_or_clear(call.grad_last ? call.grad_last + group.only(r) : nullptr, hidden, grad.at(r));
    int64_t waiting = 0;
    for (int64_t step = call.steps - 1; step >= 0; step--) {
      float *before = rows.at(waiting), *grad_sum = grad_sums.at(waiting);
      for (int64_t r = 0; r < group.size; r++) {
        copy_or_clear(state_before(group, r, step), hidden, rows.at(waiting + r));
        copy(group.x(r, step), features, rows.at(waiting + r) + hidden);
        if (step > kAhead) fetch(call.states + group.state(r, step - 1 - kAhead), hidden);
        if (call.grad_states) add(call.grad_states + group.state(r, step), hidden, grad.at(r));
      }
      back(cell, group.size, grad.pitch, call.sums + group.sums(step), before, rows.pitch, grad.values, grad_sum,
           totals.small);
      u.times(grad_sum, grad_sums.pitch, group.size, grad.values, grad.pitch, true);
      if (call.grad_x) {
        w.times(grad_sum, grad_sums.pitch, group.size, grad_x.values, grad_x.pitch, false);
        for (int64_t r = 0; r < group.size; r++)
          copy(grad_x.at(r), features, call.grad_x + ((group.first + r) * call.steps + step) * features);
      }
      waiting += group.size;
      if (waiting == together * group.size || step == 0) {
        add_outer(u.columns, waiting, rows.values, rows.pitch, wide, grad_sums.values, grad_sums.pitch,
                  totals.matrix.values, totals.matrix.pitch);
        waiting = 0;
      }
    }
    for (int64_t r = 0; r < group.size; r++) copy(grad.at(r), hidden, call.grad_start + group.only(r));
  }

  // The rows of a step are far apart, more than the processor foresees.
  static constexpr int64_t kAhead = 2;
  static void fetch(const float* from, int64_t count) {
    for (int64_t i = 0; i < count; i += kLine) __builtin_prefetch(from + i);
  }

  const float* state_before(const Group& group, int64_t row, int64_t step) const {
    if (step) return call.states + group.state(row, step - 1);
    return call.start ? call.start + group.only(row) : nullptr;
  }

  static void add(const float* from, int64_t count, float* to) {
    for (int64_t i = 0; i < count; i++) to[i] += from[i];
  }
};

// The sum of all parts, in the order that Python wants.
void finish(const Call& call, Totals* const* parts, int64_t count) {
  Totals& total = *parts[0];
  const int64_t hidden = call.hidden, features = call.features;
  for (int64_t part = 1; part < count; part++) {
    Backward::add(parts[part]->matrix.values, (hidden + features) * total.matrix.pitch, total.matrix.values);
    Backward::add(parts[part]->small.values, 4 * total.small.pitch, total.small.values);
  }
  for (int64_t i = 0; i < hidden; i++) {
    for (int64_t k = 0; k < hidden; k++) call.grad_u[i * hidden + k] = total.matrix.at(k)[i];
    for (int64_t k = 0; k < features; k++) call.grad_w[i * features + k] = total.matrix.at(hidden + k)[i];
  }
  for (int64_t k = 0; k < 2; k++) {
    copy(total.small.at(k), hidden, call.grad_biases + k * hidden);
    double sum = 0;  // of terms that may cancel
    for (int64_t i = 0; i < hidden; i++) sum += total.small.at(2 + k)[i];
    call.grad_scales[k] = static_cast<float>(sum);
  }
}

}  // namespace
