// The page of the API. Swagger UI, a script of its own, draws it from the OpenAPI document.

/* global SwaggerUIBundle */

import { byId } from "./dom.js";
import { frame } from "./frame.js";

const prefersDark = matchMedia("(prefers-color-scheme: dark)");

/** Swagger UI is dark if the page has the class `dark-mode`. */
function followTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : prefersDark.matches;
  root.classList.toggle("dark-mode", dark);
}

followTheme();
prefersDark.addEventListener("change", followTheme);
new MutationObserver(followTheme).observe(document.documentElement, { attributeFilter: ["data-theme"] });

await frame("docs");
SwaggerUIBundle({
  url: "/openapi.json",
  domNode: byId("routes"),
  deepLinking: true, // the address names the open route
  defaultModelsExpandDepth: 0,
  validatorUrl: null, // it would send the document to another host
  onComplete: () => byId("routes").removeAttribute("aria-busy"),
});
