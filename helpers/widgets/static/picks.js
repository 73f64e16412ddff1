// Parts of a picture that can be chosen: by a click, or by the arrows and Enter. The picture is sent anew after each
// choice, so this listens around it, and gives the keyboard back to what was chosen.

const STEPS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -Infinity, End: Infinity };

function render({ model, el }) {
  el.style.display = "none";
  let wanted = null; // what was chosen and is not drawn yet
  const redrawn = new MutationObserver(() => {
    const chosen = root()?.querySelector(`[data-pick="${wanted}"][aria-pressed="true"]`);
    if (!chosen) return;
    redrawn.disconnect();
    chosen.focus({ preventScroll: true });
  });

  const root = () => el.closest(".rr-explorer");

  function part(event) {
    const found = event.target.closest?.("[data-pick]");
    return found && root()?.contains(found) ? found : null;
  }

  function choose(found) {
    if (found.getAttribute("aria-pressed") === "true") return;
    wanted = found.dataset.pick;
    redrawn.observe(root(), { childList: true, subtree: true });
    model.send({ pick: wanted });
  }

  function click(event) {
    const found = part(event);
    if (found) choose(found);
  }

  function key(event) {
    const found = part(event);
    if (!found || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Enter" || event.key === " ") choose(found);
    else if (event.key in STEPS) {
      const all = [...root().querySelectorAll("[data-pick]")];
      const place = all.indexOf(found) + STEPS[event.key];
      all[Math.min(Math.max(place, 0), all.length - 1)].focus();
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }

  document.addEventListener("click", click);
  document.addEventListener("keydown", key);
  return () => {
    redrawn.disconnect();
    document.removeEventListener("click", click);
    document.removeEventListener("keydown", key);
  };
}

export default { render };
