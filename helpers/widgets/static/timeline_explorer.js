// The timeline viewer: any Timeline, one above the other on one axis. Everything happens here, so that it answers
// while the kernel is busy. Python sends arrays, colours, units and words once (timeline_arrays.py,
// timeline_explorer.py); play head, zoom and rank go back now and then. No library, nothing from outside.

const STILL = matchMedia("(prefers-reduced-motion: reduce)");
const SPEEDS = [0.25, 0.5, 1, 2, 4];
const SWEEP = 10_000; // milliseconds in which the play head crosses what is visible, at speed 1

function element(tag, className, parent, text = "") {
  const made = document.createElement(tag);
  made.className = className;
  made.textContent = text;
  parent?.append(made);
  return made;
}

function called(button, label) {
  button.title = label;
  button.setAttribute("aria-label", label);
}

class Viewer extends Picture {
  constructor(model, el) {
    const data = model.get("data");
    super(data, element("canvas", ""));
    Object.assign(this, { model, speed: SPEEDS.indexOf(1), swatches: {} });
    Object.assign(this, { playing: 0, frame: 0, animation: 0, sending: 0, speaking: 0 }); // what is under way
    this.readModel();
    this.build(el, data);
    this.stop = new AbortController(); // ends every listener
    this.listen();
    this.root.__timeline = { loadMs: 0, frameTimes: [] }; // for benchmarks and tests
  }

  // -- what is on the page

  build(el, data) {
    this.root = element("div", "rr-timeline", el);
    this.root.dataset.lmSuppressShortcuts = "true"; // JupyterLab's own keys (0 0 restarts the kernel) rest in here
    for (const [name, value] of Object.entries(this.theme)) this.root.style.setProperty(`--rr-${name}`, value);
    const head = element("div", "rr-head", this.root);
    element("div", "rr-title", head, data.title);
    this.buildLegend(element("div", "rr-legend", head));
    this.buildButtons(element("div", "rr-buttons", this.root));
    this.stage = element("div", "rr-stage", this.root);
    this.scroller = element("div", "rr-scroller", this.stage);
    this.scroller.style.height = `${this.height + AXIS}px`;
    this.spacer = element("div", "", this.scroller);
    this.spacer.style.height = `${this.total + AXIS}px`;
    this.spacer.append(this.canvas);
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "application"); // a screen reader hands the arrow keys to us
    this.canvas.setAttribute("aria-label", fill(this.words.whole, { ...data, hint: this.words.hint }));
    this.card = element("div", "rr-card", this.stage);
    element("div", "rr-hint", this.root, this.words.hint);
    this.buildReadout(element("div", "rr-readout", this.root));
    this.live = element("div", "rr-hidden", this.root);
    this.live.setAttribute("aria-live", "polite");
    this.live.setAttribute("role", "status");
    this.buildTable(data.rows);
  }

  buildLegend(parent) {
    const seen = new Set(this.panels.flatMap((panel) => [...new Set(panel.kind)]));
    for (const [index, kind] of this.kinds.entries()) if (seen.has(index)) this.entry(parent, kind);
    const idle = { texture: "hatch", overlay: this.theme.grey, fill: "", edge: "" };
    element("span", "rr-entry", parent).append(this.swatchOf("idle", idle), this.words.idle);
    if (!this.peak) return;
    element("span", "", parent, this.words.memory);
    for (const [k, kind] of this.memoryKinds.entries()) if (this.isHeld(k)) this.entry(parent, kind);
  }

  isHeld(k) {
    const held = this.panels.flatMap((panel) => [...panel.held.values()]);
    return held.some(({ sums }) => sums.some((size, i) => size && i % this.memoryKinds.length === k));
  }

  entry(parent, kind) {
    const item = element("span", "rr-entry", parent);
    item.append(this.swatch(kind), this.paints[kind].word);
  }

  swatch(kind) { return this.swatchOf(kind, this.paints[kind]); }

  swatchOf(name, paint) {
    const made = element("span", "rr-swatch");
    made.style.backgroundImage = this.swatches[name] ??= this.drawnSwatch(paint);
    return made;
  }

  drawnSwatch(paint) {
    const canvas = Object.assign(document.createElement("canvas"), { width: 26, height: 20 });
    const context = canvas.getContext("2d"), { wide, edge } = ink(context, paint);
    context.scale(2, 2);
    context.fillStyle = wide;
    context.fillRect(0, 0, 13, 10);
    context.strokeStyle = edge || "transparent";
    context.strokeRect(0.5, 0.5, 12, 9);
    return `url(${canvas.toDataURL()})`;
  }

  buildButtons(parent) {
    const button = (text, label, action) => {
      const made = element("button", "", parent, text);
      made.type = "button";
      called(made, label);
      made.addEventListener("click", action);
      return made;
    };
    this.playButton = button("", "", () => this.togglePlay());
    this.speedButton = button("", "", () => this.nextSpeed());
    button(this.words.fit, this.words.fit_whole, () => this.fit());
    button("+", this.words.zoom_in, () => this.zoomAt(0.5, this.centre()));
    button("−", this.words.zoom_out, () => this.zoomAt(2, this.centre()));
    this.clock = element("span", "rr-clock", parent);
    this.showPlaying(false);
    this.showSpeed();
  }

  /** One row a timeline and rank; `cells` keeps what changes with the play head. */
  buildReadout(parent) {
    this.readout = parent;
    const table = element("table", "", parent), head = table.createTHead().insertRow();
    const words = ["at_head", "does_compute", "does_send", ...(this.peak ? ["does_hold"] : [])];
    for (const word of words) element("th", "", head, this.words[word]).scope = "col";
    table.classList.toggle("rr-memory", this.peak > 0);
    this.cells = this.rows.map((row) => {
      if (row.rank === row.panel.ranks[0]) this.readoutHead(table.createTBody(), row.panel, words.length);
      const line = table.tBodies[table.tBodies.length - 1].insertRow();
      element("th", "", line, `rank ${row.rank}`).scope = "row";
      line.addEventListener("click", () => this.select(row.rank));
      const [computes, sends, holds] = words.slice(1).map(() => element("td", "", line));
      return { line, computes, sends, holds: row.held && this.readoutMemory(holds) };
    });
  }

  readoutHead(body, panel, columns) {
    if (this.panels.length === 1) return;
    const title = element("th", "rr-panel", body.insertRow(), panel.title);
    Object.assign(title, { scope: "rowgroup", colSpan: columns });
  }

  readoutMemory(cell) {
    const bar = element("span", "rr-bar", cell);
    const parts = this.memoryKinds.map((kind) => {
      const part = element("span", "", bar);
      part.style.background = this.paints[kind].fill;
      return part;
    });
    return { parts, text: element("span", "", cell) };
  }

  buildTable(rows) {
    const fold = element("details", "rr-table", this.root);
    element("summary", "", fold, this.words.table);
    const table = element("table", "", fold);
    const head = table.createTHead().insertRow();
    for (const name of Object.keys(rows[0])) element("th", "", head, name).scope = "col";
    const body = table.createTBody();
    for (const row of rows) {
      const line = body.insertRow();
      for (const value of Object.values(row)) element("td", "", line, value);
    }
  }

  // -- what happens

  listen() {
    const { signal } = this.stop;
    const on = (target, name, action) => target.addEventListener(name, action, { signal, passive: false });
    on(this.canvas, "wheel", (event) => this.wheel(event));
    on(this.canvas, "pointerdown", (event) => this.press(event));
    on(this.canvas, "pointermove", (event) => this.move(event));
    on(this.canvas, "pointerup", (event) => this.release(event));
    on(this.canvas, "pointercancel", () => { this.drag = null; }); // a finger scrolls the page
    on(this.canvas, "pointerleave", () => this.leave());
    on(this.canvas, "dblclick", () => this.fit());
    on(this.canvas, "keydown", (event) => this.key(event));
    on(this.scroller, "scroll", () => this.schedule());
    on(matchMedia("(prefers-color-scheme: dark)"), "change", () => this.schedule());
    this.sizes = new ResizeObserver(() => this.resize());
    this.sizes.observe(this.scroller);
    // JupyterLab names its theme on the body; the frame after next has its colours
    this.themes = new MutationObserver(() => requestAnimationFrame(() => this.schedule()));
    this.themes.observe(document.body, { attributeFilter: ["data-jp-theme-light", "data-jp-theme-name", "class"] });
    this.followed = { "change:playhead change:zoom change:selected_rank": () => this.follow() };
    for (const [names, action] of Object.entries(this.followed)) this.model.on(names, action);
  }

  close() {
    this.stop.abort();
    this.sizes.disconnect();
    this.themes.disconnect();
    for (const [names, action] of Object.entries(this.followed)) this.model.off(names, action);
    this.pause();
    cancelAnimationFrame(this.frame);
    cancelAnimationFrame(this.animation);
    clearTimeout(this.sending);
    clearTimeout(this.speaking);
  }

  readModel() {
    [this.from, this.to] = this.model.get("zoom");
    this.head = this.model.get("playhead");
    this.rank = this.model.get("selected_rank");
  }

  /** Python moved something. Our own changes come back here too, and change nothing. */
  follow() {
    if (this.sending) return; // ours is newer
    this.readModel();
    this.schedule();
  }

  changed() {
    this.schedule();
    this.sending ||= setTimeout(() => {
      this.sending = 0;
      this.model.set({ playhead: this.head, selected_rank: this.rank, zoom: [this.from, this.to] });
      this.model.save_changes();
    }, 200);
  }

  resize() {
    this.width = Math.max(320, this.scroller.clientWidth);
    this.schedule();
  }

  centre() { return this.head >= this.from && this.head <= this.to ? this.head : (this.from + this.to) / 2; }

  show(from, to) {
    const length = clamp(to - from, Math.min(this.length, 1e-9 + this.length * 1e-8), this.length);
    this.from = clamp(from, 0, this.length - length);
    this.to = this.from + length;
    this.changed();
  }

  /** The window that is `factor` times as long and has `instant` at the same place. */
  around(instant, factor) { return [instant + (this.from - instant) * factor, instant + (this.to - instant) * factor]; }

  zoomAt(factor, instant) { this.glide(...this.around(instant, factor)); }
  fit() { this.glide(0, this.length); }

  /** To another window, in a fifth of a second; at once for those who want no motion. */
  glide(from, to) {
    cancelAnimationFrame(this.animation);
    const [a, b, began] = [this.from, this.to, performance.now()];
    const step = (now) => {
      const share = STILL.matches ? 1 : clamp((now - began) / 180, 0, 1);
      const eased = 1 - (1 - share) ** 3;
      this.show(a + (from - a) * eased, b + (to - b) * eased);
      if (share < 1) this.animation = requestAnimationFrame(step);
    };
    step(began);
  }

  wheel(event) {
    const mine = event.ctrlKey || event.metaKey || document.activeElement === this.canvas;
    if (!mine) return; // the notebook scrolls
    event.preventDefault();
    cancelAnimationFrame(this.animation);
    const sideways = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) return this.pan(sideways);
    const lines = event.deltaMode === 1 ? 30 : 1; // Firefox counts lines
    const factor = Math.exp(clamp(event.deltaY * lines, -240, 240) * 0.002);
    const at = this.instant(clamp(event.offsetX, LEFT, this.width - RIGHT));
    this.show(...this.around(at, factor));
  }

  pan(pixels) { this.show(this.from + pixels / this.scale, this.to + pixels / this.scale); }

  press(event) {
    if (event.button) return;
    this.canvas.focus({ preventScroll: true });
    this.canvas.setPointerCapture(event.pointerId);
    const scrubs = event.offsetY > this.height || Math.abs(event.offsetX - this.x(this.head)) < 6;
    this.drag = { scrubs, x: event.offsetX, from: this.from, to: this.to, moved: false };
    if (scrubs) this.moveHead(this.instant(event.offsetX));
  }

  move(event) {
    this.pointer = { x: event.offsetX, y: event.offsetY };
    if (this.drag?.scrubs) this.moveHead(this.instant(event.offsetX));
    else if (this.drag) this.dragTo(event.offsetX);
    this.canvas.style.cursor = this.cursor(event);
    this.schedule();
  }

  dragTo(x) {
    this.drag.moved ||= Math.abs(x - this.drag.x) > 3;
    const by = (this.drag.x - x) / this.scale;
    if (this.drag.moved) this.show(this.drag.from + by, this.drag.to + by);
  }

  cursor(event) {
    if (this.drag?.moved) return "grabbing";
    return event.offsetY > this.height || Math.abs(event.offsetX - this.x(this.head)) < 6 ? "ew-resize" : "default";
  }

  release(event) {
    const drag = this.drag;
    this.drag = null;
    if (!drag || drag.moved || drag.scrubs) return;
    const y = event.offsetY + this.scroller.scrollTop;
    this.rank = this.rows.find((row) => y >= row.top && y < row.bottom)?.rank ?? this.rank;
    if (event.offsetX >= LEFT) this.moveHead(this.instant(event.offsetX));
    this.changed();
  }

  leave() { this.pointer = null; this.schedule(); }

  key(event) {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const step = (this.to - this.from) / 100;
    const actions = {
      ArrowLeft: () => this.moveHead(event.shiftKey ? this.edge(-1) : this.head - step, true),
      ArrowRight: () => this.moveHead(event.shiftKey ? this.edge(1) : this.head + step, true),
      ArrowUp: () => this.nextRank(-1), ArrowDown: () => this.nextRank(1),
      "+": () => this.zoomAt(0.5, this.centre()), "=": () => this.zoomAt(0.5, this.centre()),
      "-": () => this.zoomAt(2, this.centre()), "0": () => this.fit(),
      Home: () => this.moveHead(0, true), End: () => this.moveHead(this.length, true),
      " ": () => this.togglePlay(), Escape: () => this.canvas.blur(),
    };
    if (!actions[event.key]) return;
    event.preventDefault();
    event.stopPropagation();
    actions[event.key]();
  }

  nextRank(by) {
    const at = this.ranks.indexOf(this.rank);
    this.select(this.ranks[clamp(at + by, 0, this.ranks.length - 1)]);
  }

  select(rank) {
    this.rank = rank;
    const row = this.rows.find((each) => each.rank === rank);
    this.uncover(this.cells[this.rows.indexOf(row)].line);
    const { scrollTop } = this.scroller;
    if (row.top < scrollTop) this.scroller.scrollTop = row.top - HEAD;
    else if (row.bottom > scrollTop + this.height) this.scroller.scrollTop = row.bottom - this.height + 8;
    this.changed();
  }

  /** Scroll the readout, and not the page, until this line of it can be seen below the head. */
  uncover(line) {
    const at = line.getBoundingClientRect(), box = this.readout.getBoundingClientRect();
    this.readout.scrollTop += Math.min(0, at.top - at.height - box.top) + Math.max(0, at.bottom - box.bottom);
  }

  /** With `follows`, what is visible moves along when the head would leave it. */
  moveHead(instant, follows = false) {
    this.head = clamp(instant, 0, this.length);
    const length = this.to - this.from;
    if (follows && (this.head < this.from || this.head > this.to)) {
      const from = this.head > this.to ? this.head - 0.1 * length : this.head - 0.9 * length;
      this.show(from, from + length);
    }
    this.changed();
  }

  /** The next instant at which a span of any rank starts or ends. */
  edge(direction) {
    this.edges ??= Float64Array.from(this.panels.flatMap(({ start, end }) => [...start, ...end])).sort();
    if (direction > 0) return this.edges[firstAbove(this.edges, this.head)] ?? this.length;
    let at = firstAbove(this.edges, this.head) - 1;
    while (at >= 0 && this.edges[at] >= this.head) at--;
    return this.edges[at] ?? 0;
  }

  togglePlay() { if (this.playing) this.pause(); else this.play(); }

  /** A sweep; for those who want no motion, steps from edge to edge. */
  play() {
    if (this.head >= this.length) this.head = 0;
    this.showPlaying(true);
    let before = performance.now();
    const sweep = (now) => {
      const visible = this.to - this.from;
      this.moveHead(this.head + ((now - before) / SWEEP) * SPEEDS[this.speed] * visible, true);
      before = now;
      this.playing = this.head < this.length ? requestAnimationFrame(sweep) : this.pause();
    };
    const hop = () => {
      this.moveHead(this.edge(1), true);
      this.playing = this.head < this.length ? setTimeout(hop, 800 / SPEEDS[this.speed]) : this.pause();
    };
    this.playing = STILL.matches ? setTimeout(hop, 0) : requestAnimationFrame(sweep);
  }

  pause() {
    cancelAnimationFrame(this.playing);
    clearTimeout(this.playing);
    this.showPlaying(false);
    return (this.playing = 0);
  }

  showPlaying(plays) {
    const word = plays ? this.words.pause : this.words.play;
    this.playButton.textContent = `${plays ? "⏸" : "▶"} ${word}`;
    called(this.playButton, word);
  }

  nextSpeed() { this.speed = (this.speed + 1) % SPEEDS.length; this.showSpeed(); }

  showSpeed() {
    this.speedButton.textContent = `${SPEEDS[this.speed]}×`;
    called(this.speedButton, fill(this.words.speed, { times: SPEEDS[this.speed] }));
  }

  // -- what is shown

  schedule() {
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      if (this.width) this.paint();
    });
  }

  paint() {
    const began = performance.now(), style = getComputedStyle(this.root); // JupyterLab's theme may have changed
    [this.ink, this.surface] = [style.color, style.backgroundColor];
    this.showCard(this.draw(this.scroller.scrollTop, this.drag ? null : this.pointer));
    this.tell();
    const times = this.root.__timeline.frameTimes;
    times.push(performance.now() - began);
    if (times.length > 1000) times.shift();
  }

  showCard(found) {
    const { card, pointer } = this;
    card.hidden = !found;
    if (!found) return;
    card.replaceChildren();
    if (found.track) this.fillSpanCard(found);
    else this.fillMemoryCard(found);
    const beside = pointer.x + 16 + card.offsetWidth < this.width;
    card.style.left = `${beside ? pointer.x + 16 : Math.max(0, pointer.x - 12 - card.offsetWidth)}px`;
    card.style.top = `${clamp(pointer.y + 14, 0, Math.max(0, this.height + AXIS - card.offsetHeight))}px`;
  }

  fillMemoryCard({ row: { rank, held }, instant }) {
    element("div", "rr-card-head", this.card, fill(this.words.holds_at, { rank, time: this.seconds(instant) }));
    element("div", "", this.card, this.holdsText(held, instant));
  }

  fillSpanCard({ row: { panel, rank }, index, crowd }) {
    const kind = this.kinds[panel.kind[index]];
    const head = element("div", "rr-card-head", this.card);
    head.append(this.swatch(kind), this.names[panel.name[index]]);
    const size = panel.numBytes[index] ? ` · ${this.bytes(panel.numBytes[index])}` : "";
    element("div", "", this.card, `rank ${rank} · ${this.paints[kind].word}${size}`);
    const start = this.seconds(panel.start[index]), time = this.seconds(panel.end[index] - panel.start[index]);
    element("div", "", this.card, fill(this.words.lasts, { start, time }));
    if (crowd === 1) return;
    element("div", "rr-muted", this.card, fill(this.words.crowd, { count: crowd.toLocaleString("en-US") }));
  }

  tell() {
    this.clock.textContent = fill(this.words.clock, { time: this.seconds(this.head) });
    this.rows.forEach((row, n) => {
      const { line, computes, sends, holds } = this.cells[n];
      line.classList.toggle("rr-chosen", row.rank === this.rank);
      this.say(computes, row, 0);
      this.say(sends, row, 1);
      if (holds) this.sayHolds(holds, row.held);
    });
    this.speaking ||= setTimeout(() => { this.speaking = 0; this.sayAloud(); }, 700);
  }

  sayAloud() {
    const said = this.sentence();
    if (this.live.textContent !== said) this.live.textContent = said;
  }

  say(cell, row, lane) {
    const text = this.laneText(row, lane), [first] = this.current(row, lane);
    if (cell.dataset.text === text) return; // nothing new to lay out
    cell.dataset.text = cell.title = text; // the whole of it on hover, where the cell is too narrow
    cell.replaceChildren(...(first === undefined ? [] : [this.swatch(this.kinds[row.panel.kind[first]])]), text);
    cell.classList.toggle("rr-muted", first === undefined);
  }

  sayHolds({ parts, text }, held) {
    this.heldAt(held, this.head).forEach((size, k) => { parts[k].style.width = `${(size / this.peak) * 100}%`; });
    const words = this.holdsText(held, this.head);
    if (text.textContent !== words) text.textContent = words;
  }

  sentence() {
    const { words, rank } = this;
    const said = this.rows.filter((row) => row.rank === rank).map((row) => {
      const holds = row.held ? fill(words.holds, { total: "", kinds: [this.holdsText(row.held, this.head)] }) : "";
      const [computes, sends] = [0, 1].map((lane) => [this.laneText(row, lane)]);
      return fill(words.computes, { title: row.panel.title, computes, sends, holds });
    });
    return fill(words.reading, { time: this.seconds(this.head), rank, said });
  }
}

function render({ model, el }) {
  const began = performance.now();
  if (model.get("error")) {
    const alert = element("p", "rr-timeline rr-alert", el, model.get("error"));
    alert.setAttribute("role", "alert");
    return;
  }
  const viewer = new Viewer(model, el);
  requestAnimationFrame(() => requestAnimationFrame(() => {
    viewer.root.__timeline.loadMs = performance.measure("timeline-load", { start: began }).duration;
  }));
  return () => viewer.close();
}

export default { render };
