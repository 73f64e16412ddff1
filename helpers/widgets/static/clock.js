// A countdown. It runs here, so that it goes on while the kernel works. Python sends when it began and ended, by the
// kernel's clock, and the words; this side asks once what time it is there.

const WARNINGS = [300, 60, 0]; // seconds left at which a screen reader is told

function clock(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  return `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")}`;
}

function element(tag, className, parent) {
  const made = document.createElement(tag);
  made.className = className;
  parent.append(made);
  return made;
}

function render({ model, el }) {
  const root = element("div", "rr-clock", el);
  const face = element("div", "rr-clock-face", root);
  face.setAttribute("role", "timer");
  const time = element("span", "rr-clock-time", face);
  const said = element("span", "rr-clock-said", face);
  const bar = element("div", "rr-clock-bar", element("div", "rr-clock-track", root));
  const aloud = element("div", "rr-clock-aloud", root);
  aloud.setAttribute("aria-live", "polite");
  let ahead = 0; // seconds that the kernel's clock is ahead of ours
  let before = Infinity; // seconds left when we last looked

  function look() {
    const [limit, began, ended] = ["limit", "began", "ended"].map((name) => model.get(name));
    const words = model.get("words");
    const used = began ? Math.max(0, (ended || Date.now() / 1000 + ahead) - began) : 0;
    const left = limit - used;
    const state = !began ? "ready" : ended ? "ended" : left < 0 ? "over" : "running";
    const shown = { ready: limit, ended: used, over: -left, running: Math.ceil(left) }[state];
    time.textContent = (state === "over" ? "+" : "") + clock(shown);
    said.textContent = words[state].replace("{limit}", clock(limit));
    bar.style.width = `${Math.min(100, (100 * used) / limit)}%`;
    root.dataset.state = state;
    root.dataset.late = String(left < 0);
    tell(state, left, words);
  }

  function tell(state, left, words) {
    const crossed = WARNINGS.filter((mark) => before > mark && left <= mark);
    const ticking = state === "running" || state === "over";
    if (ticking && before !== Infinity && crossed.length) {
      const mark = Math.min(...crossed);
      aloud.textContent = mark === 0 ? words.up : mark === 60 ? words.minute : words.minutes.replace("{n}", mark / 60);
    }
    before = ticking ? left : Infinity;
  }

  function hear(message) {
    if (message.now) ahead = message.now - Date.now() / 1000;
    look();
  }

  const changes = "change:limit change:began change:ended change:words";
  model.on(changes, look);
  model.on("msg:custom", hear);
  model.send({ ask: "now" });
  const ticks = setInterval(look, 250);
  look();
  return () => {
    clearInterval(ticks);
    model.off(changes, look);
    model.off("msg:custom", hear);
  };
}

export default { render };
