// Keeps the values of the overview current. Without it the page works all the same.
"use strict";
(() => {
  const events = new EventSource(document.body.dataset.live);
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
  });
})();
