// Shows what a mark stands for: the text that every mark carries for screen readers.
const tip = document.getElementById("tip");
document.addEventListener("pointermove", (event) => {
  const mark = event.target.closest?.("figure svg [aria-roledescription$='mark'][aria-label], figure svg .tip");
  tip.hidden = !mark;
  if (!mark) return;
  tip.textContent = mark.getAttribute("aria-label");
  const left = Math.min(event.pageX + 14, document.documentElement.clientWidth - tip.offsetWidth - 8);
  tip.style.transform = `translate(${Math.max(8, left)}px, ${event.pageY + 16}px)`;
});
