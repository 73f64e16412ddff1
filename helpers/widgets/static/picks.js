// Parts of a picture that can be chosen: by a click, or by the arrows and Enter. The picture is sent anew after each
// choice, so this listens around it, and gives the keyboard back to what was chosen.

const STEPS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -Infinity, End: Infinity };

function render({ model, el }) {
  el.style.display = "none";
  const root = () => el.closest(".rr-explorer");
  let wanted = null; // what was chosen and is not drawn yet
  const redrawn = new MutationObserver(() => {
    const chosen = root()?.querySelector(`[data-pick="${wanted}"][aria-pressed="true"]`);
    if (!chosen) return;
    redrawn.disconnect();
    chosen.focus({ preventScroll: true });
  });

  function hear(event) {
    const found = event.target.closest?.("[data-pick]");
    if (!found || !root()?.contains(found)) return;
    if (["click", "Enter", " "].includes(event.key ?? event.type)) {
      wanted = found.dataset.pick;
      redrawn.observe(root(), { childList: true, subtree: true });
      model.send({ pick: wanted });
    } else if (event.key in STEPS) {
      const all = [...root().querySelectorAll("[data-pick]")];
      all[Math.min(Math.max(all.indexOf(found) + STEPS[event.key], 0), all.length - 1)].focus();
    } else return;
    event.preventDefault();
  }

  for (const name of ["click", "keydown"]) document.addEventListener(name, hear);
  return () => {
    redrawn.disconnect();
    for (const name of ["click", "keydown"]) document.removeEventListener(name, hear);
  };
}

export default { render };
