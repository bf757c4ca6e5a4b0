// Legends: every entry is a button that shows or hides its series in all pictures of the figure.
softprune.values = (figure) => {
  figure.values ??= JSON.parse(figure.querySelector("script.values").textContent);
  return figure.values;
};

softprune.visible = (figure, index) => !softprune.hidden.get(figure.id)?.has(softprune.values(figure).series[index].name);

softprune.show = (figure, index, visible) => {
  const name = softprune.values(figure).series[index].name;
  if (!softprune.hidden.has(figure.id)) softprune.hidden.set(figure.id, new Set());
  softprune.hidden.get(figure.id)[visible ? "delete" : "add"](name);
  softprune.paint(figure);
  softprune.changed();
};

softprune.paint = (figure) => {
  for (const entry of figure.querySelectorAll(".entry")) {
    entry.setAttribute("aria-pressed", String(softprune.visible(figure, Number(entry.dataset.series))));
  }
  for (const series of figure.querySelectorAll("svg .series")) {
    series.classList.toggle("off", !softprune.visible(figure, Number(series.dataset.series)));
  }
};

softprune.setUpChart = (figure) => {
  const entries = [...figure.querySelectorAll(".entry")];
  for (const entry of entries) {
    const index = Number(entry.dataset.series);
    entry.addEventListener("click", () => softprune.show(figure, index, !softprune.visible(figure, index)));
    entry.addEventListener("pointerenter", () => softprune.heat(figure, index));
    entry.addEventListener("pointerleave", () => softprune.heat(figure, null));
  }
  for (const [name, visible] of [["all", true], ["none", false]]) {
    figure.querySelector(`.legend .${name}`)?.addEventListener("click", () => {
      for (const entry of entries) softprune.show(figure, Number(entry.dataset.series), visible);
    });
  }
  figure.querySelector("button.csv").addEventListener("click", () => softprune.saveChart(figure));
  softprune.setUpTips(figure);
  softprune.paint(figure);
};

// The series under the pointer stands out where there are several.
softprune.heat = (figure, index) => {
  const several = softprune.values(figure).series.length > 1;
  for (const svg of figure.querySelectorAll("svg.plot")) {
    svg.classList.toggle("dim", several && index !== null && softprune.visible(figure, index));
    for (const series of svg.querySelectorAll(".series")) {
      series.classList.toggle("hot", Number(series.dataset.series) === index);
    }
  }
};

softprune.saveChart = (figure) => {
  const values = softprune.values(figure);
  const rows = [["series", values.x.label, values.y.label, "spread", "note"]];
  for (const series of values.series) {
    series.x.forEach((x, at) => {
      const place = values.x.categories.length ? values.x.categories[x] : x;
      rows.push([series.name, place, series.y[at], series.spread[at], series.notes[at]]);
    });
  }
  softprune.save(figure.id + ".csv", rows);
};
