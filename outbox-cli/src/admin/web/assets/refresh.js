// Replaces the values of a page that shows the present. Without this script the page is loaded again.
"use strict";
setInterval(async () => {
  const old = document.querySelector("[data-fresh]");
  // A reader who stands on a link keeps it.
  if (!old || old.contains(document.activeElement)) return;
  const answer = await fetch(window.location.href).catch(() => null);
  if (!answer || !answer.ok) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const fresh = page.querySelector("[data-fresh]");
  if (fresh) old.replaceWith(document.importNode(fresh, true));
}, 5000);
