// Groups, such as methods: one button shows or hides them in all charts and tables at once.
softprune.group = (name, visible) => {
  softprune.groups.set(name, visible);
  for (const figure of document.querySelectorAll("figure.chart")) {
    for (const entry of figure.querySelectorAll(".entry")) {
      if (entry.dataset.group === name) softprune.show(figure, Number(entry.dataset.series), visible);
    }
  }
  softprune.paintGroups();
};

softprune.paintGroups = () => {
  for (const button of document.querySelectorAll("[data-group-toggle]")) {
    button.setAttribute("aria-pressed", String(softprune.groups.get(button.dataset.groupToggle) !== false));
  }
  document.dispatchEvent(new CustomEvent("softprune:groups"));
};

softprune.setUpGroups = () => {
  for (const button of document.querySelectorAll("[data-group-toggle]")) {
    const name = button.dataset.groupToggle;
    button.addEventListener("click", () => softprune.group(name, softprune.groups.get(name) === false));
  }
  softprune.paintGroups();
};
