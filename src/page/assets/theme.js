// Before anything is shown: the colours that the reader chose, and that there is a script.
document.documentElement.classList.add("has-script");
const theme = localStorage.getItem("theme");
if (theme) document.documentElement.dataset.theme = theme;
