// Loaded before the page is drawn, so that a chosen theme never flashes in after the other one.
(() => {
  const chosen = localStorage.getItem("bundlemage-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
