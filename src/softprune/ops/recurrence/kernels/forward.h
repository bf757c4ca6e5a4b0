// FastGRNN over all steps of a sequence.
//
//   sum = W x + U h,  z = gate(sum + gate_bias),  c = update(sum + update_bias)
//   h' = z * h + (zeta * (1 - z) + nu) * c
//
// A group of samples goes through all steps together. Its rows [h | x] meet the matrix [U' | W'], which stays in the
// cache, in one product.
#pragma once
#include "curve.h"
#include "product.h"

namespace {

// What the steps of every group share.
struct Cell {
  Rows biases;  // of the gate, of the update
  Vec zeta, open;
  int64_t vectors, width;
  unsigned last;  // the lanes of the last vector that are there

  explicit Cell(const Call& call)
      : biases(2, call.hidden), zeta(splat(call.zeta)), open(splat(call.zeta + call.nu)),
        vectors((call.hidden + kWidth - 1) / kWidth), width(call.hidden),
        last((1u << (call.hidden - (vectors - 1) * kWidth)) - 1) {
    for (int64_t k = 0; k < 2; k++) copy(call.biases + k * call.hidden, call.hidden, biases.at(k));
  }
  unsigned lanes(int64_t vector) const { return vector + 1 < vectors ? (1u << kWidth) - 1 : last; }
};

// The state after a row of sums, in place of the one before, and also written to `out`.
template <int G, int U>
void next_state(const Cell& cell, const float* sums, float* state, float* out) {
  const float *gate_bias = cell.biases.at(0), *update_bias = cell.biases.at(1);
  for (int64_t v = 0, i = 0; v < cell.vectors; v++, i += kWidth) {
    const Vec sum = load(sums + i), z = value<G>(sum + load(gate_bias + i)), c = value<U>(sum + load(update_bias + i));
    const Vec h = z * load(state + i) + (cell.open - cell.zeta * z) * c;
    store(state + i, h);
    if (v + 1 < cell.vectors) store(out + i, h);
    else store_lanes(out + i, cell.last, h);
  }
}

using NextState = void (*)(const Cell&, const float*, float*, float*);

template <int... I>
constexpr NextState next_state_of(int index, std::integer_sequence<int, I...>) {
  constexpr NextState all[] = {next_state<I / kCurves, I % kCurves>...};
  return all[index];
}

void forward_group(const Group& group, const Cell& cell, const Panels& matrix) {
  const Call& call = group.call;
  const NextState next =
      next_state_of(call.gate * kCurves + call.update, std::make_integer_sequence<int, kCurves * kCurves>());
  // A vector of the state may reach into x, which is therefore written after it.
  Rows rows(group.size, call.hidden + call.features + kLine), scratch(group.size, call.hidden);
  for (int64_t r = 0; r < group.size; r++)
    copy_or_clear(call.start ? call.start + group.only(r) : nullptr, call.hidden, rows.at(r));
  for (int64_t step = 0; step < call.steps; step++) {
    float* sums = call.sums ? call.sums + group.sums(step) : scratch.values;
    for (int64_t r = 0; r < group.size; r++) copy(group.x(r, step), call.features, rows.at(r) + call.hidden);
    matrix.times(rows.values, rows.pitch, group.size, sums, scratch.pitch, false);
    for (int64_t r = 0; r < group.size; r++) {
      std::fill(sums + r * scratch.pitch + call.hidden, sums + (r + 1) * scratch.pitch, 0.0f);
      next(cell, sums + r * scratch.pitch, rows.at(r), call.states + group.state(r, step));
    }
  }
}

void run_forward(const Call& call, const spr::Team& team) {
  const Groups groups(call.samples);
  const Cell cell(call);
  Panels matrix(call.hidden + call.features, call.hidden);
  matrix.read(0, call.hidden, call.hidden, call.u, 1, call.hidden);
  matrix.read(call.hidden, call.features, call.hidden, call.w, 1, call.features);
  run(team, groups.count, [&](int64_t index) {
    forward_group({call, groups.first(index), groups.size(index)}, cell, matrix);
  });
}

}  // namespace
