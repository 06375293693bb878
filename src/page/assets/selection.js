// Which jobs of the list are selected.
const boxes = () => [...document.querySelectorAll("input[name=pick]")];

export const chosen = () => boxes().filter((box) => box.checked).map((box) => box.value);

export const selection = {
  start() {
    document.addEventListener("change", (event) => {
      if (event.target.id === "all") for (const box of boxes()) box.checked = event.target.checked;
      if (event.target.matches("#all, input[name=pick]")) this.show();
    });
  },
  show() {
    const place = document.querySelector(".acts .chosen");
    if (!place) return;
    const count = chosen().length;
    const text = count ? `${count} selected:` : "All found:";
    if (place.textContent !== text) place.textContent = text;
  },
};
