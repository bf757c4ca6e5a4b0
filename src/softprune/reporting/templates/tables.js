// Tables: sorted by a press on a header, filtered by text, shown in pages where they are long, saved as CSV.
const PAGE = 200;

softprune.cell = (cell) => {
  if (!cell) return "";
  const text = cell.dataset.v ?? cell.textContent.trim();
  const number = Number(text.replaceAll(",", ""));
  return text !== "" && !Number.isNaN(number) ? number : text;
};

softprune.order = (a, b) => {
  // Empty cells are last, numbers before texts.
  if (a === b) return 0;
  if (a === "" || b === "") return a === "" ? 1 : -1;
  if (typeof a === "number" && typeof b === "number") return a - b;
  if (typeof a === "number" || typeof b === "number") return typeof a === "number" ? -1 : 1;
  return a.localeCompare(b, "en", { numeric: true });
};

softprune.setUpTable = (block) => {
  const table = block.querySelector("table");
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  const rows = [...body.rows];
  const blank = { column: -1, down: false, filter: "", page: 0 };
  if (!softprune.tables.has(block.id)) softprune.tables.set(block.id, blank);
  const state = softprune.tables.get(block.id);
  const input = block.querySelector("input");
  const pager = block.querySelector(".pager");

  const chosen = () => {
    const wanted = state.filter.trim().toLowerCase();
    const found = rows.filter((row) => softprune.groups.get(row.dataset.group) !== false
      && (!wanted || row.textContent.toLowerCase().includes(wanted)));
    if (state.column < 0) return found;
    const keyed = found.map((row) => [softprune.cell(row.cells[state.column]), row]);
    const empty = (key) => key === "";
    keyed.sort(([a], [b]) => (state.down && !empty(a) && !empty(b) ? softprune.order(b, a) : softprune.order(a, b)));
    return keyed.map(([, row]) => row);
  };

  const draw = () => {
    const found = chosen();
    const pages = Math.max(1, Math.ceil(found.length / PAGE));
    state.page = Math.min(Math.max(state.page, 0), pages - 1);
    body.replaceChildren(...found.slice(state.page * PAGE, (state.page + 1) * PAGE));
    heads.forEach((head, at) => head.setAttribute("aria-sort", at === state.column ? (state.down ? "descending" : "ascending") : "none"));
    const all = rows.length.toLocaleString("en-US");
    block.querySelector(".count").textContent = found.length === rows.length ? `${all} rows` : `${found.length.toLocaleString("en-US")} of ${all} rows`;
    pager.hidden = pages === 1;
    pager.querySelector("span").textContent = `Page ${state.page + 1} of ${pages}`;
    pager.querySelector(".back").disabled = state.page === 0;
    pager.querySelector(".next").disabled = state.page === pages - 1;
  };

  heads.forEach((head, at) => head.querySelector("button")?.addEventListener("click", () => {
    // Numbers begin with the largest, texts with a; a third press brings the given order back.
    const first = head.classList.contains("n");
    if (state.column !== at) Object.assign(state, { column: at, down: first });
    else if (state.down === first) state.down = !first;
    else state.column = -1;
    draw();
  }));
  input?.addEventListener("input", () => {
    Object.assign(state, { filter: input.value, page: 0 });
    draw();
  });
  pager.querySelector(".back").addEventListener("click", () => { state.page -= 1; draw(); });
  pager.querySelector(".next").addEventListener("click", () => { state.page += 1; draw(); });
  block.querySelector("button.csv")?.addEventListener("click", (event) => {
    const texts = (row) => [...row.cells].map((cell) => cell.dataset.v ?? cell.textContent.trim());
    softprune.save(event.target.dataset.name, [heads.map((head) => head.textContent.trim()), ...chosen().map(texts)]);
  });
  // Paper has no pages of the script: all rows are printed.
  const signal = softprune.life.signal;
  addEventListener("beforeprint", () => body.replaceChildren(...chosen()), { signal });
  addEventListener("afterprint", draw, { signal });
  document.addEventListener("softprune:groups", draw, { signal });
  if (input) input.value = state.filter;
  draw();
};
