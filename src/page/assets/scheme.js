// Whether the page is dark: as the reader chose, and else as the browser's surroundings are.
const surroundings = matchMedia("(prefers-color-scheme: dark)");
const root = document.documentElement;

export const isDark = () => root.dataset.theme ? root.dataset.theme === "dark" : surroundings.matches;

// Calls at every change of either.
export function onScheme(changed) {
  surroundings.addEventListener("change", changed);
  new MutationObserver(changed).observe(root, { attributeFilter: ["data-theme"] });
}
