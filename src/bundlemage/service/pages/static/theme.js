// Loaded before the page is drawn, so that the page never appears in the wrong theme first.
(() => {
  const chosen = localStorage.getItem("bundlemage-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
