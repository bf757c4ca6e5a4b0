// Tooltips with exact values: for the nearest point under the pointer, and for arrow keys.
softprune.text = (value, axis) => {
  if (value === null || value === undefined) return "none";
  if (axis.categories.length) return axis.categories[value] ?? String(value);
  const shown = axis.percent ? value * 100 : value;
  const digits = Math.abs(shown) >= 1e-4 || shown === 0
    ? shown.toLocaleString("en-US", { maximumSignificantDigits: 10 }) : shown.toPrecision(6);
  return axis.percent ? digits + " %" : digits;
};

// From values to the pixels of a picture; the same as the scales of the renderer.
softprune.mapping = (svg, values) => {
  const [left, right, bottom, top] = svg.dataset.box.split(" ").map(Number);
  const [xLow, xHigh, yLow, yHigh] = svg.dataset.ends.split(" ").map(Number);
  const place = (value, axis, low, high, start, end) => {
    if (value === null || (axis.log && value <= 0)) return NaN;
    const bent = axis.log ? Math.log10 : (v) => v;
    return start + (bent(value) - bent(low)) / (bent(high) - bent(low)) * (end - start);
  };
  return (series, at) => [
    place(series.x[at] === null ? null : series.x[at] + series.beside, values.x, xLow, xHigh, left, right),
    place(series.y[at], values.y, yLow, yHigh, bottom, top),
  ];
};

softprune.picture = (figure) => [...figure.querySelectorAll("svg.plot")].find((svg) => svg.getBoundingClientRect().width > 0);

softprune.nearest = (figure, svg, x, y) => {
  const values = softprune.values(figure);
  const map = softprune.mapping(svg, values);
  let best = null;
  values.series.forEach((series, index) => {
    if (!softprune.visible(figure, index)) return;
    for (let at = 0; at < series.x.length; at++) {
      const [px, py] = map(series, at);
      if (!Number.isFinite(px) || !Number.isFinite(py)) continue;
      // A bar is met anywhere in its column, a point only near it.
      const far = series.bars ? Math.abs(px - x) + Math.abs(py - y) * 1e-3 : Math.hypot(px - x, py - y);
      if (far <= (series.bars ? 30 : 60) && (best === null || far < best.far)) best = { far, index, at, px, py };
    }
  });
  return best;
};

softprune.point = (figure, svg, index, at) => {
  const [px, py] = softprune.mapping(svg, softprune.values(figure))(softprune.values(figure).series[index], at);
  return { index, at, px, py };
};

softprune.tell = (figure, svg, hit, aloud) => {
  const values = softprune.values(figure);
  const series = values.series[hit.index];
  const spread = series.spread[hit.at];
  const width = spread === undefined || spread === null ? "" : ` \u00b1 ${softprune.text(spread, values.y)}`;
  const lines = [
    `${values.x.label}: ${softprune.text(series.x[hit.at], values.x)}`,
    `${values.y.label}: ${softprune.text(series.y[hit.at], values.y)}${width}`,
  ];
  if (series.notes[hit.at]) lines.push(series.notes[hit.at]);
  const tip = figure.querySelector(".tip");
  const head = document.createElement("b");
  head.textContent = series.name;
  tip.replaceChildren(head, ...lines.flatMap((line, i) => (i ? [document.createElement("br"), line] : [line])));
  tip.hidden = false;
  if (aloud) softprune.say([series.name, ...lines].join(", "));
  const cursor = svg.querySelector(".cursor");
  cursor.setAttribute("cx", hit.px);
  cursor.setAttribute("cy", hit.py);
  softprune.heat(figure, hit.index);
  softprune.settle(tip, svg, hit);
};

// Beside the point, and always inside the figure.
softprune.settle = (tip, svg, hit) => {
  const canvas = tip.parentElement.getBoundingClientRect();
  const box = svg.getBoundingClientRect();
  const scale = box.width / svg.viewBox.baseVal.width;
  const x = box.left - canvas.left + hit.px * scale;
  const y = box.top - canvas.top + hit.py * scale;
  const right = x + 14 + tip.offsetWidth <= canvas.width;
  tip.style.left = Math.max(0, right ? x + 14 : x - 14 - tip.offsetWidth) + "px";
  tip.style.top = Math.max(0, Math.min(y - tip.offsetHeight / 2, canvas.height - tip.offsetHeight)) + "px";
};

softprune.hush = (figure) => {
  figure.querySelector(".tip").hidden = true;
  for (const cursor of figure.querySelectorAll(".cursor")) cursor.setAttribute("cx", -99);
  softprune.heat(figure, null);
  figure.reading = null;
};

softprune.setUpTips = (figure) => {
  const canvas = figure.querySelector(".canvas");
  const seek = (event) => {
    const svg = softprune.picture(figure);
    if (!svg) return;
    const box = svg.getBoundingClientRect();
    const scale = svg.viewBox.baseVal.width / box.width;
    const hit = softprune.nearest(figure, svg, (event.clientX - box.left) * scale, (event.clientY - box.top) * scale);
    if (hit) softprune.tell(figure, svg, hit, false); else softprune.hush(figure);
  };
  canvas.addEventListener("pointermove", seek);
  canvas.addEventListener("pointerdown", seek);
  canvas.addEventListener("pointerleave", () => softprune.hush(figure));
  canvas.addEventListener("blur", () => softprune.hush(figure));
  canvas.addEventListener("keydown", (event) => softprune.read(figure, event));
};

softprune.read = (figure, event) => {
  if (event.key === "Escape") return softprune.hush(figure);
  const moves = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowUp: [-1, 0], ArrowDown: [1, 0], Home: [0, -Infinity], End: [0, Infinity] };
  const values = softprune.values(figure);
  const open = values.series.map((_, index) => index).filter((index) => softprune.visible(figure, index) && values.series[index].x.length);
  if (!moves[event.key] || !open.length) return;
  event.preventDefault();
  const [across, along] = moves[event.key];
  let { index, at } = figure.reading ?? { index: open[0], at: along > 0 ? -1 : 0 };
  const turn = open.includes(index) ? open.indexOf(index) : 0;
  index = open[(turn + across + open.length) % open.length];
  at = Math.min(Math.max(at + along, 0), values.series[index].x.length - 1);
  figure.reading = { index, at };
  const svg = softprune.picture(figure);
  const hit = softprune.point(figure, svg, index, at);
  // A gap has a text, but no place in the picture.
  if (!Number.isFinite(hit.px) || !Number.isFinite(hit.py)) Object.assign(hit, { px: svg.viewBox.baseVal.width / 2, py: 20 });
  softprune.tell(figure, svg, hit, true);
};
