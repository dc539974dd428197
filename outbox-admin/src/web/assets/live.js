// Keeps the values of the overview current, and those of work that goes on. Without it the pages work all the same.
"use strict";
(() => {
  if (document.body.hasAttribute("data-running")) watch();
  if (document.body.dataset.live) listen(document.body.dataset.live);

  function listen(address) {
    const events = new EventSource(address);
    let samples = 0;
    events.addEventListener("sample", (event) => {
      const values = JSON.parse(event.data);
      for (const element of document.querySelectorAll("[data-value]")) {
        const value = values[element.dataset.value];
        if (value !== undefined && element.textContent !== value) element.textContent = value;
      }
      for (const element of document.querySelectorAll("[data-state]")) {
        element.className = "state " + values.state;
      }
      // What is wrong is a list with links: it is made by the server only.
      const shown = document.body.querySelector("[data-reasons]");
      if (shown && shown.dataset.reasons !== values.reasons) window.location.reload();
      // So are the charts. The server has them ready, and asks nobody for them.
      samples += 1;
      if (samples % 5 === 0) refresh(false);
    });
  }
  function watch() {
    setTimeout(async () => {
      await refresh(true);
      if (document.querySelector("[data-fresh][data-running]")) watch();
    }, 1000);
  }
  async function refresh(always) {
    const old = document.querySelector("[data-fresh]");
    if (!old) return;
    // Whoever reads a table or is on a link there keeps it.
    if (!always && (old.querySelector("details[open]") || old.contains(document.activeElement))) return;
    const answer = await fetch(window.location.href).catch(() => null);
    if (!answer || !answer.ok) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const fresh = page.querySelector("[data-fresh]");
    if (fresh) old.replaceWith(document.importNode(fresh, true));
  }
})();
