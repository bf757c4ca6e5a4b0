// The page as a whole: light and dark, and news while a run goes on.
softprune.theme = () => {
  const button = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const dark = () => (document.documentElement.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";
  const paint = () => { button.textContent = dark() ? "Light" : "Dark"; };
  button.addEventListener("click", () => {
    document.documentElement.dataset.theme = dark() ? "light" : "dark";
    paint();
  });
  system.addEventListener("change", paint);
  paint();
};

softprune.setUp = () => {
  // What listens for a table that a renewal has replaced stops listening.
  softprune.life?.abort();
  softprune.life = new AbortController();
  document.querySelectorAll("figure.chart").forEach(softprune.setUpChart);
  document.querySelectorAll("div.table").forEach(softprune.setUpTable);
  softprune.setUpGroups();
};

softprune.renew = (text) => {
  const next = new DOMParser().parseFromString(text, "text/html").getElementById("content");
  const here = document.getElementById("content");
  if (!next || next.innerHTML === softprune.last) return next;
  softprune.last = next.innerHTML;
  const open = new Map([...here.querySelectorAll("details[id]")].map((part) => [part.id, part.open]));
  const focus = document.activeElement?.closest("main [id]")?.id;
  here.innerHTML = next.innerHTML;
  for (const part of here.querySelectorAll("details[id]")) part.open = open.get(part.id) ?? part.open;
  softprune.setUp();
  if (focus) document.getElementById(focus)?.focus({ preventScroll: true });
  return next;
};

softprune.follow = async (seconds) => {
  while (seconds > 0) {
    await new Promise((done) => setTimeout(done, seconds * 1000));
    const busy = document.activeElement?.matches("main input, main select") || document.querySelector(".tip:not([hidden])");
    if (busy) continue;
    try {
      const answer = await fetch(location.pathname, { cache: "no-store" });
      if (!answer.ok) throw new Error(answer.statusText);
      seconds = Number(softprune.renew(await answer.text())?.dataset.follow ?? seconds);
      document.getElementById("stale")?.remove();
    } catch {
      if (document.getElementById("stale")) continue;
      const note = Object.assign(document.createElement("p"), { id: "stale", className: "note warn", textContent: "The server does not answer: these are the last values it sent." });
      document.getElementById("content").prepend(note);
    }
  }
};

softprune.theme();
softprune.setUp();
softprune.follow(Number(document.getElementById("content").dataset.follow));
