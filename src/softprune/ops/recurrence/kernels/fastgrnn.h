// Both directions of FastGRNN for one instruction set.
#pragma once
#include <memory>
#include <vector>
#include "backward.h"

namespace {

void run_backward(const Call& call, const spr::Team& team) {
  const Groups groups(call.samples);
  const Backward backward(call);
  // Every part has totals of its own. A large matrix gets few parts, so that they do not fill the memory.
  const int64_t most = std::max<int64_t>(4, (int64_t(1) << 24) / ((call.hidden + call.features) * call.hidden));
  const int64_t count = std::max<int64_t>(1, std::min({groups.count, most, int64_t(64)}));
  std::vector<std::unique_ptr<Totals>> made;
  std::vector<Totals*> parts;
  for (int64_t part = 0; part < count; part++) {
    made.push_back(std::make_unique<Totals>(call));
    parts.push_back(made.back().get());
  }
  run(team, count, [&](int64_t part) {
    for (int64_t i = cut(groups.count, part, count); i < cut(groups.count, part + 1, count); i++)
      backward.run({call, groups.first(i), groups.size(i)}, *parts[part]);
  });
  finish(call, parts.data(), count);
}

}  // namespace
