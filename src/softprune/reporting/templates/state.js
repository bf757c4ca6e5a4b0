"use strict";
// What a reader has chosen, by the ids of elements: it outlives a renewal of the page.
const softprune = { hidden: new Map(), tables: new Map(), groups: new Map() };

softprune.say = (text) => {
  document.getElementById("live").textContent = text;
};

softprune.save = (name, rows) => {
  const quoted = rows.map((row) => row.map((cell) => {
    const text = cell === null || cell === undefined ? "" : String(cell);
    return /[",\n\r]/.test(text) ? '"' + text.replaceAll('"', '""') + '"' : text;
  }).join(","));
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([quoted.join("\n") + "\n"], { type: "text/csv" }));
  link.download = name;
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
};

softprune.changed = () => document.dispatchEvent(new CustomEvent("softprune:change"));
